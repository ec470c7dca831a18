"""Marks for the tests in pure/ and fake/ that need a library besides NumPy, msgspec and pytest."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


def needs(library: str) -> pytest.MarkDecorator:
    """Skip a test where this library is not installed, unless CI installed the package."""
    missing = find_spec(library) is None and "CI" not in os.environ
    return pytest.mark.skipif(missing, reason=f"{library} is not installed")


filelock = needs("filelock")  # to write files that other processes may read
jinja2 = needs("jinja2")  # to fill in the page of a report
click = needs("click")  # to run commands
