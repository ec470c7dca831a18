"""What the model is asked when nobody brings prompts of his own: everyday requests, each a form
with words put in. Pure, but for one look at ``data/requests.toml``, which has the forms and words.

What counts is the text that the model answers with, so the requests have to be many, of many kinds
and in many voices.
"""

from __future__ import annotations

import random
import re
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from ..util.paths import REQUESTS

SLOT = re.compile(r"\{(\w+)\}")
PASSAGE = "passage"  # the slot whose words are given from outside
N_PASSAGE = 600  # characters, about
N_PARTS = 16  # of all requests, one is held out
N_LONG = 80  # characters of a filler that answers repeat


@dataclass(frozen=True, slots=True)
class Kind:
    """Forms that are alike. share: how often it is drawn, beside others."""

    name: str
    share: int
    forms: tuple[str, ...]

    @property
    def slots(self) -> set[str]:
        return {name for form in self.forms for name in SLOT.findall(form)}


@dataclass(frozen=True, slots=True)
class Stock:
    """lists: what may stand in a slot, by the slot's name."""

    kinds: tuple[Kind, ...]
    lists: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Request:
    """held_out: whether it is for measuring and never for training."""

    text: str
    held_out: bool


@cache
def stock() -> Stock:
    """What comes with the package."""
    found = tomllib.loads(REQUESTS.read_text(encoding="utf-8"))
    kinds = (Kind(each["name"], each["share"], tuple(each["forms"])) for each in found["kinds"])
    return Stock(tuple(kinds), found["lists"])


def requests(seed: int, passages: Sequence[str] = ()) -> Iterator[Request]:
    """Requests without end, the same for the same seed. passages: none: no requests on them.

    Answers repeat much of a long filler, so what asks about the same one is held out together;
    the only one of a list never is.
    """
    rng = random.Random(seed)
    lists = {**stock().lists, PASSAGE: passages} if passages else stock().lists
    kinds = [kind for kind in stock().kinds if kind.slots <= lists.keys()]
    long = ([word for word in words if len(word) > N_LONG] for words in lists.values())
    long_held_out = {word for words in long for word in words[1::N_PARTS]}
    while True:
        (kind,) = rng.choices(kinds, [kind.share for kind in kinds])
        form = rng.choice(kind.forms)
        words = chosen(form, lists, rng)
        text = filled(form, words)
        longest = max(chain.from_iterable(words.values()), key=len, default="")
        is_long = len(longest) > N_LONG
        yield Request(text, longest in long_held_out if is_long else is_held_out(text))


def chosen(
    form: str, lists: Mapping[str, Sequence[str]], rng: random.Random
) -> dict[str, list[str]]:
    """Words for the slots of the form, different ones for slots of the same name."""
    return {name: rng.sample(lists[name], n) for name, n in Counter(SLOT.findall(form)).items()}


def filled(form: str, words: Mapping[str, Sequence[str]]) -> str:
    """The form with these words in its slots."""
    left = {name: iter(each) for name, each in words.items()}
    return SLOT.sub(lambda slot: next(left[slot[1]]), form)


def cut(text: str, n_chars: int = N_PASSAGE) -> list[str]:
    """Passages of about this length, whole paragraphs where these are short enough."""
    found: list[str] = []
    passage = ""
    for paragraph in text.split("\n\n"):
        paragraph = paragraph.strip()
        if passage and len(passage) + len(paragraph) > n_chars:
            found.append(passage)
            passage = ""
        passage = f"{passage}\n\n{paragraph}".strip()[: 2 * n_chars]
    return [*found, passage] if passage else found


def is_held_out(text: str) -> bool:
    """Whether a text, taken by itself, is for measuring and never for training."""
    return zlib.crc32(text.encode()) % N_PARTS == 0
