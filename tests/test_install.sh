#!/bin/sh
# What `make install` puts somewhere is enough to write programs in C11 and C++17 against either library, and no more than
# that: only ebb_ names are exported, and the manual page says what the program's help says.
#   test_install.sh CMAKE BUILD SOURCE_DIR CC [SANITIZER_FLAGS]
set -u

cmake=$1 build=$2 source=$3 cc=$4 sanitize=${5:-}
model=$source/models/tiny-gdn
strict="-pedantic -Wall -Wextra -Werror"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

fail() {
    echo "FAILED: $1"
    [ ! -s "$tmp/err" ] || sed 's/^/    /' "$tmp/err" | head -5
    failures=$((failures + 1))
    : >"$tmp/err"
}
# Run a command quietly; what it says is shown when it fails.
try() { "$@" >"$tmp/out" 2>"$tmp/err"; }
tree() { (cd "$1" && find . ! -type d | LC_ALL=C sort); }
need() { command -v "$1" >/dev/null 2>&1; }

# The C++ compiler of the same family, for the sanitizers' sake.
cxx=
for name in "$(echo "$cc" | sed 's/clang\(-[0-9.]*\)*$/clang++\1/; s/gcc\(-[0-9.]*\)*$/g++\1/; s/\/cc$/\/c++/')" c++ g++ clang++; do
    [ -n "$cxx" ] || [ "$name" = "$cc" ] || ! need "$name" || cxx=$name
done

# ---- with a prefix, and with DESTDIR: the same files ----
all=$tmp/all staged=$tmp/staged
try "$cmake" --install "$build" --prefix "$all" || fail "cmake --install --prefix"
DESTDIR=$staged try "$cmake" --install "$build" --prefix /opt/ebb || fail "cmake --install with DESTDIR"
tree "$all" >"$tmp/list"
tree "$staged/opt/ebb" | diff "$tmp/list" - >"$tmp/err" || fail "a prefix and DESTDIR install other files"
pc=$(dirname "$(find "$all" -name ebb.pc)")
lib=$(dirname "$pc")
version=$("$all/bin/ebb" --version 2>"$tmp/err") || fail "the installed program does not run"
version=${version#ebb }
for file in bin/ebb include/ebb/ebb.h share/man/man1/ebb.1; do
    [ -f "$all/$file" ] || fail "$file was not installed"
done
for header in "$source"/include/ebb/*.h; do
    cmp -s "$header" "$all/include/ebb/${header##*/}" || fail "${header##*/} was not installed"
done
for name in ebb-core ebb; do
    [ -f "$lib/lib$name.a" ] || fail "lib$name.a was not installed"
    [ -f "$lib/lib$name.so.$version" ] || fail "lib$name.so.$version was not installed"
    [ "$(PKG_CONFIG_PATH=$pc pkg-config --modversion $name)" = "$version" ] || fail "$name.pc has another version"
    readelf -d "$lib/lib$name.so" | grep -q "soname: \[lib$name\.so\.${version%%.*}\]" || fail "lib$name.so: another soname"
done
readelf -d "$lib/libebb.so" | grep -q "NEEDED.*libebb-core\.so" || fail "libebb.so does not need libebb-core.so"

# The program finds what it needs from any folder.
(cd / && try "$all/bin/ebb" info -m "$model" --json) || fail "the installed program, called from /"

# ---- what the shared libraries export ----
exported() { nm -D --defined-only "$1" | awk -v sanitized="$sanitize" '!(sanitized != "" && $3 ~ /^__/) { print $3 }' | LC_ALL=C sort; }
exported "$lib/libebb-core.so" >"$tmp/core.names"
exported "$lib/libebb.so" >"$tmp/models.names"
LC_ALL=C sort "$tmp/core.names" "$tmp/models.names" >"$tmp/names"
grep -v '^ebb_' "$tmp/names" >"$tmp/err" && fail "names that are not ebb_ are exported"
uniq -d "$tmp/names" >"$tmp/err"
[ ! -s "$tmp/err" ] || fail "names are exported by both libraries"
for header in "$all"/include/ebb/*.h; do echo "#include <ebb/${header##*/}>"; done >"$tmp/every.c"
# Declared functions: ebb_NAME( after the preprocessor; "ebb_TYPE (*" is a pointer's, and static inline ones are in no
# library.
"$cc" -I"$all/include" -E -P "$tmp/every.c" >"$tmp/every.i"
grep -oE '^static inline .*\bebb_[a-z0-9_]+\(' "$tmp/every.i" | grep -oE 'ebb_[a-z0-9_]+\($' | tr -d '(' |
    LC_ALL=C sort -u >"$tmp/inline"
tr '\n' ' ' <"$tmp/every.i" | grep -oE '\bebb_[a-z0-9_]+ *\( *[^*]' | sed 's/[ (].*//' |
    LC_ALL=C sort -u | LC_ALL=C comm -23 - "$tmp/inline" >"$tmp/declared"
[ "$(wc -l <"$tmp/declared")" -ge 80 ] || fail "only $(wc -l <"$tmp/declared") functions were found in the headers"
LC_ALL=C comm -23 "$tmp/declared" "$tmp/names" >"$tmp/err"
[ ! -s "$tmp/err" ] || fail "functions are declared and not exported"
LC_ALL=C comm -13 "$tmp/declared" "$tmp/names" >"$tmp/err"
[ ! -s "$tmp/err" ] || fail "functions are exported and not declared"

# ---- programs ----
# Where only archives are, pkg-config --static finds all that they need.
archives=$tmp/archives core=$tmp/core
cp -R "$all" "$archives" && find "$archives" -name '*.so*' -exec rm {} +
try "$cmake" --install "$build" --prefix "$core" --component core || fail "cmake --install --component core"
flags() { # flags PREFIX PACKAGE [--static]
    PKG_CONFIG_PATH=$1${pc#"$all"} pkg-config ${3:+"$3"} --cflags --libs "$2" 2>"$tmp/err" || fail "pkg-config $2"
}
# build_and_run WHAT COMPILER SOURCE PREFIX PACKAGE OPTIONS [ARGUMENT ...]: shared, then static; output in $tmp/out.
build_and_run() {
    what=$1 compiler=$2 code=$3 prefix=$4 package=$5 options=$6
    shift 6
    # shellcheck disable=SC2046,SC2086 # words, on purpose
    try "$compiler" $options $strict $sanitize "$code" -o "$tmp/shared" $(flags "$prefix" "$package") ||
        fail "$what: does not compile with the shared library"
    LD_LIBRARY_PATH=$prefix${lib#"$all"} try "$tmp/shared" "$@" || fail "$what: does not run with the shared library"
    cp "$tmp/out" "$tmp/shared.out"
    # shellcheck disable=SC2046,SC2086
    try "$compiler" $options $strict $sanitize "$code" -o "$tmp/static" $(flags "$archives" "$package" --static) ||
        fail "$what: does not compile with the archive"
    try "$tmp/static" "$@" || fail "$what: does not run with the archive"
    cmp -s "$tmp/out" "$tmp/shared.out" || fail "$what: other output with the archive"
}

build_and_run "examples/minimal.c" "$cc" "$source/examples/minimal.c" "$all" ebb -std=c11 "$model" "Alice was"
[ "$(wc -c <"$tmp/out")" -gt 20 ] || fail "examples/minimal.c says nothing"
if [ -z "$sanitize" ]; then # the whole program static, where libc and the others have archives
    # shellcheck disable=SC2046
    if try "$cc" -std=c11 "$source/examples/minimal.c" -static -o "$tmp/static" $(flags "$all" ebb --static); then
        try "$tmp/static" "$model" "Alice was" || fail "examples/minimal.c does not run with -static"
    elif grep -q 'cannot find -l' "$tmp/err"; then echo "skipped: -static; ld $(grep -m1 -o 'cannot find -l.*' "$tmp/err")"
    else fail "examples/minimal.c does not compile with -static"; fi
fi

for header in "$all"/include/ebb/*.h; do
    name=ebb/${header##*/}
    echo "#include <$name>" >"$tmp/alone.c"
    for compiler in "$cc" clang; do
        need "$compiler" || continue
        # shellcheck disable=SC2086
        try "$compiler" -std=c11 $strict -I"$all/include" -fsyntax-only "$tmp/alone.c" || fail "$name as C11 with $compiler"
    done
    [ -n "$cxx" ] || continue
    if need clang++; then
        # shellcheck disable=SC2086
        try clang++ -std=c++17 $strict -DHEADER="\"$name\"" -I"$all/include" -fsyntax-only "$source/tests/cxx.cpp" ||
            fail "$name as C++17 with clang++"
    fi
    if [ -f "$core/include/$name" ]; then build_and_run "$name" "$cxx" "$source/tests/cxx.cpp" "$core" ebb-core "-std=c++17 -DHEADER=\"$name\""
    else build_and_run "$name" "$cxx" "$source/tests/cxx.cpp" "$all" ebb "-std=c++17 -DHEADER=\"$name\""; fi
done
[ -n "$cxx" ] || echo "skipped: the headers in C++; there is no C++ compiler"

# ---- without the models: no jansson, not even pkg-config ----
if [ -z "$sanitize" ]; then
    try "$cmake" -S "$source" -B "$tmp/bare" -DEBB_MODELS=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_INSTALL_LIBDIR="${lib#"$all/"}" -DPKG_CONFIG_EXECUTABLE=/nonexistent || fail "EBB_MODELS=OFF does not configure"
    try "$cmake" --build "$tmp/bare" -j 2 || fail "EBB_MODELS=OFF does not build"
    try "$cmake" --install "$tmp/bare" --prefix "$tmp/only" || fail "EBB_MODELS=OFF does not install"
    (tree "$core" && echo ./bin/ebb-check) | LC_ALL=C sort >"$tmp/list"
    tree "$tmp/only" | diff "$tmp/list" - >"$tmp/err" || fail "EBB_MODELS=OFF installs other files than ebb-core and ebb-check"
fi

# ---- the manual page: every command and option of the help, and no other ----
page=$all/share/man/man1/ebb.1
"$all/bin/ebb" help | awk '/^commands:/ { on = 1; next } /^$/ { on = 0 } on && $1 != "help" { print $1 }' >"$tmp/commands"
[ "$(wc -l <"$tmp/commands")" -ge 3 ] || fail "ebb help lists $(wc -l <"$tmp/commands") commands"
sed 's/\\-/-/g; s/\\e/\\/g' "$page" >"$tmp/page"
while read -r command; do
    "$all/bin/ebb" help "$command" | grep -oE '^ +(-., )?--[a-z0-9-]+' | sed 's/^.*--/--/' | LC_ALL=C sort >"$tmp/options"
    awk -v section=".SS ebb $command" '/^\.S[SH]/ { on = $0 == section } on' "$tmp/page" | grep -A1 '^\.TP' |
        grep -oE '^\.B (-., )?--[a-z0-9-]+' | sed 's/^.*--/--/' | LC_ALL=C sort >"$tmp/written"
    [ -s "$tmp/options" ] || fail "ebb help $command lists no options"
    diff "$tmp/options" "$tmp/written" >"$tmp/err" || fail "the manual page has other options of ebb $command than its help"
done <"$tmp/commands"
if need man; then
    man --warnings -E UTF-8 -l -Tutf8 "$page" >/dev/null 2>"$tmp/err"
    [ ! -s "$tmp/err" ] || fail "the manual page has warnings"
fi

# ---- and away with it ----
DESTDIR=$staged try sh "$source/scripts/uninstall.sh" "$build" /opt/ebb || fail "uninstall"
tree "$staged" >"$tmp/err"
[ ! -s "$tmp/err" ] || fail "uninstall leaves files"
[ ! -d "$staged/opt/ebb/include/ebb" ] || fail "uninstall leaves include/ebb"

[ $failures = 0 ] || { echo "$failures failures" && exit 1; }
