# x86-64 Linux from glibc 2.28 on (2018), with libc++ inside the libraries.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(target x86_64-linux-gnu.2.28)
include("${CMAKE_CURRENT_LIST_DIR}/zig.cmake")
