# x86-64 Windows. GCC for this system keeps AVX registers at misaligned places of the stack (its bug 54412), and Microsoft's
# compiler does not know the vector operations of our kernels; Clang does neither.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(target x86_64-windows-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/zig.cmake")
set(CMAKE_RC_COMPILER "$ENV{ZIG}")  # CMake asks for one; nothing here is a resource
foreach(language C CXX)
    set(CMAKE_${language}_FLAGS_INIT -Wno-unused-command-line-argument)  # the compiler adds one to its own command
endforeach()
