# For builds with GGML_CUDA=ON, before llama.cpp is configured: architectures, and libraries that a toolkit may lack.
# PYSELFSPEC_CUBLAS_DIR names a folder with include/ and lib/, as in the nvidia-cublas wheel.

# --- architectures -----------------------------------------------------------------------------------------------------

# Upstream compiles for "native" even without a GPU; this is its own list for other machines.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75) # CMake wants one before it looks for a GPU
    enable_language(CUDA)
    if(CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^[0-9]")
        unset(CMAKE_CUDA_ARCHITECTURES)
    else()
        set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80-virtual 86-real 89-real 90-virtual)
        if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
            list(PREPEND CMAKE_CUDA_ARCHITECTURES 50-virtual 61-virtual 70-virtual)
        endif()
        if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
            list(APPEND CMAKE_CUDA_ARCHITECTURES 120a-real)
        endif()
        if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.9)
            list(APPEND CMAKE_CUDA_ARCHITECTURES 121a-real)
        endif()
    endif()
endif()

# --- libraries ---------------------------------------------------------------------------------------------------------

# With these variables set, FindCUDAToolkit does not search for the libraries.
if(PYSELFSPEC_CUBLAS_DIR)
    foreach(name cublas cublasLt)
        file(GLOB found "${PYSELFSPEC_CUBLAS_DIR}/lib/lib${name}.so*")
        list(POP_FRONT found CUDA_${name}_LIBRARY)
    endforeach()
    include_directories(SYSTEM "${PYSELFSPEC_CUBLAS_DIR}/include")
endif()

# The driver's own library, where the toolkit has no stub of it.
find_library(CUDA_cuda_driver_LIBRARY NAMES cuda libcuda.so.1
    HINTS ENV LIBRARY_PATH PATHS /usr/lib/wsl/lib /usr/local/nvidia/lib64
    PATH_SUFFIXES stubs)

find_package(CUDAToolkit REQUIRED)

find_file(cublas_header cublas_v2.h NO_CACHE
    PATHS "${PYSELFSPEC_CUBLAS_DIR}/include" ${CUDAToolkit_INCLUDE_DIRS} ENV CPATH NO_DEFAULT_PATH)
if(NOT TARGET CUDA::cublas OR NOT cublas_header)
    message(FATAL_ERROR "The CUDA toolkit in ${CUDAToolkit_BIN_DIR} has no cuBLAS headers or library. The nvidia-cublas \
wheel (nvidia-cublas-cu12 for CUDA 12) has both: install it and add \
-DPYSELFSPEC_CUBLAS_DIR=SITE_PACKAGES/nvidia/cu13 (nvidia/cublas for CUDA 12) to CMAKE_ARGS.")
endif()
if(NOT TARGET CUDA::cuda_driver AND NOT GGML_CUDA_NO_VMM)
    message(FATAL_ERROR "The driver library libcuda.so is neither in the CUDA toolkit (stubs) nor on this machine: \
add -DCUDA_cuda_driver_LIBRARY=FILE to CMAKE_ARGS, or build without it with -DGGML_CUDA_NO_VMM=ON.")
endif()
