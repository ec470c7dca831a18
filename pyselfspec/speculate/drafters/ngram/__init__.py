"""Draft the tokens that followed the same n-gram before: in the prompt, in the text so far, or in
an earlier text.

It runs no passes, so it pays whenever a text repeats itself, with any model; see
native/ngrams/index.h for the papers.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....costs.chances import LENGTHS
from ....errors import ArgumentError
from ....masks.layer_mask import LayerMask
from ....runtime.context import Context
from ....runtime.kv import KVSequence
from ....runtime.model import Model
from ....runtime.pictures import is_text
from ....util.closable import Closing
from ...branches import likeliest
from ...context_state import kept
from ...hit_rates import hit_rates_of
from ...limits import DraftLimit
from ...types import NO_DRAFT, Draft
from .. import LookupDrafter
from . import file as ngram_file
from .corpus import Corpus
from .index import N_TOKENS, EarlierTexts, NgramIndex

N_CORPORA = 4  # of a context
READS_PICTURES = True  # ids of their rows are never copied


class TextsWarning(UserWarning):
    """The text could not be added to the file of earlier texts."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    chance_min: a draft ends where the probability that all of it is accepted falls below this.
    session: copy from earlier texts of the context, too.
    file: earlier texts of other runs; the texts of this run are added.
    corpus: a folder whose files are copied from, without those that git ignores. It is watched.
    n_kept: most tokens of earlier texts to keep, about 100 bytes of memory each.
    n_branches: most branches of a draft: other continuations replace its less likely tokens. Has no
        effect if drafters are combined, or where several texts share passes.
    """

    chance_min: float = 0.1
    session: bool = True
    file: Path | None = None
    corpus: Path | None = None
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
    """Return options if the memory can remove rejected draft tokens."""
    return Options() if context.abilities.can_draft else None


def make(context: Context, options: Options) -> NgramDrafter:
    """Return a drafter. Raises ArgumentError for a file that does not hold texts of this
    vocabulary, and for more branches than the context has sequences."""
    if options.n_branches > context.n_seq_max:
        raise ArgumentError(
            f"each branch needs a sequence, and the context has {context.n_seq_max}; "
            f"n_branches is at most {context.n_seq_max}, got {options.n_branches}"
        )
    return NgramDrafter(context, options)


class Corpora(Closing):
    """The folders that texts of a context copy from. Of many, the least recently used are given up.
    Thread-safe."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._open: dict[Path, Corpus] = {}  # the latest used last
        self._changing = threading.Lock()

    def open(self, folder: Path) -> Corpus:
        with self._changing:
            if (found := self._open.pop(folder, None)) is not None:
                self._open[folder] = found
                return found
        made = Corpus(folder, self._model)  # others need not wait until its files are read
        with self._changing:
            found = self._open.setdefault(folder, made)
            given_up = [self._open.pop(each) for each in list(self._open)[:-N_CORPORA]]
        for each in given_up:
            each.close()
        return found

    def close(self) -> None:
        for each in self._open.values():
            each.close()


def open_corpus(context: Context, folder: Path) -> Corpus:
    """Return the files of a folder, shared by the texts of a context."""
    return kept(context, Corpora, None, lambda: Corpora(context.model)).open(folder)


class NgramDrafter(LookupDrafter):
    """Copies tokens, with acceptance rates by kind of match. Rates and earlier texts are shared by
    all texts of a context."""

    name = "ngram"

    def __init__(self, context: Context, options: Options) -> None:
        super().__init__(context)
        self._options = options
        self._index = NgramIndex()
        self._text: Sequence[int] = ()
        self._n_seen = 0  # tokens of the text
        self._expected: Sequence[int] = ()  # to follow the text
        rates = hit_rates_of(context)
        self._chances = rates.copies
        self._others = rates.others
        self._earlier_chances = rates.earlier
        self._corpus = None if options.corpus is None else open_corpus(context, options.corpus)
        self._earlier: EarlierTexts | None = None
        if options.session or options.file is not None:
            key = (options.session, options.file, options.n_kept)
            self._earlier = kept(context, EarlierTexts, key, self._remembered)

    def _remembered(self) -> EarlierTexts:
        file, n_kept = self._options.file, self._options.n_kept
        if file is None:
            return EarlierTexts(n_kept=n_kept)
        model = self._context.model
        return EarlierTexts(ngram_file.load(file, model.vocabulary, model.n_vocab), n_kept)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._index = NgramIndex()
        self._text = history
        self._n_seen = 0
        self._expected = ()
        if self._corpus is not None:
            self._corpus.refresh_soon()

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        draft = super().draft(history, limit)
        n = len(draft.tokens)
        if self._options.n_branches == 1 or n < 2 or draft.is_offer:
            return draft
        n_branches = min(self._options.n_branches, self._context.n_branches)
        end = history[-LENGTHS[-1] :]
        return likeliest(n, n_branches, lambda path: self._continuations([*end, *path]))

    def _continuations(self, context: Sequence[int]) -> list[tuple[int, float]]:
        """Return the tokens that may follow, most likely first, each with its probability."""
        context = context[-LENGTHS[-1] :]
        tokens, chances = self._chain(context, 0, 1, 0.0)
        if not tokens:
            return []
        [token], [chance] = tokens, chances
        others = self._index.others(context, token, self._options.n_branches - 1)
        return [
            (token, chance),
            *(
                (each.token, (1 - chance) * self._others.of(each.match))
                for each in others
                if is_text(each.token)
            ),
        ]

    def look_up(self, history: Sequence[int], n_max: int, chance_min: float = 0.0) -> Draft:
        """Return a chain of at most n_max tokens. At least one is looked up, to learn from, whether
        it is drafted or not."""
        if self._options.n_branches > 1:
            self._learn_of_others(history)
        n_new, self._n_seen = len(history) - self._n_seen, len(history)
        text = history[-max(n_new, LENGTHS[-1]) :]
        chance_min = max(chance_min, self._options.chance_min)
        self._expected, chances = self._chain(text, n_new, max(1, n_max), chance_min)
        if not self._expected:
            return NO_DRAFT
        return Draft.copied(self._expected[:n_max], chances[:n_max], source=self.name)

    def _chain(
        self, text: Sequence[int], n_new: int, n_max: int, chance_min: float
    ) -> tuple[Sequence[int], Sequence[float]]:
        return self._index.chain(
            text,
            n_new,
            n_max,
            chances=self._chances,
            chance_min=chance_min,
            earlier=self._earlier.index if self._earlier else None,
            corpus=self._corpus.index if self._corpus else None,
            other_chances=self._earlier_chances,
        )

    def _learn_of_others(self, history: Sequence[int]) -> None:
        """Learn what came instead of the first expected token that did not come."""
        came = history[self._n_seen :]
        for n, (wrong, token) in enumerate(zip(self._expected, came, strict=False), self._n_seen):
            if wrong != token:
                end = history[max(0, n - LENGTHS[-1]) : n]
                for other in self._index.others(end, wrong, self._options.n_branches - 1):
                    self._others.observe(other.match, other.token == token)
                break

    def close(self) -> None:
        """Add the text to the earlier ones."""
        text, self._text = [token for token in self._text if is_text(token)], ()
        if self._earlier is None or not text:
            return
        options, model = self._options, self._context.model
        new = self._earlier.add(text) if options.session else list(text)
        if options.file is None or not new:
            return
        try:
            ngram_file.add(options.file, model.vocabulary, model.n_vocab, new, options.n_kept)
        except (ArgumentError, OSError) as error:  # the text itself is complete
            warnings.warn(str(error), TextsWarning, stacklevel=2)
