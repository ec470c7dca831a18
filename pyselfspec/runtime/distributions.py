"""The distributions that sampler chains draw from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .ffi import sampler_calls


def candidates_of(logits: NDArray[np.float32]) -> NDArray[np.void]:
    """Return the tokens that are there, with their logits, of dtype CANDIDATE. Raises DecodeError
    where all logits are -inf."""
    ids = np.flatnonzero(logits != -np.inf)
    if not len(ids):
        raise sampler_calls.not_numbers()
    found = np.zeros(len(ids), sampler_calls.CANDIDATE)
    found["id"], found["logit"] = ids, logits[ids]
    return found


def after(
    samplers: Sequence[int], candidates: NDArray[np.void], n_vocab: int
) -> NDArray[np.float64]:
    """Return the probability of every token after samplers that draw nothing, float64 [n_vocab].

    candidates: of dtype CANDIDATE, changed in place. Raises ArgumentError where no token is left,
    DecodeError for logits that are not numbers.
    """
    has_tokens = candidates["logit"].max(initial=-np.inf) > -np.inf
    left = sampler_calls.apply(samplers, candidates)
    largest = left["logit"].max(initial=-np.inf)
    if not largest > -np.inf:
        raise sampler_calls.no_token_left() if has_tokens else sampler_calls.not_numbers()
    found = np.zeros(n_vocab)
    found[left["id"]] = np.exp(left["logit"].astype(np.float64) - largest)
    found /= found.sum()
    return found


def without_top_choices(candidates: NDArray[np.void], threshold: float) -> NDArray[np.void]:
    """Return a copy of candidates without those of at least this probability, of which the least
    likely one stays."""
    logits = candidates["logit"].astype(np.float64)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    n_top = int((p >= threshold).sum())
    return candidates[order[max(n_top - 1, 0) :]].copy()
