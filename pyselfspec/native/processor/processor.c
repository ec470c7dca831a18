// Tests whether the processor has an instruction set and the system saves the registers that it uses. A separate library
// without dependencies, compiled for any processor: it is used before any other library is loaded.
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

EXPORT int selfspec_processor_has(const char * instruction_set);

#if defined(__x86_64__) && !defined(_MSC_VER)

#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };
enum { NONE = 0, YMM = 0x06, ZMM = 0xe6 };  // bits of XCR0

static unsigned saved_registers(void) {
    unsigned r[4];
    const unsigned osxsave = 1u << 27;
    if (!__get_cpuid_count(1, 0, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) || !(r[ECX] & osxsave)) {
        return 0;
    }
    unsigned low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" /* xgetbv */ : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int has(unsigned leaf, unsigned subleaf, int reg, int bit, unsigned registers) {
    unsigned r[4];
    return __get_cpuid_count(leaf, subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) && (r[reg] >> bit & 1) &&
           (saved_registers() & registers) == registers;
}

int selfspec_processor_has(const char * instruction_set) {
#define INSTRUCTION_SET(name, macro, leaf, subleaf, reg, bit, registers) \
    if (strcmp(instruction_set, #name) == 0) {                           \
        return has(leaf, subleaf, reg, bit, registers);                  \
    }
#define INSTRUCTION_SET_ARM(...)
#include "instruction-sets.h"
    return 0;
}

#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))

#if defined(__linux__)
#include <sys/auxv.h>

enum { HWCAP = AT_HWCAP, HWCAP2 = AT_HWCAP2 };
enum { LATER, M1 };

static int has(int word, int bit, const char * feature, int generation) {
    (void) feature;
    (void) generation;
    return getauxval((unsigned long) word) >> bit & 1;
}
#else
#include <errno.h>
#include <stdio.h>
#include <sys/sysctl.h>

enum { HWCAP, HWCAP2 };
enum { LATER, M1 };

// A name that the system does not know says nothing of the processor.
static int has(int word, int bit, const char * feature, int generation) {
    (void) word;
    (void) bit;
    char name[64];
    int value = 0;
    size_t size = sizeof(value);
    snprintf(name, sizeof(name), "hw.optional.arm.%s", feature);
    if (sysctlbyname(name, &value, &size, NULL, 0) == 0) {
        return value != 0;
    }
    return errno == ENOENT && generation == M1;
}
#endif

int selfspec_processor_has(const char * instruction_set) {
#define INSTRUCTION_SET(...)
#define INSTRUCTION_SET_ARM(name, macro, word, bit, feature, generation) \
    if (strcmp(instruction_set, #name) == 0) {                           \
        return has(word, bit, feature, generation);                      \
    }
#include "instruction-sets.h"
    return 0;
}

#else

// No instruction sets are required of other processors and systems, see processor.cmake.
int selfspec_processor_has(const char * instruction_set) {
    return instruction_set && 0;
}

#endif
