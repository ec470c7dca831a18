"""pyselfspec layers: find the sublayers that drafts can skip, and manage the masks."""

from __future__ import annotations

from .._folder import CommandFolder

command = CommandFolder(
    package=__name__, help="Find layers that drafts can skip, and manage the masks."
)
