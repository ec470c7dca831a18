"""Whether the tokens of two models are the same."""

from __future__ import annotations

from ._lib import llama
from .model import Model

N_DIFFERENCE = 128  # tokens that one may have more than the other, unused ones at the end
FIRST = 5  # ids below it are often named as each model likes


def difference(one: Model, other: Model) -> str | None:
    """What differs first, in words that end a sentence; None where a token of one is the same token
    of the other.

    The same comparison as ``common_speculative_are_compatible`` in llama.cpp's
    common/speculative.cpp, in its order: the kind of vocabulary, tokens put before and behind every
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
                where = "before" if what == "bos" else "behind"
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
    """The token that the tokenizer adds to every text, if it adds one."""
    adds = getattr(llama, f"llama_vocab_get_add_{what}")(model.vocab)
    return int(getattr(llama, f"llama_vocab_{what}")(model.vocab)) if adds else None
