# Compiles the kernels into the CPU backend, into every variant of it if there are several: each has its own instruction
# set, and the kernels use it. Without AVX2 or NEON they are empty, and upstream's code computes everything.
file(GLOB kernels CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
# AMX is left out: upstream would keep weights in tiles that our kernels never see, with other results at width 1 than
# beyond, and some virtual machines report AMX but end a process that uses it. Only long prompts are slower without it.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mno-amx-tile PYSELFSPEC_HAS_AMX_SWITCH)
set(no_amx "")
if(PYSELFSPEC_HAS_AMX_SWITCH)
    set(no_amx -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
endif()
# The kernels use vectors of 16 bytes on ARM, and upstream's exponential function for those, which its header hides where
# the compiler has SVE.
set(no_sve "")
if(PYSELFSPEC_ARM)
    set(no_sve -U__ARM_FEATURE_SVE)
endif()
set(sanitize_kernels "${sanitize}")
if(sanitize)
    # this takes as long to compile as all the rest, and tests/native/test_kernels.py looks for it
    list(APPEND sanitize_kernels "-fno-sanitize-address-use-after-scope")
endif()
foreach(target IN LISTS cpu_backends)
    target_compile_options(${target} PRIVATE ${no_amx})
    target_sources(${target} PRIVATE ${kernels})
    target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_LIST_DIR}" "${CMAKE_CURRENT_LIST_DIR}/..")
    # GCC 12 warns about a deliberate construct in its own AVX-512 header. It also delays sums of integers until they are
    # used, and spills all products to memory until then.
    set_source_files_properties(${kernels} TARGET_DIRECTORY ${target} PROPERTIES
        COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized;-fno-tree-ter>;${no_sve};${sanitize_kernels}")
endforeach()
