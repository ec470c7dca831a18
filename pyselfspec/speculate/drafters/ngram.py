"""Draft what followed the same tokens before: in the prompt, in the text so far, or in an earlier
text.

It costs nothing but look-ups, so it pays wherever a text repeats anything, whatever the model; see
ngrams.py for the papers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...costs.table import CostTable
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from .. import learned, ngram_file
from ..ngrams import LENGTHS, N_TOKENS, Chances, Copy, Memory, NgramIndex
from ..trees import likeliest
from ..types import Draft, DraftLimit, Verdict
from . import Guesses


class TextsWarning(UserWarning):
    """A text that could not be added to the file of earlier ones."""


@dataclass(frozen=True, slots=True)
class Options:
    """chance_min: a draft ends before it is right as a whole less often.
    session: whether to copy from earlier texts of the context, too.
    file: earlier texts of other runs; this run's are added.
    n_kept: tokens of earlier texts that are kept, a kilobyte of memory each.
    n_branches: of a draft: with more than one, its less likely tokens give way to what else has
        followed before. Where other drafters are joined, one.
    """

    chance_min: float = 0.05
    session: bool = True
    file: Path | None = None
    n_kept: int = N_TOKENS
    n_branches: int = 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.chance_min <= 1.0:
            raise ArgumentError(f"chance_min is 0 to 1, got {self.chance_min:g}")
        if not 1 <= self.n_kept <= N_TOKENS:
            raise ArgumentError(f"n_kept is 1 to {N_TOKENS}, got {self.n_kept}")
        if self.n_branches < 1:
            raise ArgumentError(f"n_branches is at least 1, got {self.n_branches}")


def suggested(context: Context, mask: LayerMask | None) -> Options | None:
    """Wherever tokens can be taken back: what is looked up costs nothing."""
    return Options() if context.can_rollback else None


def make(context: Context, options: Options) -> Drafter:
    """Raises ArgumentError for a file that is no file of texts of this vocabulary, and for more
    branches than the context has sequences."""
    if options.n_branches > context.n_seq_max:
        raise ArgumentError(
            f"each branch needs a sequence and the context has {context.n_seq_max}: "
            f"n_branches is at most that, got {options.n_branches}"
        )
    return Drafter(context, options)


class Drafter:
    """Copies, with the chances that it has learned; chances and earlier texts are the context's."""

    mask = None

    def __init__(self, context: Context, options: Options) -> None:
        self._context = context
        self._options = options
        self._index = NgramIndex()
        self._text: Sequence[int] = ()
        self._n_seen = 0  # tokens of the text
        self._copies: list[tuple[Copy, Chances]] = []
        self._chances = learned.copies(context)
        self._siblings = learned.siblings(context)
        self._earlier_chances = learned.earlier_copies(context)
        self._earlier: Memory | None = None
        if options.session or options.file is not None:
            key = ("ngram memory", options.session, options.file, options.n_kept)
            self._earlier = context.once(key, self._remembered)

    def _remembered(self) -> Memory:
        file, n_kept = self._options.file, self._options.n_kept
        if file is None:
            return Memory(n_kept=n_kept)
        model = self._context.model
        return Memory(ngram_file.load(file, model.vocabulary, model.n_vocab), n_kept)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"drafter": "ngram"}

    def costs(self) -> CostTable:
        return learned.costs(self._context, self.identity)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._index = NgramIndex()
        self._text = history
        self._n_seen = 0
        self._copies = []

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        draft = limit.cut(*self.guesses(history, limit.n_looked_up))
        n = len(draft.tokens)
        if self._options.n_branches == 1 or n < 2:
            return draft
        n_branches = min(self._options.n_branches, self._context.n_branches)
        end = history[-LENGTHS[-1] :]
        return likeliest(n, n_branches, lambda path: self._continuations([*end, *path]))

    def _continuations(self, context: Sequence[int]) -> list[tuple[int, float]]:
        """What may follow, each with its chance."""
        context = context[-LENGTHS[-1] :]
        found = self._following(context)
        if found is None:
            return []
        (copy, _), chance = found
        others = self._index.others(context, copy.token, self._options.n_branches - 1)
        return [
            (copy.token, chance),
            *((each.token, (1 - chance) * self._siblings.of(each.match)) for each in others),
        ]

    def guesses(self, history: Sequence[int], n_max: int) -> Guesses:
        """At least one is looked up, to learn from."""
        self._learn(history)
        self._copies = []
        context = list(history[-LENGTHS[-1] :])
        chances: list[float] = []
        all_right = 1.0
        while len(self._copies) < max(1, n_max):
            found = self._following(context)
            if found is None:
                break
            (copy, of_kind), chance = found
            all_right *= chance
            if self._copies and all_right < self._options.chance_min:
                break
            self._copies.append((copy, of_kind))
            chances.append(chance)
            context.append(copy.token)
        tokens = tuple(copy.token for copy, _ in self._copies[:n_max])
        return Guesses(tokens, tuple(chances[:n_max]))

    def _following(self, context: Sequence[int]) -> tuple[tuple[Copy, Chances], float] | None:
        """From the text itself, or from an earlier one that matches longer and is likelier."""
        own = self._index.following(context)
        chance = self._chances.of(own.match) if own else 0.0
        beyond = own.match[0] if own else -1
        other = self._earlier.following(context, beyond) if self._earlier else None
        if other is not None:
            chance_of_other = self._earlier_chances.of(other.match)
            if chance_of_other > chance:
                return (other, self._earlier_chances), chance_of_other
        return None if own is None else ((own, self._chances), chance)

    def _learn(self, history: Sequence[int]) -> None:
        """From the tokens that have come by, whether they had been drafted or only expected."""
        came = history[self._n_seen :]
        n_before, self._n_seen = self._n_seen, len(history)
        for i, ((copy, of_kind), token) in enumerate(zip(self._copies, came, strict=False)):
            of_kind.observe(copy.match, copy.token == token)
            if copy.token != token:
                self._learn_of_others(history[: n_before + i], copy.token, token)
                break
        self._index.extend(came)

    def _learn_of_others(self, context: Sequence[int], wrong: int, token: int) -> None:
        """This token came where another was expected."""
        n = self._options.n_branches - 1
        for other in self._index.others(context[-LENGTHS[-1] :], wrong, n) if n else ():
            self._siblings.observe(other.match, other.token == token)

    def accept(self, verdict: Verdict) -> None:
        pass

    def close(self) -> None:
        """The text is an earlier one from now on."""
        text, self._text = self._text, ()
        if self._earlier is None or not text:
            return
        options, model = self._options, self._context.model
        new = self._earlier.add(text) if options.session else list(text)
        if options.file is None or not new:
            return
        try:
            ngram_file.add(options.file, model.vocabulary, model.n_vocab, new, options.n_kept)
        except (ArgumentError, OSError) as error:  # the text itself is there
            warnings.warn(str(error), TextsWarning, stacklevel=2)
