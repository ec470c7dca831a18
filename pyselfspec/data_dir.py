"""Where profiles and scans are kept between runs."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_data_path


def folder(name: str) -> Path:
    """A folder of the user's, which may not exist yet."""
    path: Path = user_data_path("pyselfspec", appauthor=False) / name
    return path
