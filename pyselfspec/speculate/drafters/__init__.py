"""Drafters: cheap ways to draft the next tokens. One file each; the file name is the name users
give.

A drafter is a module with two names: ``Options``, a frozen dataclass whose fields users set as ``-o
key=value``, and ``make(context, options)``, which returns a ``Drafter``. It may have a third:
``suggested(context, mask)``, the options with which it would draft by itself. Where the first field
of the options is a path, users may write it behind the name, as in ``model:small.gguf``; where that
field is called ``path``, also the name of a model, as hub has them. The command line, the
conformance suite in pyselfspec.testing and the benchmarks find the modules of this folder by name,
and those of other packages through the entry-point group "pyselfspec.drafters".

Drafters can be joined, see joined.py: those that look tokens up come first, one that needs passes
goes on behind what they found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, get_type_hints, runtime_checkable

from ...costs.table import CostTable
from ...errors import ArgumentError
from ...hub import named_path
from ...util import by_name
from ..draft_names import Named
from ..requests import Work, timed
from ..types import Draft, DraftLimit, Verdict

if TYPE_CHECKING:
    from ...masks.layer_mask import LayerMask
    from ...runtime.context import Context
    from ...runtime.kv import KVSequence
    from ...runtime.passes import Hidden

ENTRY_POINTS = "pyselfspec.drafters"
MODEL_FIELD = "path"  # what a first field is called that may also be a model's name


class Drafter(Protocol):
    """Drafts for one text at a time. Life cycle: ``begin`` once per text, then ``draft`` and
    ``accept`` in turn, one pair per step; ``close`` at the end.

    When ``draft`` is over, whichever way, a drafter holds no K/V cells of its own and the text's
    sequence is as it was; or the draft's verification pass enters behind shared blocks, and the
    sequence holds the rows to verify as well.
    """

    @property
    def mask(self) -> LayerMask | None:
        """What drafts skip of the model; None where they run no part of it."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its costs depend on besides model, machine and context, ready for JSON: its name,
        its options. Calibrations are kept by it."""

    def costs(self) -> CostTable:
        """What its draft tokens, and verification passes after them, are expected to cost."""

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        """A new text starts with these tokens; the sequence holds all but the last."""

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        """At most ``limit.n_max`` tokens to follow history, and siblings of them as far as
        ``limit.n_siblings`` allows; none where n_max is 0.

        history: the text's own list, which grows from step to step. The sequence holds all of it
            but the last token.

        Called before every step. Passes of the context are asked for by yielding requests, see
        requests.py; a drafter that needs none returns its draft.
        """

    def accept(self, verdict: Verdict) -> None:
        """What became of the last draft."""

    def close(self) -> None:
        """Free what was opened for drafting."""


class Guesses(NamedTuple):
    """Tokens that were looked up to follow a text, and the chance of each to be right if those
    before it are."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()

    @property
    def n_expected(self) -> float:
        """Tokens that are expected to be right."""
        return float(sum(accumulate(self.chances, mul)))


@runtime_checkable
class Lookup(Drafter, Protocol):
    """A drafter without passes: what it knows is free, so it can be asked before it is decided who
    drafts. Its ``draft`` is ``limit.cut(*self.guesses(history, limit.n_looked_up))``."""

    def guesses(self, history: Sequence[int], n_max: int) -> Guesses:
        """At most n_max tokens. Called once per step, also where n_max is 0: so that it can learn
        from what came."""


@runtime_checkable
class GoesOn(Drafter, Protocol):
    """A drafter with passes that can go on behind tokens of another."""

    def draft_behind(
        self, copied: Draft, history: Sequence[int], limit: DraftLimit
    ) -> Draft | Work[Draft]:
        """As ``draft``; the draft begins with these tokens, which the limit does not count."""


@runtime_checkable
class Hears(Drafter, Protocol):
    """A drafter that learns from what the full model would have said behind any token of a draft,
    also behind one that was rejected."""

    def hear(self, draft: Draft, verdict: Verdict, rows: range, best: Callable[[int], int]) -> None:
        """After a draft was verified, before ``accept``.

        rows: of these the full model can be asked: 0 is the last token of the text, i + 1 is draft
            token i. Those of the last pass, which are all but for drafts wider than a pass.
        best: its most likely token after a row. Only until this returns; some 10 microseconds for
            50,000 tokens of vocabulary.
        """


@runtime_checkable
class Follows(Drafter, Protocol):
    """A drafter that reads states of the model's own passes over the text."""

    @property
    def leave(self) -> tuple[int, ...]:
        """The blocks whose entering states the passes are to leave, see Pass; () for none."""

    def known(self, seq: KVSequence, history: Sequence[int]) -> int:
        """How many tokens at the beginning of this text, at most all but the last, it has seen the
        states of. A sequence that holds more is evaluated anew from there on."""

    def saw(self, seq: KVSequence, pos: int, tokens: Sequence[int], states: Hidden) -> None:
        """A pass over these tokens of the text, from this position on, left these states, the
        blocks side by side. All are the prompt's; or the first one is the text's last token, the
        others are draft tokens that may yet be rejected.

        Called before ``begin`` for the prompt.
        """


def follower(drafter: Drafter | None) -> Follows | None:
    """The drafter, if it reads states."""
    return drafter if isinstance(drafter, Follows) and drafter.leave else None


def drafted(drafter: Drafter, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
    """A draft with its source and the time that it took, whether the drafter needs passes or
    not."""
    start = time.perf_counter_ns()
    draft = drafter.draft(history, limit)
    us = (time.perf_counter_ns() - start) // 1000
    if not isinstance(draft, Draft):
        draft, work_us = yield from timed(draft)
        us += work_us
    if not draft.n_proposed:
        return draft
    sources = draft.sources or (name_of(drafter),) * len(draft.tokens)
    return replace(draft, draft_us=draft.draft_us or max(1, us), sources=sources)


def name_of(drafter: Drafter) -> str:
    return str(drafter.identity["drafter"])


class DrafterModule(Protocol):
    """What a drafter's file offers."""

    @property
    def Options(self) -> type[Any]:
        """A frozen dataclass. Every field has a default, but for the first where that is a path
        without which the drafter is nothing."""

    def make(self, context: Context, options: Any) -> Drafter:
        """A drafter for texts in this context. Called for every text: what takes long to make is
        made once for all of them, see Context.once.

        Raises ArgumentError or UnsupportedError for options that do not go with the context.
        """


def names() -> tuple[str, ...]:
    """Names of all drafters, as the command line spells them."""
    return by_name.names(__path__, ENTRY_POINTS)


def load(name: str) -> DrafterModule:
    """The module of a drafter. Raises ArgumentError for a name that no file has."""
    module: DrafterModule = by_name.load(__name__, "drafter", name, ENTRY_POINTS)
    return module


def takes_file(name: str) -> bool:
    """Whether this drafter can be given a file."""
    return _file_field(load(name).Options) is not None


def needs_file(name: str) -> bool:
    """Whether this drafter is nothing without a file."""
    field = _file_field(load(name).Options)
    return field is not None and field.default is MISSING


def options_of(drafter: Named, **values: Any) -> Any:
    """The ``Options`` of a drafter that was named, with its file and these values of its fields.

    Raises ArgumentError where it needs a file and has none, where it takes none or has two, and
    what its options raise.
    """
    name, file = drafter
    options = load(name).Options
    field = _file_field(options)
    if file is not None:
        if field is None:
            raise ArgumentError(f"the drafter {name} takes no file, got {name}:{file}")
        path = Path(os.path.expanduser(file))  # no shell does
        if field.name == MODEL_FIELD and path == Path(file):
            path = named_path(file)
        given = values.get(field.name)
        if given not in (None, path):
            raise ArgumentError(f"the drafter {name} is given two files, {file} and {given}")
        values[field.name] = path
    missing = field is not None and values.get(field.name, field.default) is MISSING
    if missing or file == "":
        raise ArgumentError(f"the drafter {name} needs a file: {name}:FILE")
    return options(**values)


def _file_field(options: type[Any]) -> Field[Any] | None:
    """The first field, if that is a path."""
    first = next(iter(fields(options)), None)
    if first is None:
        return None
    kind = get_type_hints(options)[first.name]
    return first if Path in getattr(kind, "__args__", (kind,)) else None


def suggested(context: Context, mask: LayerMask | None) -> dict[str, Any]:
    """Those of this package's drafters that would draft by themselves in this context, and their
    options.

    mask: what is known to be worth skipping, see masks.profiles.
    """
    found = {}
    for name in by_name.names(__path__):
        suggest = getattr(load(name), "suggested", None)
        options = suggest(context, mask) if suggest is not None else None
        if options is not None:
            found[name] = options
    return found
