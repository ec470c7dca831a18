"""pyselfspec lab: methods that lose in our measurements, for comparisons."""

from __future__ import annotations

from .._folder import CommandFolder

command = CommandFolder(package=__name__, help="Experimental methods, for comparisons.")
