"""The tokens of a query and a document, as models that score pairs were trained with them."""

from __future__ import annotations

from .ffi.load import llama
from .model import Model

TEMPLATE = b"rerank"  # name of the chat template for pairs


def pair_tokens(model: Model, query: str, document: str) -> list[int]:
    """Return the tokens of a pair: by the template for pairs in the model's file, else the query
    and the document between the special tokens that the file asks for."""
    template = _template(model)
    if template is not None:
        before, mark, behind = template.partition("{document}")
        text = before.replace("{query}", query) + (document if mark else "")
        return model.tokenize(text + behind.replace("{query}", query))
    with model.in_use:
        vocab = model.vocab
        none = llama.LLAMA_TOKEN_NULL
        bos, eos, sep = (
            int(getattr(llama, f"llama_vocab_{name}")(vocab)) for name in ("bos", "eos", "sep")
        )
        adds_bos, adds_eos, adds_sep = (
            bool(getattr(llama, f"llama_vocab_get_add_{name}")(vocab))
            for name in ("bos", "eos", "sep")
        )
    end = [sep if eos == none else eos] if adds_eos else []
    return [
        *([bos] if adds_bos else []),
        *model.tokenize(query, add_special=False, parse_special=False),
        *end,
        *([sep] if adds_sep else []),
        *model.tokenize(document, add_special=False, parse_special=False),
        *(end or ([sep] if adds_sep else [])),  # BERT was trained with [SEP] after both
    ]


def _template(model: Model) -> str | None:
    with model.in_use:
        found = llama.llama_model_chat_template(model.handle, TEMPLATE)
    return None if found is None else bytes(found).decode(errors="replace")
