"""A scripted language model and a sampler for it. Numpy only.

The script is a pure function of the token prefix, so plain decoding has one right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..masks.layer_mask import LayerMask

EOG = 0
N_LAYER = 6
N_EMBD = 3


class Broken(Exception):
    """Raised by a fake when a test makes it fail."""


class FakeFile:
    """The part of GgufFile that costs are estimated from: every sublayer weighs the same."""

    architecture = "fake"
    head_bytes = 1000
    bytes_per_weight = 1.0

    def weight_bytes(self, skip_attn: Iterable[int] = (), skip_ffn: Iterable[int] = ()) -> int:
        n_skipped = len(set(skip_attn)) + len(set(skip_ffn))
        return self.head_bytes + 1000 * (2 * N_LAYER - n_skipped)

    def kv_bytes(self, n_tokens: int, _type_k: str, _type_v: str) -> int:
        return 10 * n_tokens


@dataclass(frozen=True)
class FakeModel:
    """Next-token distributions of the full model and of a draft pass.

    quality: how often the draft's most likely token is the full model's, 0..1.
    end_at: the full model ends the text at this length, prompt included, and nowhere else.
    """

    quality: float = 0.7
    end_at: int | None = None
    seed: int = 0
    n_vocab: int = 11
    n_layer: int = N_LAYER

    draft_mask: ClassVar[LayerMask | None] = None
    own_head: ClassVar[None] = None
    head_fault: ClassVar[str] = ""
    file: ClassVar[FakeFile] = FakeFile()
    fingerprint: ClassVar[str] = "fake"
    vocabulary: ClassVar[str] = "fake tokens"
    n_gpu_layers: ClassVar[int] = 0
    split_mode: ClassVar[str] = "layer"
    main_gpu: ClassVar[int] = 0
    load: ClassVar[str] = "auto"
    rpc: ClassVar[tuple[str, ...]] = ()
    n_positions: ClassVar[int | None] = None

    @cached_property
    def _pairs(self) -> dict[tuple[int, ...], tuple[NDArray[np.float64], NDArray[np.float64]]]:
        return {}

    def _pair(self, prefix: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        key = tuple(prefix)
        if key not in self._pairs:
            rng = np.random.default_rng([self.seed, *key])
            target = rng.dirichlet(np.full(self.n_vocab, 0.5))
            target[EOG] = 0.0
            if len(key) == self.end_at:
                target[EOG] = 2.0
            draft = target.copy()
            if rng.random() >= self.quality:
                draft = np.roll(target, 1 + rng.integers(self.n_vocab - 1))
            self._pairs[key] = target / target.sum(), draft / draft.sum()
        return self._pairs[key]

    def target(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        return self._pair(prefix)[0]

    def draft(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        return self._pair(prefix)[1]

    def masked(self, prefix: Sequence[int], mask: LayerMask) -> NDArray[np.float64]:
        """Return the distribution of a pass with a mask, one for all masks that skip something."""
        return self.draft(prefix)

    def is_eog(self, token: int) -> bool:
        return token == EOG


class FakeSampler:
    """Draws from the distributions of the last batch: greedy, or with a random stream of its own.

    seed: of that stream; None is greedy. fail_at: the n-th draw (from 1) raises Broken.
    """

    def __init__(self, seed: int | None = None, fail_at: int | None = None) -> None:
        self._seed = seed
        self._fail_at = fail_at
        self.n_draws = 0
        self.prompt: list[int] | None = None

    @property
    def n_best(self) -> int:
        return int(self._seed is None)

    def begin(self, prompt: Sequence[int]) -> None:
        self.prompt = list(prompt)
        self.n_draws = 0
        self._rng = np.random.default_rng(self._seed)

    def draw(self, p: NDArray[np.float64]) -> int:
        self.n_draws += 1
        if self.n_draws == self._fail_at:
            raise Broken
        if self._seed is None:
            return int(p.argmax())
        return int(self._rng.choice(len(p), p=p))

    def sample(self, context: Any, row: int) -> int:
        return self.draw(context.probs[row])

    def distribution_of(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the distribution that a sampler with a random stream draws from."""
        weights = np.exp(logits.astype(np.float64) - logits.max())
        distribution: NDArray[np.float64] = weights / weights.sum()
        return distribution

    def accept(self, token: int) -> None:
        """Do nothing: draws do not depend on the text."""


def plain_tokens(
    model: FakeModel,
    prompt: Sequence[int],
    n_predict: int,
    *,
    seed: int | None = None,
    n_ctx: int = 10**9,
    consume: Callable[[int], bool] | None = None,
) -> list[int]:
    """Return the tokens of plain decoding, one at a time: a reference written without the
    package."""
    consume = consume or model.is_eog
    sampler = FakeSampler(seed)
    sampler.begin(prompt)
    text = list(prompt)
    while len(text) < len(prompt) + n_predict and len(text) <= n_ctx:
        text.append(sampler.draw(model.target(text)))
        if consume(text[-1]):
            break
    return text[len(prompt) :]
