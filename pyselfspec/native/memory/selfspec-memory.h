// What ggml asks of us when it allocates. Part of ggml-base, and in C, as the place that calls it may be.

#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Large pages for a buffer, before it is first written, where the system gives them to those who ask.
void selfspec_prefer_huge_pages(void * data, size_t size);

#ifdef __cplusplus
}
#endif
