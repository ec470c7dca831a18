# Compiles the kernels into the CPU backend, into every variant of it if there are several: each has its own instruction
# set, and the kernels take what it offers. Where that is less than AVX2 they are empty, and upstream computes as before.
file(GLOB kernels CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
get_property(targets DIRECTORY "${PYSELFSPEC_LLAMA_CPP_DIR}/ggml/src" PROPERTY BUILDSYSTEM_TARGETS)
list(FILTER targets INCLUDE REGEX "^ggml-cpu")
list(FILTER targets EXCLUDE REGEX "-feats$")  # feature detection, built for any processor
foreach(target IN LISTS targets)
    target_sources(${target} PRIVATE ${kernels})
    target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_LIST_DIR}")
    # GCC 12 takes a deliberate oddity of its own AVX-512 header for a mistake of ours. And it puts sums of integers off
    # to where they are used, and all products until then into memory.
    set_source_files_properties(${kernels} TARGET_DIRECTORY ${target} PROPERTIES
        COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized;-fno-tree-ter>")
endforeach()
