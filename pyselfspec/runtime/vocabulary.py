"""Special tokens of a model, and a comparison of the vocabularies of two models."""

from __future__ import annotations

from dataclasses import dataclass

from .ffi.load import llama
from .model import Model

N_DIFFERENCE = 128  # most tokens by which the sizes may differ: unused ones at the end
FIRST = 5  # tokens with lower ids often have names of the model's own
# of enum llama_token_attr
UNKNOWN, CONTROL, USER_DEFINED = 1 << 0, 1 << 3, 1 << 4
STRIPS_BEFORE, STRIPS_BEHIND = 1 << 7, 1 << 8


def difference(one: Model, other: Model) -> str | None:
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


def _added(model: Model, what: str) -> int | None:
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


def markers(model: Model) -> tuple[Marker, ...]:
    """Return the tokens whose text llama.cpp's ``tokenizer_st_partition`` searches for."""
    special = UNKNOWN | CONTROL | USER_DEFINED
    with model.in_use:
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


def text_of(model: Model, token: int) -> str:
    """Return a token's text in the vocabulary; "" for a token below 0, which stands for none."""
    with model.in_use:
        data = llama.llama_vocab_get_text(model.vocab, token) if token >= 0 else b""
    return str(data.decode(errors="replace"))


def control_text(model: Model, token: int) -> str:
    """Return the text of a control token, "" for any other token."""
    with model.in_use:
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


def fill_tokens(model: Model) -> FillTokens | None:
    """Return the tokens for filling in the middle, None for a model without them."""
    with model.in_use:
        vocab = model.require_tokenizer()
        prefix, suffix, middle, separator = (
            int(getattr(llama, f"llama_vocab_fim_{name}")(vocab))
            for name in ("pre", "suf", "mid", "sep")
        )
    if min(prefix, suffix, middle) < 0:
        return None
    return FillTokens(prefix, suffix, middle, separator if separator >= 0 else None)


def bos_and_eos(model: Model) -> tuple[str, str]:
    """Return the texts of the tokens that begin and end a text; "" if there is none."""
    with model.in_use:
        tokens = llama.llama_vocab_bos(model.vocab), llama.llama_vocab_eos(model.vocab)
    return text_of(model, tokens[0]), text_of(model, tokens[1])


def chat_template(model: Model, name: str | None = None) -> str | None:
    """Return the source of the chat template of this name in the model's file; None without one."""
    with model.in_use:
        source = llama.llama_model_chat_template(model.handle, name and name.encode())
    return None if source is None else str(source.decode(errors="replace"))
