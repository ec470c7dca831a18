"""Texts of grammars: whether one accepts a text, and texts drawn from one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from pyselfspec import Model
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.json_schema import to_gbnf
from pyselfspec.runtime.sampling import Sampler, SamplingParams

CLOSING = (b'"', b"}", b"]")


def of_bytes(model: Model, text: str) -> list[int]:
    """A text as tokens of one byte each."""
    tokens = {model.piece(token): token for token in range(model.n_vocab)}
    return [tokens[bytes([each])] for each in text.encode()]


def end_of(model: Model) -> int:
    """A token that ends a text."""
    return next(token for token in range(model.n_vocab) if model.is_eog(token))


def accepts(model: Model, rules: str, text: str) -> bool:
    """Whether a grammar accepts a text, byte by byte, and lets it end there."""
    with Sampler(model, SamplingParams(0.0, grammar=rules)) as sampler:
        try:
            for token in [*of_bytes(model, text), end_of(model)]:
                sampler.accept(token)
        except ArgumentError:
            return False
    return True


def writes(model: Model, schema: dict[str, Any], text: str) -> bool:
    """Whether the schema's grammar accepts a text."""
    return accepts(model, to_gbnf(schema), text)


def drawn(model: Model, rules: str, seed: int, n_tokens: int) -> str | None:
    """A text that a model without any preference but for closing brackets writes under a grammar;
    None if it does not end within n_tokens."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((n_tokens, model.n_vocab)).astype(np.float32)
    pieces = [model.piece(token) for token in range(model.n_vocab)]
    logits[:, [each in CLOSING for each in pieces]] += random.Random(seed).choice((2, 4, 6))
    logits[:, [not each for each in pieces]] = -np.inf  # control tokens have a text in grammars
    logits[:, end_of(model)] = 10
    written = b""
    params = SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed, grammar=rules)
    with Sampler(model, params) as sampler:
        for row in logits:
            token = sampler.sample_logits(row)
            if model.is_eog(token):
                return written.decode()
            written += pieces[token]
    return None
