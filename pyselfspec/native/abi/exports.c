// On Windows with Clang, as with GCC, a library exports every function of its own while none has an export attribute: so does
// upstream's, and so must ours, see SELFSPEC_API. The linker then exports these as well, which belong to the C library and to
// the unwinder of each library: another library could not be linked with its own copy.
__asm__(
    ".section .drectve,\"yni\"\n"
    ".ascii \" -exclude-symbols:atexit,_CRT_INIT,__mingw_module_is_dll,__unw_getcontext,unw_getcontext\"\n"
    ".text\n");
