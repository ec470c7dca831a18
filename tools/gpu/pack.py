"""Packs what first_hour.sh needs on a machine without a network.

    python tools/gpu/pack.py

The patched llama.cpp source as one archive, and the wheels of what a machine with PyTorch does not
have. Copy the checkout with this folder in it, then run tools/gpu/first_hour.sh there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import click

sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vendor"))

from source import Project, SourceError
from tools import vendor

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "gpu_pack"
PYTHONS = ("3.11", "3.12", "3.13")
BESIDES = ("pytest", "ninja")


def requirements(root: Path) -> list[str]:
    """Return what the package needs to be built, to run and to be tested, without pip itself."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    named = [*project["build-system"]["requires"], *project["project"]["dependencies"], *BESIDES]
    return [name for name in named if name != "pip"]


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"pip says: {done.stderr.strip().splitlines()[-1]}")


def collect(project: Project, folder: Path, pythons: list[str], with_numpy: bool) -> None:
    """Wheels of all requirements for this platform and each Python into ``folder``."""
    needed = requirements(project.root)
    pip("wheel", "--find-links", str(folder), "-w", str(folder), *needed)
    for python in pythons:
        only = ("--only-binary=:all:", "--python-version", python, "--find-links", str(folder))
        pip("download", *only, "--dest", str(folder), *needed)
    if not with_numpy:  # PyTorch's machine has it, and it weighs more than all others together
        for wheel in folder.glob("numpy-*.whl"):
            wheel.unlink()


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=FOLDER)
@click.option("--python", "pythons", multiple=True, default=PYTHONS, help="Versions to pack for.")
@click.option("--numpy", "with_numpy", is_flag=True, help="Pack numpy, too.")
def main(folder: Path, pythons: tuple[str, ...], with_numpy: bool) -> None:
    """Write source.tar.xz, requirements.txt and wheels/ to FOLDER."""
    project = Project(ROOT)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".gpu_pack-", dir=folder.parent) as unfinished:
            made = Path(unfinished) / "pack"
            wheels = made / "wheels"
            wheels.mkdir(parents=True)
            vendor.write_archive(project, made / "source.tar.xz")
            collect(project, wheels, list(pythons), with_numpy)
            (made / "requirements.txt").write_text("\n".join(requirements(ROOT)) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(made, folder)
    except SourceError as error:
        raise click.ClickException(str(error)) from None
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    click.echo(f"{folder}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
