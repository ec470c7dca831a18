"""Targets that wheels are built for, and the command-line options that choose one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
GLIBC = "2_28"  # in the file names of vendor/toolchains, too


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of processor under Linux."""

    arch: str

    @property
    def policy(self) -> str:
        """The platform tag: the oldest system that the wheel runs on."""
        return f"manylinux_{GLIBC}_{self.arch}"

    @property
    def toolchain(self) -> str:
        """Relative to the folder of the CMake project, since the build records it."""
        return f"../../vendor/toolchains/linux-{self.arch}.cmake"

    @property
    def platforms(self) -> tuple[str, ...]:
        """Tags of wheels that run there, for pip on a machine of another kind."""
        newest = int(GLIBC.partition("_")[2])
        numbered = [f"manylinux_2_{n}_{self.arch}" for n in range(newest, 16, -1)]
        return (*numbered, f"manylinux2014_{self.arch}")


TARGETS = {arch: Target(arch) for arch in ("x86_64", "aarch64")}

folder_argument = click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path, resolve_path=True)
)
arch_option = click.option(
    "--arch",
    "target",
    type=click.Choice([*TARGETS]),
    default="x86_64",
    show_default=True,
    callback=lambda context, option, name: TARGETS[name],
)


def the_wheel(folder: Path, target: Target) -> Path:
    """Return our wheel for a target. Raises ClickException where there is none, or several."""
    [*wheels] = folder.glob(f"pyselfspec-*{target.arch}.whl")
    if len(wheels) != 1:
        raise click.ClickException(
            f"{folder} has {len(wheels)} wheels of pyselfspec for {target.arch}; make one with "
            f"python tools/wheels.py build {folder} --arch {target.arch}"
        )
    return wheels[0]
