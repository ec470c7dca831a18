"""Options in place of the parameters in messages of the library."""

from __future__ import annotations

from ..errors import Message

OPTIONS = {
    "architectures()": "pyselfspec models convert --architectures",
    'device="cpu"': "--device cpu",
    "draft=None": "--draft off",
    'draft="head:FILE"': "--draft head:FILE",
    'draft="layer-skip"': "--draft layer-skip",
    "entry=NAME": "--entry NAME",
    "flash_attn=None": "--flash-attn auto",
    "n_ctx": "-c",
    "n_gpu_layers": "-ngl",
    'n_gpu_layers="auto"': "-ngl auto",
    "n_gpu_layers=0": "-ngl 0",
    "out": "--out",
    "see its log": "run with -v to see its log",
    "template": "--chat-template",
    "token ids": "token ids (--prompt-tokens)",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
}


def in_options(message: object) -> str:
    """Return the text of an error or warning, with options for the parameters it names."""
    return message.in_terms_of(OPTIONS) if isinstance(message, Message) else str(message)
