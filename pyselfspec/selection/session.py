"""Everything that scoring masks of a model needs, open: text, context, file of results, objective.

`opened` is what scan() and search() stand on. It knows files and models, but no terminal.
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
from ..costs.calibration import mask_costs
from ..errors import ArgumentError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..masks.profiles import Profile
from ..runtime._lib import BUILD_ID
from ..runtime.context import Context
from ..runtime.model import Model
from ..util import paths
from . import chunks as cutting
from . import objectives, own_text
from .objectives import About, Objective
from .options import Options, Wanted
from .provenance import default_path, header_of
from .report import Point
from .results import ResultFile, Results
from .rounds import Follow, ignore

N_KEPT = 16  # chunks whose K/V is kept for masks that come one by one


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while measuring. path: the file with all results so far, which the next run takes
    up."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"stopped; {path} has the results so far")
        self.path = path


@dataclass(frozen=True, slots=True)
class Session:
    """Open until the ``with`` block of `opened` ends.

    objective_name: as users call it.
    results: scores by mask and chunk; for a timing objective those of agreement, to start from.
    scores: where new scores go.
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

    def known_masks(self) -> list[LayerMask]:
        """What would be drafted with otherwise, so that nothing worse takes its place."""
        masks = (profiles.mask_for(self.model), self.model.draft_mask)
        return list(dict.fromkeys(mask for mask in masks if mask is not None))

    def profile(self, best: Point, source: str) -> Profile:
        """What generate will know of a mask. source: what found it."""
        return Profile(
            model=paths.shown(self.model.path.name),
            fingerprint=self.model.fingerprint,
            mask=best.mask,
            source=f"{source}, {self.results.path.name}",
            version=__version__,
            build=BUILD_ID,
            date=time.strftime("%Y-%m-%d"),
            command=paths.shown(self.command),
            agreement=best.score.agreement,
            n_tokens=best.score.n,
            cost=best.cost,
            speed=best.speed,
            draft_max=best.n_draft,
        )


@contextmanager
def opened(
    model: Model | Context | str | Path,
    objective: str,
    *,
    keep: bool = False,
    follow: Follow = ignore,
    **options: Unpack[Options],
) -> Iterator[Session]:
    """Open the model, cut the text, open or take up the file of results.

    model: a path is opened and closed here; a Context is used as it is, and needs room, see
        objectives.Setting.
    keep: keep the K/V of all chunks where the objective can use it, for masks that come one by one.

    Raises ArgumentError for text that cannot be scored, ResultFileError for a file of results that
    cannot be used, Interrupted for Ctrl-C, and the errors of Model and Context.
    """
    wanted = Wanted(**options)
    factory = objectives.load(objective)
    about = factory.about
    text = cutting.text_of(wanted.text, wanted.text_name)
    with ExitStack() as stack:
        if isinstance(model, str | Path):
            model = stack.enter_context(Model(model))
        loaded = model.model if isinstance(model, Context) else model
        n_chunks = about.n_chunks if wanted.chunks is None else wanted.chunks
        cut = _cut(loaded, text.content, wanted.n_ctx, n_chunks)
        n_kept = min(len(cut), N_KEPT) if keep and about.counts_drafts else 1
        room = _room(about, len(cut[0]), n_kept, wanted.window)
        context = _context(model, room, wanted.context, stack)
        seed = wanted.seed if about.writes_text and wanted.text is None else None
        command = shlex.join(sys.argv) if wanted.command is None else wanted.command
        header = header_of(context, about, len(cut[0]), wanted.window, text, seed, command)
        results = stack.enter_context(ResultFile(wanted.out or default_path(header), header))
        try:
            if seed is not None:
                cut = own_text.written(context, cut, seed, results, follow)
            costs = mask_costs(context)
            setting = objectives.Setting(
                context, cut, costs, wanted.window, n_kept, wanted.cache_bytes, wanted.seed
            )
            yield Session(
                context=context,
                objective_name=objectives.FORMER.get(objective, objective),
                objective=factory(setting),
                results=results,
                scores=results if about.kept else Results(),
                costs=costs,
                texts=cut,
                seed=wanted.seed,
                command=command,
            )
        except KeyboardInterrupt:
            raise Interrupted(results.path) from None


def _cut(model: Model, text: str, n_ctx: int | None, n_chunks: int) -> list[tuple[int, ...]]:
    """The chunks to score, as token ids."""
    model.require_tokenizer("scans need one to read text")
    size = min(cutting.N_CHUNK, model.n_ctx_train) if n_ctx is None else n_ctx
    tokens = model.first_tokens(text, size * max(1, n_chunks), parse_special=False)
    cut = cutting.cut(tokens, size, model.start_token)
    if not 1 <= n_chunks <= len(cut):
        raise ArgumentError(
            f"the text has {len(cut)} chunks of {size} tokens, {n_chunks} are asked for; "
            "give a longer text, fewer chunks or a smaller n_ctx"
        )
    return cut[:n_chunks]


def _room(about: About, n_ctx: int, n_kept: int, window: int) -> dict[str, int]:
    """What a context needs, as options of Context."""
    n_window = window if about.results == "agreement" else 0
    n_free = n_ctx  # for strategies that look at the text themselves
    return {
        "n_ctx": n_kept * n_ctx + n_window + n_free,
        "n_batch": max(min(n_ctx, cutting.N_CHUNK), n_kept + 1),
        "n_seq_max": n_kept + 1,
    }


def _context(
    model: Model | Context, room: Mapping[str, int], options: Mapping[str, Any], stack: ExitStack
) -> Context:
    """The context given, or a new one that closes with the stack."""
    if isinstance(model, Model):
        return stack.enter_context(model.context(**{**options, **room}))
    for name, needed in room.items():
        if getattr(model, name) < needed:
            raise ArgumentError(
                f"scoring these masks needs a context with {name} of {needed} or more, got "
                f"{getattr(model, name)}; or give the model instead of a context"
            )
    return model
