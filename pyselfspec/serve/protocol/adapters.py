"""The LoRA adapters that a server has loaded, and the scales that requests begin
with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from ...runtime.adapters import Adapters, scaled
from ...runtime.model import Model

N_ADAPTERS = 64  # of a request


class AdapterScale(BaseModel):
    """An adapter and its scale, as in llama-server's API. id: its place on the command line."""

    id: int = Field(ge=0)
    scale: float = Field(allow_inf_nan=False)


class ServedAdapters:
    """The adapters of the served model. defaults: those of requests that name none."""

    def __init__(self, model: Model) -> None:
        self._all = model.adapters
        self.defaults: Adapters = model.default_adapters

    def chosen(self, scales: Sequence[AdapterScale] | None) -> Adapters:
        """Return the adapters of a request; adapters that it leaves out have scale 0.

        Raises ArgumentError for ids that no adapter has.
        """
        if scales is None:
            return self.defaults
        return scaled(self._all, [(each.id, each.scale) for each in scales])

    def cards(self) -> list[dict[str, Any]]:
        """Return the list for GET /lora-adapters."""
        scales = {adapter.id: scale for adapter, scale in self.defaults}
        return [
            {"id": each.id, "path": each.path.name, "scale": scales.get(each.id, 0.0)}
            for each in self._all
        ]
