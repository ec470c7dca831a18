"""Metrics for Prometheus: request counts are kept here, completion counts come from the engine."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .embeddings.embedding_engine import EmbeddingEngine
from .engine.engine import Engine

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one server."""

    def __init__(self, engine: Engine | EmbeddingEngine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine))
        self.requests = Counter(
            "pyselfspec_requests",
            "Requests by path and status.",
            ["path", "status"],
            registry=self._registry,
        )
        self.first_token = Histogram(
            "pyselfspec_first_token_seconds",
            "Seconds from a request to the first text of its answer, including time in the queue.",
            buckets=SECONDS,
            registry=self._registry,
        )
        self.answer = Histogram(
            "pyselfspec_answer_seconds",
            "Seconds from a request to the end of its answer.",
            buckets=SECONDS,
            registry=self._registry,
        )

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _EngineCollector:
    """Reads the engine's counts at every scrape."""

    def __init__(self, engine: Engine | EmbeddingEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        engine, counts = self._engine, self._engine.counts
        for name, help_, gauge in (
            ("texts_running", "Completions being generated.", engine.n_running),
            ("texts_waiting", "Completions waiting for a slot.", engine.n_waiting),
            ("slots", "Completions that can be generated at once.", engine.n_slots),
        ):
            yield GaugeMetricFamily(f"pyselfspec_{name}", help_, gauge)
        for name, help_, count in (
            ("texts", "Completions that have ended.", counts.n_texts),
            ("prompt_tokens", "Prompt tokens.", counts.stats.n_prompt),
            (
                "prompt_tokens_reused",
                "Prompt tokens taken from the KV cache instead of evaluated.",
                counts.stats.n_prompt_reused,
            ),
            ("generated_tokens", "Generated tokens.", counts.stats.n_generated),
            ("passes", "Passes of the model.", counts.n_passes),
            ("cell_moves", "Moves of KV cells to restore their order.", counts.n_moves),
            (
                "disordered_texts",
                "Completions whose KV cells could not be kept in order.",
                counts.n_disordered,
            ),
        ):
            yield CounterMetricFamily(f"pyselfspec_{name}", help_, count)
        kept = engine.prefixes
        if kept is not None:
            yield GaugeMetricFamily(
                "pyselfspec_cache_ram_bytes", "Snapshots kept beyond the context.", kept.n_bytes
            )
            yield CounterMetricFamily(
                "pyselfspec_restored_texts",
                "Completions that began with a snapshot.",
                kept.n_restored,
            )
        drafted = CounterMetricFamily(
            "pyselfspec_drafted_tokens", "Draft tokens by drafter.", labels=["source"]
        )
        accepted = CounterMetricFamily(
            "pyselfspec_accepted_tokens", "Accepted draft tokens by drafter.", labels=["source"]
        )
        for name, stats in list(counts.stats.sources.items()):
            drafted.add_metric([name], stats.n_drafted)
            accepted.add_metric([name], stats.n_accepted)
        yield drafted
        yield accepted
