"""Facts that generation asks of a build, for a checkout without one."""

import pytest

from pyselfspec.errors import LibraryError
from pyselfspec.runtime.ffi import devices, ngram_calls
from pyselfspec.util import build

try:
    build.BUILD_ID  # noqa: B018
except LibraryError:
    # before the tests import what imports these by name
    build.BUILD_ID = "none"
    devices.gpus = tuple
    devices.system_info = str
    ngram_calls.init = lambda *_: pytest.skip("indexes of n-grams need the built library")
