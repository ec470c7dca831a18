"""The pip commands that install this package's extras, for messages about missing libraries."""

from __future__ import annotations

from importlib import metadata


def install_command(extra: str) -> str:
    """Return the command for an extra, such as "serve".

    No index has the package: its name is known to pip only where it is installed. Elsewhere, this
    is a checkout, and pip finds the package in the folder.
    """
    try:
        metadata.distribution("pyselfspec")
    except metadata.PackageNotFoundError:
        return f"pip install '.[{extra}]'"
    return f"pip install 'pyselfspec[{extra}]'"
