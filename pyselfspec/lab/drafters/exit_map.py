"""Draft with the first blocks and a linear map from their states to the states that the last
feed-forward sublayer reads, so that drafts skip everything in between.

Yom Din et al., "Jump to Conclusions: Short-Cutting Transformers With Linear Transformations",
https://arxiv.org/abs/2303.09435, map to the state after the last block. Here the
last feed-forward sublayer runs after the map: it costs the bytes of one sublayer, and a pass can
enter there. The map is fitted in closed form: ridge regression over the tokens of a text, each
weighted by the size of its target state, since the head normalizes states.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ...costs.lookup import costs_with_mask
from ...costs.table import CostTable
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...runtime.passes import Hidden, Pass, Rows
from ...speculate.context_state import kept
from ...speculate.drafters.layer_skip.shared_blocks import SharedBlocks
from ...speculate.limits import DraftLimit, Pick
from ...speculate.pass_requests import PassRequest, Work
from ...util import build, records
from ...util.files import require_no_model
from ..early_exit import EarlyExitDrafter

RIDGE = 1e-3  # of the mean square of a value; ten times more or less is the same within 1 %
N_TOKENS_MIN = 8  # tokens to fit on, per value of a state
N_CHUNK = 256  # tokens that see each other while fitting


@dataclass(frozen=True, slots=True)
class Options:
    """map: file that tools/fit_exit_map.py wrote.
    mask: the early exit of that map; None: the exit that the file names.
    """

    map: Path
    mask: LayerMask | None = None


@dataclass(frozen=True, slots=True)
class ExitMap:
    """fingerprint: of the model. matrix: float16 [n_embd, n_embd], little-endian: states times it.
    n_tokens, text, version, build, date: what it was fitted on, and by what."""

    FORMAT: ClassVar[int] = 1

    model: str  # file name
    fingerprint: str
    exit_layer: int
    n_embd: int
    n_tokens: int
    text: str
    version: str
    build: str
    date: str
    sha256: str  # of the matrix
    matrix: bytes

    def __post_init__(self) -> None:
        if len(self.matrix) != 2 * self.n_embd**2:
            raise ArgumentError("the matrix has another size than n_embd says")
        if hashlib.sha256(self.matrix).hexdigest() != self.sha256:
            raise ArgumentError("the matrix is damaged")

    def weights(self) -> NDArray[np.float32]:
        """The matrix, float32 [n_embd, n_embd]."""
        found = np.frombuffer(self.matrix, "<f2").astype(np.float32)
        return found.reshape(self.n_embd, self.n_embd)


def save(path: Path, found: ExitMap) -> None:
    """Raises ArgumentError for a path that cannot be a file, or is a model's."""
    require_no_model(path)
    records.save(path, found)


def load(path: Path, context: Context, mask: LayerMask | None = None) -> ExitMap:
    """Return the map in a file, for drafts of this context with this mask.

    Raises ArgumentError for a file that is no map, or one of another model or exit; OSError for one
    that cannot be read.
    """
    fix = "fit one with tools/fit_exit_map.py"
    found = records.load(path, ExitMap, what="map of an exit", fix=fix)
    if found.fingerprint != context.model.fingerprint or found.n_embd != context.model.n_embd:
        raise ArgumentError(f"{path} was fitted for another model ({found.model}); {fix}")
    n_layer, after = context.model.n_layer, found.exit_layer
    if not 1 <= after < n_layer - 1 or mask not in (None, LayerMask.early_exit(n_layer, after)):
        raise ArgumentError(
            f"{path} is the map of an exit after {after} blocks; draft with that exit, or {fix}"
        )
    return found


def require_jump(context: Context, exit_layer: int) -> None:
    """Raise ArgumentError where passes cannot leave there and enter before the last feed-forward
    part."""
    last = context.model.n_layer - 1
    support = context.mask_support
    skips = frozenset(range(last)) <= support.attn & support.ffn and last in support.attn
    if not (skips and exit_layer < last and all(map(context.can_enter, {exit_layer, last}))):
        raise ArgumentError(
            f"architecture {context.model.file.architecture}: passes cannot jump from block "
            f"{exit_layer} to the last one, so an exit there has no map"
        )


def jump_mask(n_layer: int) -> LayerMask:
    """All but the last feed-forward part."""
    return LayerMask.skipping(n_layer, attn=range(n_layer), ffn=range(n_layer - 1))


class Jump:
    """Passes of the head over mapped states."""

    def __init__(self, context: Context, found: ExitMap) -> None:
        require_jump(context, found.exit_layer)
        self._weights = found.weights()
        self._mask = jump_mask(context.model.n_layer)
        self.exit_layer = found.exit_layer
        self.sha256 = found.sha256

    def request(
        self, seq: KVSequence, pos: int, token: int, states: Hidden, head: Pass
    ) -> PassRequest:
        """Return a pass of the head after the last of these states, those of a token at this
        position, which the sequence holds. No K/V is written. head: a pass with the output that
        this one needs."""
        mapped = Hidden(states.numpy()[-1:] @ self._weights)
        what = Pass(self._mask, mapped, head=head.head, among=head.among, in_place=True)
        return PassRequest(Rows.of(seq.seq_id, pos, [token], "last"), what)


def make(context: Context, options: Options) -> ExitMapDrafter:
    path = Path(options.map)

    def create() -> Jump:
        return Jump(context, load(path, context, options.mask))

    return ExitMapDrafter(context, kept(context, Jump, (path, options.mask), create))


class ExitMapDrafter(EarlyExitDrafter):
    """Early-exit drafts whose head reads mapped states."""

    name = "exit-map"

    def __init__(self, context: Context, jump: Jump) -> None:
        super().__init__(context, jump.exit_layer)
        self._jump = jump

    def costs(self) -> CostTable:
        n_layer = self._exit.n_layer  # the last feed-forward sublayer runs
        mask = LayerMask(n_layer, self._exit.skip_attn, self._exit.skip_ffn - {n_layer - 1})
        return costs_with_mask(self._context, mask, shares=True)

    def pick(
        self, pos: int, text: Sequence[int], n_run: int, shared: SharedBlocks, limit: DraftLimit
    ) -> Work[Pick]:
        rows = Rows.of(self._seq.seq_id, pos + n_run, text[n_run:], "none")
        answer = yield PassRequest(rows, shared.below())
        shared.keep(answer.hidden)
        assert answer.hidden is not None
        head = Pass(head=self._context.best_head if limit.draw is None else "logits")
        last = pos + len(text) - 1
        result = yield self._jump.request(self._seq, last, text[-1], answer.hidden, head)
        return limit.select(result, 0)


def fit(context: Context, tokens: Sequence[int], exit_layer: int, text: str) -> ExitMap:
    """The map of an exit, from passes over a text, in sequence 0.

    text: what it is called.

    Raises ArgumentError for a text that is too short, or an exit that cannot have a map.
    """
    model = context.model
    n_embd, n_layer = model.n_embd, model.n_layer
    LayerMask.early_exit(n_layer, exit_layer)  # a number of blocks
    require_jump(context, exit_layer)
    if 2 * n_embd**2 * 4 // 3 > records.MAX_BYTES // 2:
        raise ArgumentError(f"states of {n_embd} values are too many for a map")
    if len(tokens) < N_TOKENS_MIN * n_embd:
        raise ArgumentError(
            f"the text has {len(tokens)} tokens; a map of states of {n_embd} values is fitted on "
            f"{N_TOKENS_MIN * n_embd} or more"
        )
    gram, cross = np.zeros((n_embd, n_embd)), np.zeros((n_embd, n_embd))
    n_chunk = min(N_CHUNK, context.n_batch, context.n_ctx)
    for first in range(0, len(tokens), n_chunk):
        states, wanted = _states(context, tokens[first : first + n_chunk], exit_layer)
        weights = 1 / np.sqrt(np.square(wanted).mean(axis=1, keepdims=True) + 1e-12)
        states, wanted = states * weights, wanted * weights
        gram += states.T @ states
        cross += states.T @ wanted
    gram += RIDGE * np.trace(gram) / n_embd * np.eye(n_embd)
    matrix = np.linalg.solve(gram, cross).astype("<f2").tobytes()
    return ExitMap(
        model=model.path.name,
        fingerprint=model.fingerprint,
        exit_layer=exit_layer,
        n_embd=n_embd,
        n_tokens=len(tokens),
        text=text,
        version=__version__,
        build=build.BUILD_ID,
        date=time.strftime("%Y-%m-%d"),
        sha256=hashlib.sha256(matrix).hexdigest(),
        matrix=matrix,
    )


def _states(
    context: Context, tokens: Sequence[int], exit_layer: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the states after the exit, and the input of the last feed-forward sublayer, each
    float64 [n_tokens, n_embd]."""
    n_layer, seq = context.model.n_layer, context.sequence()
    seq.drop()
    mask = LayerMask.skipping(n_layer, ffn=[n_layer - 1])
    left = context.decode(tokens, mask=mask, hidden_at=(exit_layer, n_layer)).hidden
    seq.drop()
    assert left is not None
    both = left.numpy().astype(np.float64)
    return both[:, : context.model.n_embd], both[:, context.model.n_embd :]
