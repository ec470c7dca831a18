// Preprocessed with the flags of a library: gives "avx2 = 1" where they switch a set on, "avx2 = __AVX2__" where they do not.
#define INSTRUCTION_SET(name, macro, ...) name = macro
#define INSTRUCTION_SET_ARM INSTRUCTION_SET
#include "instruction-sets.h"
