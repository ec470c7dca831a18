# Compiles faster what runs once for each model, graph or picture. Passes spend their time in ggml's CPU backend and in our
# kernels, which keep upstream's options; the files named below work on every token, row or pixel.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    return()
endif()

# Sets a property of files, which are named as in the list of their target.
function(selfspec_set_for_files target property value)
    get_target_property(folder ${target} SOURCE_DIR)
    list(TRANSFORM ARGN PREPEND "${folder}/")
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES ${property} "${value}")
endfunction()

# Options of a file come after those of its target.
function(selfspec_compile_fast target)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    selfspec_set_for_files(${target} COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>" ${ARGN})
endfunction()

selfspec_compile_fast(llama llama-kv-cache.cpp llama-sampler.cpp llama-vocab.cpp unicode.cpp)
# Upstream compiles only its models several files at once. The file that stays out defines a function of llama-graph.cpp again.
get_target_property(core llama SOURCES)
list(FILTER core INCLUDE REGEX "^[^/]+\\.cpp$")
list(REMOVE_ITEM core llama-kv-cache-dsv4.cpp)
selfspec_set_for_files(llama SKIP_UNITY_BUILD_INCLUSION OFF ${core})
selfspec_compile_fast(ggml-base ggml.c ggml-quants.c)
if(TARGET ggml-rpc)
    selfspec_compile_fast(ggml-rpc)
endif()
if(TARGET mtmd)
    selfspec_compile_fast(mtmd mtmd-audio.cpp mtmd-image.cpp)
    # Its models are many small files with large headers. The other files define some names twice.
    get_target_property(others mtmd SOURCES)
    list(FILTER others EXCLUDE REGEX "^models/")
    selfspec_set_for_files(mtmd SKIP_UNITY_BUILD_INCLUSION ON ${others})
    set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
endif()
