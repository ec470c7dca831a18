"""Tests of the CPU: on a machine with a GPU, models stay off it unless a test says otherwise, since
texts are compared bit for bit. tests/device has those of devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from typed_models import TypedModel


@pytest.fixture(scope="session", autouse=True)
def models_on_the_cpu() -> Iterator[None]:
    from pyselfspec import Model
    from pyselfspec.runtime.ffi import devices

    opened = Model.__init__

    def on_the_cpu(self: Model, path: Path, **options: Any) -> None:
        opened(self, path, **({} if "rpc" in options else {"n_gpu_layers": 0}) | options)

    with pytest.MonkeyPatch.context() as patch:
        if devices.gpus():
            patch.setattr(Model, "__init__", on_the_cpu)
        yield


@pytest.fixture(scope="module")
def typed(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedModel]:
    """Tiny models by architecture and weight type."""
    from typed_models import opened

    with opened(tiny, tmp_path_factory.mktemp("typed")) as models:
        yield models
