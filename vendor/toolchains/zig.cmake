# Compiles with the Clang that comes in the Python package ziglang, for the machine named by `target`. Included by the other
# files of this folder. The environment variable ZIG names the program; else the package of the Python on PATH has it.
if(NOT DEFINED ENV{ZIG})
    find_program(python NAMES python3 python REQUIRED NO_CMAKE_FIND_ROOT_PATH)
    execute_process(
        COMMAND ${python} -c "import pathlib, ziglang; print(next(pathlib.Path(ziglang.__file__).parent.glob('zig*')).as_posix())"
        OUTPUT_VARIABLE zig OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    set(ENV{ZIG} "${zig}")
endif()

foreach(language C CXX ASM)
    set(command cc)
    if(language STREQUAL "CXX")
        set(command c++)
    endif()
    set(CMAKE_${language}_COMPILER "$ENV{ZIG}" ${command} -target ${target})
    # Archives are made by the program itself; there is no separate ar or ranlib.
    set(CMAKE_${language}_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <OBJECTS>")
    set(CMAKE_${language}_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <OBJECTS>")
    set(CMAKE_${language}_ARCHIVE_FINISH "")
endforeach()
set(CMAKE_AR "$ENV{ZIG}")
set(CMAKE_RANLIB "$ENV{ZIG}")

# No library of the building machine.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set(GGML_OPENMP OFF CACHE BOOL "")  # ggml's own threads compute
endif()
set(GGML_NATIVE OFF CACHE BOOL "")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
