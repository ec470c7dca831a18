# Our part of ggml-base, see selfspec-memory.h. mapped_pages.cpp is part of libllama.
target_sources(ggml-base PRIVATE "${CMAKE_CURRENT_LIST_DIR}/huge_pages.cpp")
target_include_directories(ggml-base PRIVATE "${CMAKE_CURRENT_LIST_DIR}")
