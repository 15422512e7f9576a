#!/bin/sh
# bench/peers/build.sh [FOLDER]: builds the CPU operators of ggml, from the source package of llama-cpp-python on PyPI, for
# ggml_bench.c to be timed against. FOLDER (build/peers) then holds include/, lib/ and VERSION; nothing of it is part of ebb.
# Needs pip, cmake and a C++ compiler; a package that lies in FOLDER already (llama_cpp_python-*.tar.gz) is not downloaded.
set -eu

folder=${1:-build/peers}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
fail() {
    echo "bench/peers: $1" >&2
    exit 1
}

for tool in cmake tar c++; do
    command -v "$tool" >/dev/null || fail "$tool is missing"
done
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

package=$(find "$folder" -maxdepth 1 -name 'llama_cpp_python-*.tar.gz' | sort | tail -n 1)
if [ -z "$package" ]; then
    # --no-binary for this package only: pip asks its build system (a few wheels) for the metadata, even of a download.
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$folder" llama-cpp-python ||
        fail 'pip could not download the source package of llama-cpp-python'
    package=$(find "$folder" -maxdepth 1 -name 'llama_cpp_python-*.tar.gz' | sort | tail -n 1)
fi
name=$(basename "$package" .tar.gz)
rm -rf "$folder/source" "$folder/work"
mkdir "$folder/source"
tar -xzf "$package" -C "$folder/source" --strip-components 4 "$name/vendor/llama.cpp/ggml" ||
    fail "$package has no vendor/llama.cpp/ggml"
[ -e "$folder/source/ggml.pc.in" ] || : >"$folder/source/ggml.pc.in" # the package leaves it out, and cmake insists

# Static, for this CPU, with the matrix products that llama.cpp turns on (GGML_LLAMAFILE). No OpenMP: its threads go on
# spinning after a region and would be in the way of what is timed next; ggml's own pool can be paused.
cmake -S "$folder/source" -B "$folder/work" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$folder" \
    -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_OPENMP=OFF \
    -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF >"$folder/configure.log" 2>&1 ||
    fail "cmake failed, see $folder/configure.log"
cmake --build "$folder/work" -j "$jobs" >"$folder/build.log" 2>&1 || fail "the build failed, see $folder/build.log"
cmake --install "$folder/work" >"$folder/install.log" 2>&1 || fail "the install failed, see $folder/install.log"
echo "$name" | tr _ - >"$folder/VERSION"
echo "bench/peers: ggml of $(cat "$folder/VERSION") in $folder"
