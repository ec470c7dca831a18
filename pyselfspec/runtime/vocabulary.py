"""The vocabulary of a model: texts as tokens and back, special tokens, and a comparison of two."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import ArgumentError
from ..util.closable import Closing
from .ffi import model_calls
from .ffi.load import llama
from .pieces import N_PIECE, Pieces
from .thread_guards import InUse

N_UNSURE = 64  # last tokens of a part of a text that may differ in the whole text
N_DIFFERENCE = 128  # most tokens by which the sizes may differ: unused ones at the end
FIRST = 5  # tokens with lower ids often have names of the model's own
# of enum llama_token_attr
UNKNOWN, CONTROL, USER_DEFINED = 1 << 0, 1 << 3, 1 << 4
STRIPS_BEFORE, STRIPS_BEHIND = 1 << 7, 1 << 8


class Vocabulary(Closing):
    """The part of a model that turns texts into tokens and back. Threads may share it.

    in_use: held while the library reads the vocabulary, which is freed with the model.
    """

    path: Path
    in_use: InUse
    n_vocab: int
    _vocab: int

    @cached_property
    def _bytes_of(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def _ends(self) -> dict[int, bool]:  # of tokens that were drawn: whether generation ends
        return {}

    @property
    @abstractmethod
    def handle(self) -> int:
        """The address of the model. Raises ArgumentError when closed."""

    @cached_property
    def has_vocab(self) -> bool:
        """Whether text can be turned into tokens (some research models have ids only)."""
        with self.in_use():
            return bool(llama.llama_vocab_type(self.vocab) != llama.LLAMA_VOCAB_TYPE_NONE)

    @property
    def vocab(self) -> int:
        _ = self.handle  # it belongs to the model
        return int(self._vocab)

    def require_tokenizer(self, purpose: str = "") -> int:
        """Return the handle of the vocabulary. Raises ArgumentError for a model that has token ids
        only.

        purpose: what needs a tokenizer, for the error; default: advice to give token ids.
        """
        vocab = self.vocab
        if not self.has_vocab:
            advice = purpose or "give token ids (--prompt-tokens) instead of text"
            raise ArgumentError(f"{self.path.name} has no tokenizer; {advice}")
        return vocab

    @property
    def start_token(self) -> int | None:
        """The token that the model puts before every text (BOS), None for a model without one."""
        with self.in_use():
            vocab = self.vocab
            adds_bos = llama.llama_vocab_get_add_bos(vocab)
            return int(llama.llama_vocab_bos(vocab)) if adds_bos else None

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of a text. add_special: with the model's own first and last
        tokens."""
        self.require_tokenizer()
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(
                f"the text is not valid Unicode at character {error.start}"
            ) from None
        if len(text) > N_PIECE:
            return self._tokenize_pieces(text, add_special, parse_special)
        with self.in_use():
            vocab = self.require_tokenizer()
            return model_calls.tokenize(
                vocab, data, add_special=add_special, parse_special=parse_special
            )

    def _tokenize_pieces(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of a long text, whose pieces are tokenized alone."""
        found: list[int] = []
        around: list[int] = []
        with self.in_use():
            vocab = self.require_tokenizer()
            if add_special:
                around = model_calls.tokenize(vocab, b"", add_special=True, parse_special=False)
        n_before = int(around[:1] == [self.start_token])
        found += around[:n_before]
        for piece in self._pieces_of[parse_special].of(text):
            with self.in_use():  # the model may be closed between two pieces
                vocab = self.require_tokenizer()
                found += model_calls.tokenize(
                    vocab, piece.encode(), add_special=False, parse_special=parse_special
                )
        return found + around[n_before:]

    @cached_property
    def _pieces_of(self) -> tuple[Pieces, Pieces]:
        """The cutters of texts in which special tokens are plain text, or are parsed."""
        found = markers(self)
        plain = {each.text: each.strips_behind for each in found if not each.is_control}
        return Pieces(plain), Pieces({each.text: each.strips_behind for each in found})

    def first_tokens(
        self, text: str, n: int, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the first n token ids of a text, or all if it has fewer, in a time that does not
        grow with the text."""
        n_chars = 8 * (n + N_UNSURE)
        while n_chars < len(text):
            tokens = self.tokenize(
                text[:n_chars], add_special=add_special, parse_special=parse_special
            )
            if len(tokens) >= n + N_UNSURE:
                return tokens[:n]
            n_chars *= 4
        return self.tokenize(text, add_special=add_special, parse_special=parse_special)[:n]

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text; special tokens add none."""
        self.require_tokenizer()
        piece = self._bytes_of.get(token)
        if piece is None:
            self.require_tokens([token])
            with self.in_use():
                piece = model_calls.token_to_piece(self.require_tokenizer(), token)
            self._bytes_of[token] = piece
        return piece

    def pieces(self) -> list[bytes]:
        """Return the bytes of all tokens, by token id."""
        with self.in_use():
            return model_calls.pieces(self.require_tokenizer(), self.n_vocab)

    def require_tokens(self, tokens: Sequence[int]) -> None:
        """Raise ArgumentError for ids outside the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.n_vocab:
                raise ArgumentError(
                    f"token id {token} is not in the vocabulary, allowed is 0 to {self.n_vocab - 1}"
                )

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

    def is_eog(self, token: int) -> bool:
        """Whether generation ends with this token."""
        is_eog = self._ends.get(token)
        if is_eog is None:
            is_eog = self._ends[token] = self._is_eog(token)
        return is_eog

    def _is_eog(self, token: int) -> bool:
        with self.in_use():
            return bool(llama.llama_vocab_is_eog(self.vocab, token))

    @cached_property
    def eog_tokens(self) -> tuple[int, ...]:
        """The tokens with which generation ends."""
        return tuple(token for token in range(self.n_vocab) if self._is_eog(token))


def difference(one: Vocabulary, other: Vocabulary) -> str | None:
    """Return the first difference of two vocabularies, as the end of a sentence; None where their
    tokens are interchangeable.

    This is the comparison of ``common_speculative_are_compatible`` in llama.cpp's
    common/speculative.cpp, in its order: the kind of vocabulary, tokens put before and after every
    text, size, and the text of each token.
    """
    names = f"{one.path.name} and {other.path.name}"
    kinds = [llama.llama_vocab_type(model.vocab) for model in (one, other)]
    if kinds[0] != kinds[1]:
        return f"{names} have tokenizers of different kinds"
    if one.has_vocab:
        for what in ("bos", "eos"):
            added = [_added(model, what) for model in (one, other)]
            if added[0] != added[1]:
                said = ("none" if token is None else f"token {token}" for token in added)
                where = "before" if what == "bos" else "after"
                return f"{where} a text {names} put {' and '.join(said)}"
    if abs(one.n_vocab - other.n_vocab) > (N_DIFFERENCE if one.has_vocab else 0):
        return f"{names} have {one.n_vocab} and {other.n_vocab} tokens"
    if not one.has_vocab:
        return None
    text, a, b = llama.llama_vocab_get_text, one.vocab, other.vocab
    for token in range(FIRST, min(one.n_vocab, other.n_vocab)):
        if text(a, token) != text(b, token):
            shown = (repr(text(v, token).decode(errors="replace")) for v in (a, b))
            return f"token {token} of {names} is {' and '.join(shown)}"
    return None


def _added(model: Vocabulary, what: str) -> int | None:
    """Return the token that the tokenizer adds to every text, None if it adds none."""
    adds = getattr(llama, f"llama_vocab_get_add_{what}")(model.vocab)
    return int(getattr(llama, f"llama_vocab_{what}")(model.vocab)) if adds else None


@dataclass(frozen=True, slots=True)
class Marker:
    """A special token that llama.cpp finds in a text. is_control: only where special tokens are
    parsed. strips_before, strips_behind: white space there is removed."""

    text: str
    is_control: bool
    strips_before: bool
    strips_behind: bool


def markers(model: Vocabulary) -> tuple[Marker, ...]:
    """Return the tokens whose text llama.cpp's ``tokenizer_st_partition`` searches for."""
    special = UNKNOWN | CONTROL | USER_DEFINED
    with model.in_use():
        kind_of, vocab = llama.llama_vocab_get_attr, model.require_tokenizer()
        kinds = [(token, int(kind_of(vocab, token))) for token in range(model.n_vocab)]
    return tuple(
        Marker(
            text,
            is_control=not kind & USER_DEFINED,
            strips_before=bool(kind & STRIPS_BEFORE),
            strips_behind=bool(kind & STRIPS_BEHIND),
        )
        for token, kind in kinds
        if kind & special and (text := text_of(model, token))
    )


def text_of(model: Vocabulary, token: int) -> str:
    """Return a token's text in the vocabulary; "" for a token below 0, which stands for none."""
    with model.in_use():
        data = llama.llama_vocab_get_text(model.vocab, token) if token >= 0 else b""
    return str(data.decode(errors="replace"))


def control_text(model: Vocabulary, token: int) -> str:
    """Return the text of a control token, "" for any other token."""
    with model.in_use():
        is_control = bool(llama.llama_vocab_get_attr(model.vocab, token) & CONTROL)
    return text_of(model, token) if is_control else ""


@dataclass(frozen=True, slots=True)
class FillTokens:
    """The tokens before the parts of a prompt for filling in the middle. separator: before another
    file, None for a model without one."""

    prefix: int
    suffix: int
    middle: int
    separator: int | None


def fill_tokens(model: Vocabulary) -> FillTokens | None:
    """Return the tokens for filling in the middle, None for a model without them."""
    with model.in_use():
        vocab = model.require_tokenizer()
        prefix, suffix, middle, separator = (
            int(getattr(llama, f"llama_vocab_fim_{name}")(vocab))
            for name in ("pre", "suf", "mid", "sep")
        )
    if min(prefix, suffix, middle) < 0:
        return None
    return FillTokens(prefix, suffix, middle, separator if separator >= 0 else None)


def bos_and_eos(model: Vocabulary) -> tuple[str, str]:
    """Return the texts of the tokens that begin and end a text; "" if there is none."""
    with model.in_use():
        tokens = llama.llama_vocab_bos(model.vocab), llama.llama_vocab_eos(model.vocab)
    return text_of(model, tokens[0]), text_of(model, tokens[1])


def chat_template(model: Vocabulary, name: str | None = None) -> str | None:
    """Return the source of the chat template of this name in the model's file; None without one."""
    with model.in_use():
        source = llama.llama_model_chat_template(model.handle, name and name.encode())
    return None if source is None else str(source.decode(errors="replace"))
