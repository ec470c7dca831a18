# Compiles faster what runs once for each model, graph or picture. Passes spend their time in ggml's CPU backend and in our
# kernels, which keep upstream's options; the files named below work on every token, row or pixel.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    return()
endif()

# Options of a file come after those of its target.
function(selfspec_compile_fast target)
    get_target_property(folder ${target} SOURCE_DIR)
    list(TRANSFORM ARGN PREPEND "${folder}/")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
endfunction()

selfspec_compile_fast(llama llama-kv-cache.cpp llama-sampler.cpp llama-vocab.cpp unicode.cpp)
# Upstream compiles only its models several files at once. The file that stays out defines a function of llama-graph.cpp again.
get_target_property(core llama SOURCES)
get_target_property(folder llama SOURCE_DIR)
list(FILTER core INCLUDE REGEX "^[^/]+\\.cpp$")
list(REMOVE_ITEM core llama-kv-cache-dsv4.cpp)
list(TRANSFORM core PREPEND "${folder}/")
set_source_files_properties(${core} TARGET_DIRECTORY llama PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
selfspec_compile_fast(ggml-base ggml.c ggml-quants.c)
if(TARGET ggml-rpc)
    selfspec_compile_fast(ggml-rpc)
endif()
if(TARGET mtmd)
    selfspec_compile_fast(mtmd mtmd-audio.cpp mtmd-image.cpp)
    # Its models are many small files with large headers. The other files define some names twice.
    get_target_property(others mtmd SOURCES)
    list(FILTER others EXCLUDE REGEX "^models/")
    get_target_property(folder mtmd SOURCE_DIR)
    list(TRANSFORM others PREPEND "${folder}/")
    set_source_files_properties(${others} TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
endif()
