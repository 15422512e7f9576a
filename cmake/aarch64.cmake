# Cross-compile for 64-bit ARM with Debian's compiler; tests run under qemu-user. `make arm`, or
#   cmake -S . -B build-arm --toolchain cmake/aarch64.cmake -DEBB_MODELS=OFF
# (the models need jansson, PCRE2 and utf8proc for that machine too).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
