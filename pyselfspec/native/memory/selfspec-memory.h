// What llama.cpp tells the system about memory. Declared in C because the caller may be C.

#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Marks a buffer of `size` bytes for huge pages, if the system supports that. Call it before the buffer is first written. Part of
// ggml-base.
void selfspec_prefer_huge_pages(void * data, size_t size);

// Removes the pages of a mapped file within these `size` bytes from the process, if the system supports that. Reading them brings
// them back. Part of libllama.
void selfspec_unmap_pages(const void * data, size_t size);

#ifdef __cplusplus
}
#endif
