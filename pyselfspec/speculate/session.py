"""Everything that the texts of one context have in common, in one place: what drafters keep from
text to text, and for how long is simple to say: as long as the context."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.short_list import ShortList
from ..util.closing import Closing

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class SessionState(Closing):
    """The state of one context, closed with it.

    Values that belong to one drafter are of a type of its file, which imports this one.

    setups: `resolve.DraftSetup`, or None for plain decoding, by what a config says of drafters.
    short_lists: likely tokens, by their number.
    ngram_memories: `ngram.index.Memory`, earlier texts, by the options that they depend on.
    corpora: `ngram.corpus.Corpus`, by folder.
    hit_rates: `hit_rates.HitRates` of copies; None until they are needed.
    heads: `head.Heads`, by the file of the draft head; None for the model's own.
    second_models: `reader.SecondModel`, by file and context size.
    shared_tokens: token ids of a second model by those of the model, by the second model's context.
    exits: `lab.drafters.exit_map.Jump`, by the file of the map and the mask that was given.
    """

    setups: dict[Hashable, Any] = field(default_factory=dict)
    short_lists: dict[int, ShortList] = field(default_factory=dict)
    ngram_memories: dict[tuple[bool, Path | None, int], Any] = field(default_factory=dict)
    corpora: dict[Path, Any] = field(default_factory=dict)
    hit_rates: Any = None
    heads: dict[Path | None, Any] = field(default_factory=dict)
    second_models: dict[tuple[Path, int | None], Any] = field(default_factory=dict)
    shared_tokens: dict[Context, dict[int, int]] = field(default_factory=dict)
    exits: dict[tuple[Path, LayerMask | None], Any] = field(default_factory=dict)

    def close(self) -> None:
        """Close the drafters that no text has used, then the second models."""
        with ExitStack() as stack:
            for each in (
                *self.second_models.values(),
                *self.setups.values(),
                *self.corpora.values(),
            ):
                if each is not None:
                    stack.callback(each.close)


def session_of(context: Context) -> SessionState:
    """Return the state of a context, new and empty at the first call. Raises ArgumentError for a
    closed context."""
    state = context.extension
    if state is None:
        state = SessionState()
        context.closes(state)
        context.extension = state
    assert isinstance(state, SessionState)
    return state


def kept(store: dict[K, V], key: K, create: Callable[[], V]) -> V:
    """Return the value under a key, created where there is none. What create raises is not kept."""
    if key not in store:
        store[key] = create()
    return store[key]
