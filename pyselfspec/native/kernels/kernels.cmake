# Compiles the kernels into the CPU backend, into every variant of it if there are several: each has its own instruction
# set, and the kernels take what it offers. Where that is less than AVX2 they are empty, and upstream computes as before.
file(GLOB kernels CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
# AMX is left out: upstream would keep weights in tiles that our kernels never see, with other results at width 1 than
# beyond, and some virtual machines announce AMX but end a process that uses it. It costs speed on long prompts only.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mno-amx-tile PYSELFSPEC_HAS_AMX_SWITCH)
set(no_amx "")
if(PYSELFSPEC_HAS_AMX_SWITCH)
    set(no_amx -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
endif()
foreach(target IN LISTS cpu_backends)
    target_compile_options(${target} PRIVATE ${no_amx})
    target_sources(${target} PRIVATE ${kernels})
    target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_LIST_DIR}" "${CMAKE_CURRENT_LIST_DIR}/..")
    if(PYSELFSPEC_SANITIZE)
        target_link_options(${target} PRIVATE "-fsanitize=${PYSELFSPEC_SANITIZE}")
    endif()
    # GCC 12 takes a deliberate oddity of its own AVX-512 header for a mistake of ours. And it puts sums of integers off
    # to where they are used, and all products until then into memory.
    set_source_files_properties(${kernels} TARGET_DIRECTORY ${target} PROPERTIES
        COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized;-fno-tree-ter>;${sanitize}")
endforeach()
