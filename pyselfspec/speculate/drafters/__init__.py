"""Drafters: cheap ways to draft the next tokens. One file or folder each; its name is the name that
users give.

A drafter is a module with two names: ``Options``, a frozen dataclass whose fields users set as ``-o
key=value``, and ``make(context, options)``, which returns a ``Drafter``. It may have a third:
``suggested(context, mask)``, which returns the options to draft with in this context by default, or
None. If the first field of the options is a path, users may write it after the name, as in
``model:small.gguf``; if that field is called ``path``, it may also be the name of a model on a hub.
The command line, the conformance suite in pyselfspec.testing and the benchmarks find the modules of
this folder by name, and those of other packages through the entry-point group
"pyselfspec.drafters".

Drafters can be combined, see _combined.py.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

from ...costs.table import CostTable
from ...errors import ArgumentError
from ...hub import named_path
from ...runtime.passes import FULL
from ...util import plugins
from ..draft_names import Named
from ..limits import DraftLimit
from ..pass_requests import Work, timed
from ..types import Draft, Verdict

if TYPE_CHECKING:
    from ...masks.layer_mask import LayerMask
    from ...runtime.context import Context
    from ...runtime.kv import KVSequence
    from ...runtime.passes import Hidden

ENTRY_POINTS = "pyselfspec.drafters"
MODEL_FIELD = "path"  # name of a first field that may also be the name of a model


class Drafter(ABC):
    """Drafts for one text at a time: ``begin`` once per text, then ``draft`` and ``accept`` in
    turn, one pair per step; ``close`` at the end.

    When ``draft`` has returned or failed, the drafter holds no K/V cells of its own and the text's
    sequence is as it was. The one exception is a draft whose verification pass enters after shared
    blocks: then the sequence also holds the rows to verify.

    name: the name that users give.
    """

    name: str

    def __init__(self, context: Context) -> None:
        self._context = context

    # costs

    @property
    def mask(self) -> LayerMask | None:
        """The sublayers of the model that draft passes skip; None: they run no part of it."""
        return None

    def costs(self) -> CostTable:
        """Return the expected costs of its draft tokens and of verification passes after them. By
        default its tokens cost nothing."""
        from ...costs.lookup import costs_without_passes  # which loads the library

        return costs_without_passes(self._context)

    # drafting

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:  # noqa: B027
        """Begin a text with these tokens; the sequence holds all but the last."""

    @abstractmethod
    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        """Return at most ``limit.n_max`` tokens to follow history; none if n_max is 0. Called
        before every step.

        A drafter that runs passes of the context returns a generator that yields requests for them,
        see pass_requests.py.

        history: the text's own list, which grows from step to step. The sequence holds all of it
            but the last token.
        """

    def extend(
        self, start: Draft, history: Sequence[int], limit: DraftLimit
    ) -> Draft | Work[Draft]:
        """Return a draft that begins with ``start``, whose tokens do not count against the limit.
        By default only an empty start is extended."""
        return start if start.tokens else self.draft(history, limit)

    # what follows from passes

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The blocks whose input states it reads from all passes over the text; () for none."""
        return ()

    def n_seen(self, seq: KVSequence, history: Sequence[int]) -> int:
        """Return the number of tokens at the beginning of this text whose states it has read, at
        most all but the last. The sequence is evaluated anew from there."""
        return len(history) - 1

    def on_hidden(  # noqa: B027
        self, seq: KVSequence, pos: int, tokens: Sequence[int], states: Hidden
    ) -> None:
        """Read the states of a pass over these tokens, one row per token, the blocks of
        ``hidden_layers`` side by side. Called for the prompt before ``begin``, then for each
        verification pass, whose first token is the text's last; its draft tokens may yet be
        rejected.

        pos: position of the first token in the text.
        """

    def on_verified(self, draft: Draft, verdict: Verdict, best: Callable[[int], int]) -> None:  # noqa: B027
        """Learn from the target's logits after any draft token, including rejected ones. Called
        after verification and before ``accept``.

        best: returns the most likely token after a row, 0 for the last token of the text and i + 1
            for draft token i, in about 10 microseconds for a vocabulary of 50,000 tokens. Valid
            until this method returns.
        """

    def accept(self, verdict: Verdict) -> None:  # noqa: B027
        """Learn the verdict on the last draft, after the rejected tokens have left the sequence."""

    def close(self) -> None:  # noqa: B027
        """Free what was opened for drafting."""


class LookupDrafter(Drafter):
    """A drafter without passes. Its tokens cost nothing, so they are looked up before it is decided
    which drafter drafts."""

    @abstractmethod
    def look_up(self, history: Sequence[int], n_max: int, chance_min: float = 0.0) -> Draft:
        """Return a chain of at most n_max tokens, see ``Draft.copied``, each with the probability
        that it is accepted if those before it are. Called once per step, also with an n_max of 0,
        so that the drafter can learn from new tokens.

        chance_min: tokens are of no use where the probability that all so far are accepted is less.
        """

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        found = self.look_up(history, limit.max_lookup, limit.chance_min)
        return limit.truncate(found) if found.tokens else found


def timed_draft(
    drafter: Drafter, history: Sequence[int], limit: DraftLimit, start_ns: int | None = None
) -> Work[Draft]:
    """Return a draft with its duration, and with the drafter's name as the source of tokens that
    have none.

    start_ns: when work on the draft began, by time.perf_counter_ns; None: now.
    """
    start = time.perf_counter_ns() if start_ns is None else start_ns
    found = drafter.draft(history, limit)
    us = (time.perf_counter_ns() - start) // 1000
    if isinstance(found, Draft):
        draft = found
    else:
        draft, work_us = yield from timed(found)
        us += work_us
    us = draft.draft_us or max(1, us)
    if draft.is_empty and draft.verification is FULL:
        return Draft(draft_us=us, catch_up_us=draft.catch_up_us)
    return replace(draft, draft_us=us).with_source(drafter.name)


class DrafterModule(Protocol):
    """The module of a drafter."""

    @property
    def Options(self) -> type[Any]:
        """A frozen dataclass. Every field has a default; a first field that is a path may have
        none, then the drafter needs a file."""

    def make(self, context: Context, options: Any) -> Drafter:
        """Return a drafter for texts in this context. Called for every text, so what takes long to
        make should be made once per context.

        Raises ArgumentError or UnsupportedError for options that the context does not support.
        """


def names() -> tuple[str, ...]:
    """Return the names of this package's drafters, which help texts list."""
    return plugins.names(__path__)


def all_names() -> tuple[str, ...]:
    """Return the names of all drafters, including names that packages register."""
    return plugins.all_names(__path__, ENTRY_POINTS)


def load(name: str) -> DrafterModule:
    """Return the module of a drafter. Raises ArgumentError for an unknown name."""
    module: DrafterModule = plugins.load(__name__, "drafter", name, ENTRY_POINTS)
    return module


def takes_file(name: str) -> bool:
    """Return whether this drafter takes a file."""
    return _file_field(load(name).Options) is not None


def options_of(drafter: Named, **values: Any) -> Any:
    """Return the ``Options`` of a named drafter, with its file and these values of its fields.

    Raises ArgumentError for a missing file, a file that the drafter does not take, or two files,
    and what its options raise.
    """
    name, file = drafter
    options = load(name).Options
    field = _file_field(options)
    if file is not None:
        if field is None:
            raise ArgumentError(f"the drafter {name} takes no file, got {name}:{file}")
        path = Path(os.path.expanduser(file))  # the shell expands no ~ after a colon
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
    """Return the first field if it is a path."""
    first = next(iter(fields(options)), None)
    if first is None:
        return None
    kind = get_type_hints(options)[first.name]
    return first if Path in getattr(kind, "__args__", (kind,)) else None


def suggested(context: Context, mask: LayerMask | None) -> dict[str, Any]:
    """Return the drafters of this package that suit the context, by name, with their options.

    mask: the mask of the model's profile, see masks.profiles.
    """
    found = {}
    for name in plugins.names(__path__):
        suggest = getattr(load(name), "suggested", None)
        options = suggest(context, mask) if suggest is not None else None
        if options is not None:
            found[name] = options
    return found
