# Cross-compile for ARM64 on Debian amd64, with the packages gcc-aarch64-linux-gnu and libjansson-dev:arm64,
# libxxhash-dev:arm64, zlib1g-dev:arm64, libmd-dev:arm64 (after dpkg --add-architecture arm64):
#     cmake -S . -B build-arm64 -G Ninja -DLKS_TESTS=OFF -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake
# With the package qemu-user-static, the build makes the man pages and can run the program.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# Libraries of the build machine lie in /usr/lib, and must not be found.
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu /usr/lib/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
find_program(QEMU_AARCH64 NAMES qemu-aarch64-static qemu-aarch64)
if(QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${QEMU_AARCH64})
endif()
