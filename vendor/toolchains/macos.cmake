# Macs with Apple's own processors, from macOS 11 on: CPU only, since the frameworks of Apple are not in the package.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(target aarch64-macos.11.0)
include("${CMAKE_CURRENT_LIST_DIR}/zig.cmake")
foreach(option METAL BLAS ACCELERATE)
    set(GGML_${option} OFF CACHE BOOL "")
endforeach()
set(CMAKE_INSTALL_NAME_TOOL "$ENV{ZIG}")  # CMake asks for one; the paths in the libraries are right from the start
set(CMAKE_OSX_DEPLOYMENT_TARGET "" CACHE STRING "")  # it is in the name of the target
