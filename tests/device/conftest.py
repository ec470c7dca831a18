"""Tests on a device of its own: a GPU, or Mesa's software device (GGML_VK_VISIBLE_DEVICES=0).

``pytest -m device`` runs them; tools/gpu/first_hour.sh builds for a device first.
"""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """The name of the first device; tests are skipped where there is none."""
    from pyselfspec.runtime.ffi import devices

    found = devices.gpus()
    if not found:
        pytest.skip("the library sees no device; in software GGML_VK_VISIBLE_DEVICES=0 shows it")
    return found[0]
