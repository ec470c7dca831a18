"""Prompts for fill-in-the-middle (FIM): the prefix, the suffix, and other files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..runtime.model import Model
from ..runtime.vocabulary import FillTokens, fill_tokens
from .protocol.errors import unsupported

N_CHARS = 16  # characters of a token at most, on average, for texts that are cut off
FILE = "file"  # the name of the file with the prefix and the suffix

Tokenizer = Callable[[str], list[int]]


def fill_prompt(
    model: Model,
    before: str,
    after: str,
    *,
    n_max: int,
    extra: Sequence[tuple[str, str]] = (),
    param: str,
) -> tuple[int, ...]:
    """Return the FIM prompt. Raises ApiError for a model that was not trained for FIM.

    n_max: most tokens of the prompt. extra: names and texts of other files. param: the field that
    asks for it, for the error.
    """
    fill = fill_tokens(model)
    if fill is None:
        raise unsupported(
            param,
            f"{model.path.name} was not trained for fill-in-the-middle (FIM); use a model that "
            f"was, or leave out {param}",
        )

    def tokens(text: str) -> list[int]:
        return model.tokenize(text, add_special=False, parse_special=False)

    start = () if model.start_token is None else (model.start_token,)
    return (*start, *prompt_tokens(fill, tokens, before, after, extra, n_max - len(start)))


def prompt_tokens(
    fill: FillTokens,
    tokens: Tokenizer,
    before: str,
    after: str,
    extra: Sequence[tuple[str, str]],
    n_max: int,
) -> tuple[int, ...]:
    """Return the tokens of a prompt. The prefix keeps its end, up to three quarters of the room if
    the suffix needs the rest. The last of the other files come in if they fit.
    """
    n_room = max(0, n_max - 3)
    prefix = tokens(before[-N_CHARS * n_room :] if n_room else "")
    suffix = tokens(after[: N_CHARS * n_room])
    n_suffix = min(len(suffix), max(n_room // 4, n_room - len(prefix)))
    n_prefix = min(len(prefix), n_room - n_suffix)
    middle = (
        fill.prefix,
        *prefix[len(prefix) - n_prefix :],
        fill.suffix,
        *suffix[:n_suffix],
        fill.middle,
    )
    if fill.separator is None or not extra:
        return middle
    head = (fill.separator, *tokens(f"{FILE}\n"))  # of the file to complete
    files: tuple[int, ...] = ()
    for name, text in reversed(extra):
        n_left = n_room - n_prefix - n_suffix - len(head) - len(files)
        if len(text) > N_CHARS * n_left:
            break
        one = (fill.separator, *tokens(f"{name}\n{text}\n"))
        if len(one) > n_left:
            break
        files = (*one, *files)
    return (*files, *head, *middle) if files else middle
