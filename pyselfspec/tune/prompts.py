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

from ..util.paths import REQUESTS

SLOT = re.compile(r"\{(\w+)\}")
PASSAGE = "passage"  # the slot whose words are given from outside
N_PASSAGE = 600  # characters, about
N_PARTS = 16  # of all requests, one is held out


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


@cache
def stock() -> Stock:
    """What comes with the package."""
    found = tomllib.loads(REQUESTS.read_text(encoding="utf-8"))
    kinds = (Kind(each["name"], each["share"], tuple(each["forms"])) for each in found["kinds"])
    return Stock(tuple(kinds), found["lists"])


def requests(seed: int, passages: Sequence[str] = ()) -> Iterator[str]:
    """Requests without end, the same for the same seed. passages: none: no requests on them."""
    rng = random.Random(seed)
    lists = {**stock().lists, PASSAGE: passages} if passages else stock().lists
    kinds = [kind for kind in stock().kinds if kind.slots <= lists.keys()]
    while True:
        (kind,) = rng.choices(kinds, [kind.share for kind in kinds])
        yield filled(rng.choice(kind.forms), lists, rng)


def filled(form: str, lists: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """The form with words in its slots; slots of the same name get different ones."""
    counts = Counter(SLOT.findall(form))
    words = {name: rng.sample(lists[name], n) for name, n in counts.items()}
    return SLOT.sub(lambda slot: words[slot[1]].pop(), form)


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


def is_held_out(request: str) -> bool:
    """Whether a request is for measuring and never for training."""
    return zlib.crc32(request.encode()) % N_PARTS == 0
