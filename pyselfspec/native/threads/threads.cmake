# Our threads in every CPU backend, in place of an OpenMP runtime: see team.cpp. Compilers still read ggml's directives.
if(PYSELFSPEC_THREADS)
    find_package(Threads REQUIRED)
    set(directives "${PYSELFSPEC_LLAMA_CPP_DIR}/ggml/src/ggml-cpu/ggml-cpu.c")  # the one file that has any
    foreach(target IN LISTS cpu_backends)
        target_sources(${target} PRIVATE "${CMAKE_CURRENT_LIST_DIR}/team.cpp" "${CMAKE_CURRENT_LIST_DIR}/openmp.cpp")
        target_link_libraries(${target} PRIVATE Threads::Threads)
        set_source_files_properties("${directives}" TARGET_DIRECTORY ${target} PROPERTIES
            COMPILE_DEFINITIONS GGML_USE_OPENMP
            COMPILE_OPTIONS -fopenmp
            INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/include")
    endforeach()
endif()
