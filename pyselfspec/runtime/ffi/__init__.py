"""The only code that talks to C: prototypes, loading of the library, calls, devices."""
