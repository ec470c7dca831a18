"""A server in a thread of the tests, on a port of the loopback, and what clients do with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai

from pyselfspec import Model
from pyselfspec.serve import server
from pyselfspec.serve.service import Service
from pyselfspec.serve.settings import Capacity, Settings
from pyselfspec.speculate.config import DraftConfig

ENDLESS = "root ::= [a-z ] root"  # a text that ends at its limit only
PATIENCE_S = 60.0


@dataclass
class Served:
    """A running server."""

    service: Service
    url: str
    client: httpx.Client  # one for all: to make one takes longer than most answers

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=key, max_retries=0, http_client=self.client
        )

    def anthropic(self, key: str = "none") -> anthropic.Anthropic:
        """Return a client that refuses responses which are not as the API's types say."""
        return anthropic.Anthropic(
            base_url=self.url,
            api_key=key,
            max_retries=0,
            timeout=PATIENCE_S,
            _strict_response_validation=True,
        )

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(f"{self.url}{path}", json=body, **options)

    def metric(self, name: str) -> float:
        """The sum of its samples."""
        lines = self.client.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def until(self, is_so: Callable[[], bool]) -> None:
        """Ask again and again; every question is a request, so no time is lost asleep."""
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end, "it never came"
            self.client.get(f"{self.url}/health")


def new_client() -> httpx.Client:
    """Open a client for the loopback interface, without certificates."""
    return httpx.Client(timeout=PATIENCE_S, verify=False, trust_env=False)


@contextmanager
def running(
    model: Model,
    *,
    capacity: Capacity,
    template: str | None = "chatml",
    drafting: DraftConfig | None = None,
    mmproj: Path | None = None,
    **settings: Any,
) -> Iterator[Served]:
    with (
        server.open_service(
            model,
            Settings("demo", **settings),
            capacity=capacity,
            drafting=drafting or DraftConfig(),
            template=template,
            mmproj=mmproj,
            n_threads=1,
        ) as service,
        _listening(service) as served,
    ):
        yield served


@contextmanager
def running_embeddings(model: Model, *, capacity: Capacity, **options: Any) -> Iterator[Served]:
    """Yield a server of embeddings, as running() does one of text."""
    settings = Settings("demo")
    with (
        server.open_embedding_service(
            model, settings, capacity=capacity, n_threads=1, **options
        ) as service,
        _listening(service) as served,
    ):
        yield served


@contextmanager
def _listening(service: Any) -> Iterator[Served]:
    ready = threading.Event()
    with server.open_listener("127.0.0.1", 0) as listener:
        web = server.make_server(service, listener, grace_s=0, ready=ready.set)
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert ready.wait(PATIENCE_S)
            with new_client() as client:
                yield Served(service, f"http://127.0.0.1:{listener.getsockname()[1]}", client)
        finally:
            web.should_exit = True
            thread.join()
