"""Prompts for the texts that a model writes as training data: the user's chats or texts, or bundled
everyday requests.

A request is a form with words filled in; ``data/requests.toml`` has forms and words. A head learns
from the answers, so requests are of many kinds and in many voices.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..gguf import fingerprint
from ..runtime.vocabulary import chat_template
from ..util import records
from ..util.paths import REQUESTS, SAMPLE_TEXT

if TYPE_CHECKING:
    from ..runtime.model import Model
    from ..templates.template import ChatTemplate

BUNDLED = "bundled prompts"
TEXT_SUFFIXES = (".txt", ".md")
N_BEGINNING = 32  # tokens of a text that a model without a chat template continues
SLOT = re.compile(r"\{(\w+)\}")
PASSAGE = "passage"  # the slot for passages, which the caller provides
N_PASSAGE = 600  # approximate characters of a passage
N_PARTS = 16  # one request in this many is held out
N_LONG = 80  # characters from which answers repeat much of a filler


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Prompts for the model to answer or continue.

    name: for error messages and the head's card.
    chats: lists of messages to answer.
    passages: texts, for requests about them if the model has a chat template; other models
        continue them.
    """

    name: str
    chats: tuple[tuple[Any, ...], ...] = ()
    passages: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256, equal for equal prompts; it covers the bundled requests if they are used."""
        source = self.chats or request_forms()
        return fingerprint.of_text(records.encode([source, self.passages]).decode())

    def tokens(self, model: Model, seed: int, *, held_out: bool) -> Iterator[list[int]]:
        """Yield tokens of prompts without end, equal for equal seeds.

        held_out: whether to yield held-out prompts only, or only the others.
        Raises ArgumentError for chats and a model without a chat template.
        """
        from ..templates.template import ChatTemplate

        if chat_template(model) is None:
            return self._beginnings(model, seed, held_out)
        return self._chats(ChatTemplate.of(model), seed, held_out)

    def _chats(self, template: ChatTemplate, seed: int, held_out: bool) -> Iterator[list[int]]:
        if self.chats:
            for chat in _draw(self.chats, seed, held_out):
                yield list(template.tokens(list(chat)))
        for request in generate_requests(seed, self.passages):
            if request.held_out == held_out:
                yield list(template.tokens([{"role": "user", "content": request.text}]))

    def _beginnings(self, model: Model, seed: int, held_out: bool) -> Iterator[list[int]]:
        if self.chats:
            raise ArgumentError(
                f"{model.path.name} has no chat template and cannot answer chats; give text files "
                "instead of a .jsonl file"
            )
        for passage in _draw(self.passages, seed, held_out):
            yield model.first_tokens(passage, N_BEGINNING)


def _draw(items: Sequence[Any], seed: int, held_out: bool) -> Iterator[Any]:
    """Yield random items, held-out ones or others; if there are too few to tell, any."""
    drawn = [each for each in items if is_held_out(str(each)) == held_out] or items
    rng = random.Random(seed)
    while True:
        yield rng.choice(drawn)


def bundled_prompts() -> PromptSource:
    """Return the prompts that come with the package."""
    text = SAMPLE_TEXT.read_text(encoding="utf-8")
    return PromptSource(BUNDLED, passages=tuple(split_passages(text)))


def read_prompts(path: Path) -> PromptSource:
    """Read a JSONL file of chats, a text file, or a folder of .txt and .md files.

    A JSONL line has ``messages`` in the format of chat APIs, or ``prompt``, a text.
    Raises ArgumentError for other contents, OSError for files that cannot be read.
    """
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.suffix in TEXT_SUFFIXES)
        passages = tuple(part for each in files for part in split_passages(_read_text(each)))
        if not passages:
            raise ArgumentError(f"{path} has no .txt or .md file with text in it")
        return PromptSource(path.name, passages=passages)
    if path.suffix == ".jsonl":
        return PromptSource(path.name, chats=tuple(_read_chats(path)))
    passages = tuple(split_passages(_read_text(path)))
    if not passages:
        raise ArgumentError(f"{path} has no text")
    return PromptSource(path.name, passages=passages)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ArgumentError(f"{path} is not UTF-8 text") from None


def _read_chats(path: Path) -> Iterator[tuple[Any, ...]]:
    lines = [line for line in _read_text(path).splitlines() if line.strip()]
    if not lines:
        raise ArgumentError(f"{path} has no chats")
    for i, line in enumerate(lines, 1):
        try:
            data = records.parse(line)
        except ArgumentError as error:
            raise ArgumentError(f"{path}, line {i}: {error}") from None
        yield _parse_chat(data, f"{path}, line {i}")


def _parse_chat(data: Any, where: str) -> tuple[Any, ...]:
    """Return the messages of a line, up to the last message of the user."""
    line = data if isinstance(data, dict) else {}
    if isinstance(line.get("prompt"), str):
        return ({"role": "user", "content": line["prompt"]},)
    messages = line.get("messages")
    if isinstance(messages, list):
        users = [i for i, each in enumerate(messages) if _is_from_user(each)]
        if users:
            return tuple(messages[: users[-1] + 1])
    raise ArgumentError(
        f'{where}: not a chat; a line needs "messages", a list with a message of the user, or '
        '"prompt", a string'
    )


def _is_from_user(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"


#
# bundled requests
#


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Forms of similar requests. share: how often it is drawn, relative to other kinds."""

    name: str
    share: int
    forms: tuple[str, ...]

    @property
    def slots(self) -> set[str]:
        return {name for form in self.forms for name in SLOT.findall(form)}


@dataclass(frozen=True, slots=True)
class RequestForms:
    """Forms of requests. lists: words that may fill a slot, by the slot's name."""

    kinds: tuple[RequestKind, ...]
    lists: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Request:
    """A request for the model to answer. held_out: whether it is kept out of training."""

    text: str
    held_out: bool


@cache
def request_forms() -> RequestForms:
    """Return the forms in ``data/requests.toml``."""
    data = tomllib.loads(REQUESTS.read_text(encoding="utf-8"))
    kinds = (
        RequestKind(kind["name"], kind["share"], tuple(kind["forms"])) for kind in data["kinds"]
    )
    return RequestForms(tuple(kinds), data["lists"])


def generate_requests(seed: int, passages: Sequence[str] = ()) -> Iterator[Request]:
    """Yield requests without end, equal for equal seeds; without passages, none about a passage.

    Answers repeat much of a long filler, so all requests about it are held out, or none. The only
    filler of a list is never held out.
    """
    rng = random.Random(seed)
    forms = request_forms()
    lists = {**forms.lists, PASSAGE: passages} if passages else forms.lists
    kinds = [kind for kind in forms.kinds if kind.slots <= lists.keys()]
    long = ([word for word in words if len(word) > N_LONG] for words in lists.values())
    long_held_out = {word for words in long for word in words[1::N_PARTS]}
    while True:
        (kind,) = rng.choices(kinds, [kind.share for kind in kinds])
        form = rng.choice(kind.forms)
        words = choose_words(form, lists, rng)
        text = fill_form(form, words)
        longest = max(chain.from_iterable(words.values()), key=len, default="")
        is_long = len(longest) > N_LONG
        yield Request(text, longest in long_held_out if is_long else is_held_out(text))


def choose_words(
    form: str, lists: Mapping[str, Sequence[str]], rng: random.Random
) -> dict[str, list[str]]:
    """Return words for the slots of a form, different ones for slots of the same name."""
    return {name: rng.sample(lists[name], n) for name, n in Counter(SLOT.findall(form)).items()}


def fill_form(form: str, words: Mapping[str, Sequence[str]]) -> str:
    """Return the form with these words in its slots."""
    left = {name: iter(each) for name, each in words.items()}
    return SLOT.sub(lambda slot: next(left[slot[1]]), form)


def split_passages(text: str, n_chars: int = N_PASSAGE) -> list[str]:
    """Split a text into passages of about n_chars characters, between paragraphs if possible."""
    passages: list[str] = []
    passage = ""
    for paragraph in text.split("\n\n"):
        paragraph = paragraph.strip()
        if passage and len(passage) + len(paragraph) > n_chars:
            passages.append(passage)
            passage = ""
        passage = f"{passage}\n\n{paragraph}".strip()[: 2 * n_chars]
    return [*passages, passage] if passage else passages


def is_held_out(text: str) -> bool:
    """Whether a text is kept out of training. One in N_PARTS is, by its CRC-32."""
    return zlib.crc32(text.encode()) % N_PARTS == 0
