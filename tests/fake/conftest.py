"""Facts that generation asks of a build, for a checkout without one."""

from pyselfspec.errors import LibraryError
from pyselfspec.runtime.ffi import devices
from pyselfspec.util import build

try:
    build.BUILD_ID  # noqa: B018
except LibraryError:
    # before the tests import what imports these by name
    build.BUILD_ID = "none"
    devices.gpus = tuple
    devices.system_info = str
