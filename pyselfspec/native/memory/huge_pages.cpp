// A pass over one token reads every weight once, a new page of 4 kB every few hundred nanoseconds, and translating their
// addresses takes up to a tenth of its time. Most Linux distributions give pages of 2 MB only to memory marked for them.

#include "selfspec-memory.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

void selfspec_prefer_huge_pages(void * data, size_t size) {
#if defined(MADV_HUGEPAGE)
    constexpr uintptr_t PAGE = 2u << 20;

    const uintptr_t first = ((uintptr_t) data + PAGE - 1)/PAGE*PAGE;
    const uintptr_t end   = ((uintptr_t) data + size)/PAGE*PAGE;
    if (data && first < end) {
        madvise((void *) first, end - first, MADV_HUGEPAGE); // a hint: the system may ignore it
    }
#else
    (void) data;
    (void) size;
#endif
}
