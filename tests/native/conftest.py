"""On a machine with a GPU, drafts are verified row by row, so that texts can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def exact_on_devices() -> Iterator[None]:
    """Make contexts exact, see open_context; nothing changes where only the CPU computes."""
    from pyselfspec import Context, Model
    from pyselfspec.runtime.ffi import devices

    make = Model.context

    def context(self: Model, **options: Any) -> Context:
        return make(self, **({"exact": True} | options))

    with pytest.MonkeyPatch.context() as patch:
        if devices.gpus():
            patch.setattr(Model, "context", context)
        yield
