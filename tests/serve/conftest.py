"""Servers of text and of embeddings, and a browser for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from serving import Served

    from pyselfspec import Model


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    """A server of the demo model with two slots."""
    from serving import Capacity, running

    with running(demo, capacity=Capacity(n_ctx=1024, n_slots=2)) as found:
        yield found


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of embeddings."""
    from gguf import PoolingType
    from serving import Capacity, running_embeddings
    from tiny_encoder import write_encoder

    from pyselfspec import Model

    path = tmp_path_factory.mktemp("encoder") / "encoder.gguf"
    write_encoder(path, PoolingType.MEAN)
    with Model(path) as model, running_embeddings(model, capacity=Capacity()) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Skips where there is no Chromium, unless CI is set."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        reason = f"the page is tested in a browser, and there is none of {', '.join(BROWSERS)}"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()
