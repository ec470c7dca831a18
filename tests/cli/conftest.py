"""Fixtures of the command line: a tiny model that chats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyselfspec import Model


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import chat_models

    return chat_models.write(tmp_path_factory.mktemp("chat") / "tiny.gguf", "chatml")


@pytest.fixture(scope="session")
def model(path: Path) -> Iterator[Model]:
    from pyselfspec import Model

    with Model(path) as model:
        yield model
