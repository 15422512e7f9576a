#!/bin/sh
# Install the packages that building and testing need, where they are missing. Quick and offline when nothing is.
#   deps.sh [tests|fuzz|arm]    tests: also a C++ compiler, with which one test compiles the headers; without it that part is
#                           skipped. fuzz: also clang with libFuzzer; without it make fuzz is skipped.
#                           arm: also the cross compiler and qemu-user; without them make arm is skipped
set -eu

compiles() { echo 'int main(void) { return 0; }' | cc -x c -o /dev/null - 2>/dev/null; }
has_fuzzer() { echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -x c -fsanitize=fuzzer -o /dev/null - 2>/dev/null; }
has_library() { command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$1" 2>/dev/null; }

missing=
compiles || missing="$missing gcc libc6-dev"
command -v cmake >/dev/null 2>&1 || missing="$missing cmake"
command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
has_library jansson || missing="$missing libjansson-dev"
has_library libpcre2-8 || missing="$missing libpcre2-dev"
has_library libutf8proc || missing="$missing libutf8proc-dev"
has_library libmicrohttpd || missing="$missing libmicrohttpd-dev"
has_library cmocka || missing="$missing libcmocka-dev"
wanted=
[ "${1:-}" != tests ] || command -v c++ >/dev/null 2>&1 || wanted=" g++"
[ "${1:-}" != fuzz ] || has_fuzzer || wanted=" clang libclang-rt-dev"
if [ "${1:-}" = arm ]; then
    command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || wanted=" gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    command -v qemu-aarch64 >/dev/null 2>&1 || wanted="$wanted qemu-user"
fi
[ -n "$missing$wanted" ] || exit 0

fail() {
    if [ -z "$missing" ]; then
        echo "deps: no$wanted; what needs it will be skipped ($1)" >&2
        exit 0
    fi
    echo "deps: missing:$missing" >&2
    echo "deps: $1" >&2
    exit 1
}

command -v apt-get >/dev/null 2>&1 || fail "there is no apt-get here; please install what these Debian packages hold, then try again"
if [ "$(id -u)" = 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null 2>&1; then
    as_root="sudo env"
else
    fail "not root and no sudo; please run as root: apt-get install$missing$wanted"
fi

echo "deps: installing$missing$wanted"
export_frontend="DEBIAN_FRONTEND=noninteractive"
# shellcheck disable=SC2086 # words, on purpose
$as_root $export_frontend apt-get update -qq || fail "apt-get update failed; please run as root: apt-get install$missing$wanted"
# shellcheck disable=SC2086
$as_root $export_frontend apt-get install -y -qq --no-install-recommends $missing$wanted ||
    fail "apt-get install failed; please run as root: apt-get install$missing$wanted"
