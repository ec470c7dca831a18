"""The vocabulary of tiny models: letters, pairs of letters and bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from gguf import GGUFWriter, TokenType

VOCABULARIES = ("spm", "reversed", "none")

_PAIRS = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng "
    "▁t ▁a ▁s ▁o the and ing ▁th ▁an ▁the ▁and"
).split()
_LETTERS = "▁etaoinshrdlucmfwypvbgk"
_CONTROL = ("<unk>", "<s>", "</s>")
N_CONTROL = len(_CONTROL)
N_VOCAB_MIN = N_CONTROL + 256 + len(_PAIRS) + len(_LETTERS)


def spm_vocab(n_vocab: int = N_VOCAB_MIN) -> tuple[list[str], list[float], list[int]]:
    """Texts, scores and token types of a SentencePiece-type vocabulary of n_vocab tokens.

    Any UTF-8 text tokenizes: characters that are not in the list become byte tokens. Beyond the
    fixed part the list is padded with made-up words, which only sampling can produce.
    Raises ValueError when n_vocab is smaller than the fixed part.
    """
    if n_vocab < N_VOCAB_MIN:
        raise ValueError(f"vocabulary of {n_vocab} tokens: at least {N_VOCAB_MIN} are needed")
    by_length = sorted(_PAIRS, key=len, reverse=True)  # longer merges first
    normal = [*by_length, *_LETTERS]
    padding = list(itertools.islice(_made_up_words(), n_vocab - N_VOCAB_MIN))
    texts = [*_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *normal, *padding]
    n_normal = len(normal) + len(padding)
    scores = [0.0] * (N_CONTROL + 256) + [-float(rank) for rank in range(1, n_normal + 1)]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * n_normal
    return texts, scores, [int(t) for t in types]


def _made_up_words() -> Iterator[str]:
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    for n in itertools.count(2):
        for word in itertools.product(syllables, repeat=n):
            yield "▁" + "".join(word)


def reversed_ids(n_vocab: int = N_VOCAB_MIN) -> list[int]:
    """Return the tokens in another order, by ids of the first: words and letters backwards."""
    n_fixed = N_CONTROL + 256
    return [*range(n_fixed), *reversed(range(n_fixed, n_vocab))]


def add_spm_vocab(
    writer: GGUFWriter, n_vocab: int = N_VOCAB_MIN, ids: Sequence[int] | None = None
) -> None:
    """ids: the tokens in another order."""
    texts, scores, types = spm_vocab(n_vocab)
    order = range(n_vocab) if ids is None else ids
    writer.add_tokenizer_model("llama")
    writer.add_token_list([texts[i] for i in order])
    writer.add_token_scores([scores[i] for i in order])
    writer.add_token_types([types[i] for i in order])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)


def add_vocab(writer: GGUFWriter, vocab: str) -> None:
    """Add one of VOCABULARIES."""
    if vocab == "spm":
        add_spm_vocab(writer)
    elif vocab == "reversed":
        add_spm_vocab(writer, ids=reversed_ids())
        writer.add_add_space_prefix(False)
    else:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(N_VOCAB_MIN)
