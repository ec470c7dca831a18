"""A Python for 64-bit ARM from Debian's packages, which an emulator runs on this machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import click

from .environment import Environment, say_seconds
from .targets import TARGETS, the_wheel

QEMU = "qemu-aarch64"
TARGET = TARGETS["aarch64"]
# emulated processor -> what it has, for people, and the variant that must be chosen there
PROCESSORS = {
    "cortex-a72": ("armv8.0", "armv8.0_1"),
    "neoverse-n1": ("dotprod", "armv8.2_1"),
    "max,pauth=off": ("all sets", "armv8.2_1"),
}
PYTHON = "3.11"  # Debian 12's
# what Python and its modules in C are linked with
PACKAGES = (
    f"python{PYTHON}-minimal libpython{PYTHON}-minimal libpython{PYTHON}-stdlib libc6 libgcc-s1 "
    "libstdc++6 zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1"
).split()


@contextmanager
def installed(folder: Path) -> Iterator[Environment]:
    """An environment for QEMU, which must run its Python; pip runs on this machine."""
    for program in (QEMU, "apt-get", "dpkg"):
        if which(program) is None:
            raise click.ClickException(f"{program} is not installed; use Debian, with qemu-user")
    wheel = the_wheel(folder, TARGET)
    with tempfile.TemporaryDirectory() as temporary:
        system, site = Path(temporary, "system"), Path(temporary, "site")
        unpack(system)
        begun = time.monotonic()
        options: list[str | Path] = [
            "--quiet",
            "--no-index",
            "--find-links",
            folder,
            "--only-binary=:all:",
        ]
        options += ["--python-version", PYTHON, "--target", site]
        for name in TARGET.platforms:
            options += ["--platform", name]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], check=True)
        say_seconds(wheel, time.monotonic() - begun)
        variables = {
            "QEMU_LD_PREFIX": str(system),
            "PYTHONHOME": str(system / "usr"),
            "PYTHONPATH": str(site),
            "HOME": temporary,
            "PATH": str(system / "usr/bin"),
        }
        yield Environment((system / f"usr/bin/python{PYTHON}",), variables)


def unpack(system: Path) -> None:
    """Get Debian's packages for ARM, which apt must know as an architecture, into a folder."""
    packages = system / "packages"
    packages.mkdir(parents=True)
    wanted = [f"{name}:arm64" for name in PACKAGES]
    run = subprocess.run(
        ["apt-get", "download", "-q", *wanted], cwd=packages, capture_output=True, text=True
    )
    if run.returncode:
        raise click.ClickException(
            f"apt-get: {run.stderr.strip().splitlines()[-1]}; "
            "run dpkg --add-architecture arm64 and apt-get update"
        )
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, system], check=True)
