# Selects the CPU backends to build, and lists the instruction sets that each needs.

# The variants of upstream in the portable build, from the least demanding to the best: Python loads the last one that the
# processor supports. PORTABLE.md explains why the others are left out.
if(PYSELFSPEC_ARM AND APPLE)
    set(variants apple_m1)
elseif(PYSELFSPEC_ARM)
    set(variants armv8.0_1 armv8.2_1)
else()
    set(variants sse42 haswell alderlake skylakex cascadelake zen4)
endif()
if(PYSELFSPEC_VARIANTS)  # only some, with commas between them: to try a build sooner
    string(REPLACE "," ";" variants "${PYSELFSPEC_VARIANTS}")
    unset(PYSELFSPEC_VARIANTS CACHE)
endif()

get_property(targets DIRECTORY "${PYSELFSPEC_LLAMA_CPP_DIR}/ggml/src" PROPERTY BUILDSYSTEM_TARGETS)
list(FILTER targets INCLUDE REGEX "^ggml-cpu")
list(FILTER targets EXCLUDE REGEX "-feats$")  # feature detection, built for any processor
if(PYSELFSPEC_PORTABLE)
    list(TRANSFORM variants PREPEND ggml-cpu- OUTPUT_VARIABLE cpu_backends)
    # ggml depends on every variant, so the others are built as well, from a tiny source file.
    list(REMOVE_ITEM targets ${cpu_backends})
    foreach(target IN LISTS targets)
        set_property(TARGET ${target} PROPERTY SOURCES "${CMAKE_CURRENT_LIST_DIR}/processor.c")
        set_property(TARGET ${target} PROPERTY COMPILE_OPTIONS "")  # the compiler may not know the processor
        list(REMOVE_ITEM GGML_AVAILABLE_BACKENDS ${target})
    endforeach()
else()
    set(cpu_backends ${targets})
endif()

# Zig's Clang takes the name of a processor where others take that of an architecture.
set(is_zig OFF)
if("${CMAKE_CXX_COMPILER}" MATCHES "zig")
    set(is_zig ON)
endif()
if(PYSELFSPEC_ARM AND is_zig)
    foreach(target IN LISTS cpu_backends)
        get_target_property(options ${target} COMPILE_OPTIONS)
        list(TRANSFORM options REPLACE "^-march=armv8-a" "-mcpu=generic")
        list(TRANSFORM options REPLACE "^-march=armv8\\.([0-9])-a" "-mcpu=generic+v8_\\1a")
        set_property(TARGET ${target} PROPERTY COMPILE_OPTIONS ${options})
    endforeach()
endif()

# The compiler shows which instruction sets the flags of a backend switch on: names in the table that became 1.
function(instruction_sets target result)
    get_target_property(options ${target} COMPILE_OPTIONS)
    list(FILTER options INCLUDE REGEX "^-m")
    # some compilers are a program and its first arguments
    separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_COMPILER_ARG1} ${CMAKE_CXX_FLAGS}")
    execute_process(
        COMMAND ${CMAKE_CXX_COMPILER} ${flags} ${options} -E -P -x c++ "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/needs.h"
        OUTPUT_VARIABLE table
        COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[a-z0-9_]+ = 1" names "${table}")
    list(TRANSFORM names REPLACE " = 1" "")
    string(JOIN " " names ${names})
    set(${result} "${names}" PARENT_SCOPE)
endfunction()

set(cpu_backend_facts "")
foreach(target IN LISTS cpu_backends)
    set(needs "")
    if(NOT MSVC)
        instruction_sets(${target} needs)
    endif()
    string(APPEND cpu_backend_facts "    \"${target}\": \"${needs}\",\n")
endforeach()

add_library(selfspec-processor SHARED "${CMAKE_CURRENT_LIST_DIR}/processor.c")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64" AND NOT MSVC AND NOT is_zig)
    target_compile_options(selfspec-processor PRIVATE -march=x86-64)  # also where CFLAGS say otherwise
endif()
