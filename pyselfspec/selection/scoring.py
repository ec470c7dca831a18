"""Opens what scoring masks of a model needs: text, context, file of results, objective.

scan() and search() share it. It uses files and models but no terminal.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from .. import __version__
from ..costs.by_bytes import ByteCosts
from ..costs.lookup import mask_costs
from ..errors import ArgumentError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..masks.profiles import Profile
from ..runtime.context import Context
from ..runtime.model import Model
from ..util import build, paths
from ..util.progress import Interrupted, OnProgress, ignore_progress
from . import chunks as cutting
from . import objectives
from .objectives import About, Objective
from .options import ScanConfig, ScanOptions
from .provenance import default_path, header_of
from .report import Point
from .results import ResultFile, Results
from .self_generated import write_chunks

N_KEPT = 16  # chunks whose K/V is kept for strategies that score one mask at a time


@dataclass(frozen=True, slots=True)
class Scoring:
    """Everything that scoring needs; open until the ``with`` block of `open_scoring` ends.

    results: stored scores by mask and chunk; for objectives that time, those of agreement.
    scores: receives new scores.
    texts: token ids by chunk.
    """

    context: Context
    objective_name: str
    objective: Objective
    results: ResultFile
    scores: Results
    costs: ByteCosts
    texts: Sequence[tuple[int, ...]]
    seed: int
    command: str

    @property
    def model(self) -> Model:
        return self.context.model

    def current_masks(self) -> list[LayerMask]:
        """Return the masks that drafting uses now: a new profile must not be worse than these."""
        masks = (profiles.mask_for(self.model), self.model.draft_mask)
        return list(dict.fromkeys(mask for mask in masks if mask is not None))

    def profile(self, best: Point, source: str) -> Profile:
        """Return the profile of a mask. source: the command that found it."""
        return Profile(
            model=paths.shown(self.model.path.name),
            fingerprint=self.model.fingerprint,
            mask=best.mask,
            source=f"{source}, {self.results.path.name}",
            version=__version__,
            build=build.BUILD_ID,
            date=time.strftime("%Y-%m-%d"),
            command=paths.shown(self.command),
            agreement=best.score.agreement,
            n_tokens=best.score.n,
            cost=best.cost,
            speed=best.speed,
            draft_max=best.n_draft,
        )


@contextmanager
def open_scoring(
    model: Model | Context | str | Path,
    objective: str,
    *,
    keep: bool = False,
    reads_states: bool = False,
    progress: OnProgress = ignore_progress,
    **options: Unpack[ScanOptions],
) -> Iterator[Scoring]:
    """Open the model, split the text, open or resume the file of results.

    model: a path is opened and closed here; a Context must be large enough, see objectives.Setting.
    keep: whether to keep the K/V of all chunks if the objective can use it, for strategies that
        score one mask at a time.
    reads_states: whether the strategy decodes a chunk itself, see strategies.Setting.

    Raises ArgumentError for text that cannot be scored, ResultFileError for a file of results that
    cannot be used, Interrupted for Ctrl-C, and the errors of Model and Context.
    """
    config = ScanConfig(**options)
    factory = objectives.load(objective)
    about = factory.about
    text = cutting.text_of(config.text, config.text_name)
    with ExitStack() as stack:
        if isinstance(model, str | Path):
            model = stack.enter_context(Model(model))
        loaded = model.model if isinstance(model, Context) else model
        n_chunks = about.n_chunks if config.chunks is None else config.chunks
        cut = _cut(loaded, text.content, config.n_ctx, n_chunks)
        n_kept = min(len(cut), N_KEPT) if keep and about.counts_drafts else 1
        needs = _needs(about, len(cut[0]), n_kept, config.window, reads_states)
        context = _context(model, needs, config.context, stack)
        seed = config.seed if about.writes_text and config.text is None else None
        command = shlex.join(sys.argv) if config.command is None else config.command
        header = header_of(context, about, len(cut[0]), config.window, text, seed, command)
        results = stack.enter_context(ResultFile(config.results or default_path(header), header))
        try:
            if seed is not None:
                cut = write_chunks(context, cut, seed, results, progress)
            costs = mask_costs(context)
            setting = objectives.Setting(
                context, cut, costs, config.window, n_kept, config.cache_bytes, config.seed
            )
            yield Scoring(
                context=context,
                objective_name=objective,
                objective=factory(setting),
                results=results,
                scores=results if about.kept else Results(),
                costs=costs,
                texts=cut,
                seed=config.seed,
                command=command,
            )
        except KeyboardInterrupt:
            raise Interrupted(results.path) from None


def _cut(model: Model, text: str, n_ctx: int | None, n_chunks: int) -> list[tuple[int, ...]]:
    """Return the chunks to score, as token ids."""
    model.require_tokenizer("scans need one to tokenize text")
    size = min(cutting.N_CHUNK, model.n_ctx_train) if n_ctx is None else n_ctx
    if model.within_positions(size) < size:
        raise ArgumentError(
            f"n_ctx (--chunk-size) is at most {model.n_positions}, all of the model's positions"
        )
    tokens = model.first_tokens(text, size * max(1, n_chunks), parse_special=False)
    cut = cutting.cut(tokens, size, model.start_token)
    if not 1 <= n_chunks <= len(cut):
        raise ArgumentError(
            f"the text has {len(cut)} chunks of {size} tokens, but chunks is {n_chunks}; "
            "give a longer text, fewer chunks or a smaller n_ctx (--chunk-size)"
        )
    return cut[:n_chunks]


def _needs(
    about: About, n_ctx: int, n_kept: int, window: int, reads_states: bool
) -> dict[str, int]:
    """Return the least sizes of a context, as options of Context. n_ctx: tokens per chunk."""
    n_window = window if about.results == "agreement" else 0
    n_strategy = n_ctx if reads_states else 0
    return {
        "n_ctx": n_kept * n_ctx + n_window + about.n_generated + n_strategy,
        "n_batch": max(min(n_ctx, cutting.N_CHUNK), n_kept + 1),
        "n_seq_max": n_kept + 1,
    }


def _context(
    model: Model | Context, needs: Mapping[str, int], options: Mapping[str, Any], stack: ExitStack
) -> Context:
    """Return the given context, or a new one that closes with the stack."""
    if isinstance(model, Model):
        return stack.enter_context(model.context(**{**options, **needs}))
    given = {"n_ctx": model.n_cells, "n_batch": model.n_batch, "n_seq_max": model.n_seq_max}
    for name, needed in needs.items():
        if given[name] < needed:
            raise ArgumentError(
                f"scoring these masks needs a context with {name} of {needed} or more, got "
                f"{given[name]}; or give the model instead of a context"
            )
    return model
