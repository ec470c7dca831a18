"""pyselfspec scan-layers: another name of ``layers scan``."""

from .layers.scan import command as command
