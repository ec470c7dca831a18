"""pyselfspec models: download, list, describe, convert and edit model files."""

from __future__ import annotations

from .._folder import CommandFolder

command = CommandFolder(package=__name__, help="Download, list, describe, convert and edit models.")
