# CMake toolchain file: builds for 64-bit ARM Linux with GNU's cross compiler, on another kind of machine.
#
#     CMAKE_ARGS="-DCMAKE_TOOLCHAIN_FILE=$PWD/tools/cross/aarch64.cmake" pip wheel --no-deps .
#
# PYSELFSPEC_CROSS_PREFIX names another compiler's prefix or path, for example one with an older C library.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(prefix "$ENV{PYSELFSPEC_CROSS_PREFIX}")
if(NOT prefix)
    set(prefix aarch64-linux-gnu-)
endif()
set(CMAKE_C_COMPILER "${prefix}gcc")
set(CMAKE_CXX_COMPILER "${prefix}g++")

# Programs of this machine, libraries and headers of the other.
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# Where the emulator is installed, CMake runs what it compiles.
find_program(PYSELFSPEC_QEMU qemu-aarch64)
if(PYSELFSPEC_QEMU)
    set(CMAKE_CROSSCOMPILING_EMULATOR "${PYSELFSPEC_QEMU};-L;/usr/aarch64-linux-gnu")
endif()
