// Weights that are interleaved or sent to a GPU when a model is loaded are in memory twice: as they are used, and as pages of the
// mapped file. The system would drop those pages when it needs memory, but until then they count as memory of the process.

#include "memory/selfspec-memory.h"

#if defined(__linux__)
#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>
#endif

void selfspec_unmap_pages(const void * data, size_t size) {
#if defined(__linux__)
    const uintptr_t page  = sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t) data + page - 1)/page*page;
    const uintptr_t end   = ((uintptr_t) data + size)/page*page;
    if (first < end) {
        madvise((void *) first, end - first, MADV_DONTNEED); // fails where pages are locked, which therefore stay
    }
#else
    (void) data;
    (void) size;
#endif
}
