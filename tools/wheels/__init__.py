"""Build the wheels for Linux, install them where no compiler is, and try them.

    python tools/wheels.py build FOLDER                 # the wheel, and those of what it needs
    python tools/wheels.py try FOLDER                   # every variant that runs here
    python tools/wheels.py try FOLDER --emulate         # older processors, too
    python tools/wheels.py speed FOLDER MODEL           # every variant against the installed build
    python tools/wheels.py build FOLDER --arch aarch64  # for 64-bit ARM
    python tools/wheels.py try FOLDER --arch aarch64    # under an emulator

`build` needs what pip install '.[wheels]' brings; the compiler is among it. auditwheel says which
systems the wheel runs on.

`try` installs from FOLDER alone, without an index or a compiler, and generates a text from the
command line. It then has every variant that this machine can run write texts, and with --emulate
qemu-user (Debian: qemu-user) the one chosen for each of some older processors. Drafted texts must
be the plain ones wherever the library promises that, and a processor that is too old must get an
error message. qemu has no AVX-512.
"""
