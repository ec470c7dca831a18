// The function that ggml calls when it allocates a buffer. Part of ggml-base, and declared in C because the caller may be C.

#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Marks a buffer of `size` bytes for huge pages, if the system supports that. Call it before the buffer is first written.
void selfspec_prefer_huge_pages(void * data, size_t size);

#ifdef __cplusplus
}
#endif
