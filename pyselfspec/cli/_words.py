"""The library's errors name its parameters; on the command line, the options that set them."""

from __future__ import annotations

import re

OPTIONS = {
    "architectures() lists": "pyselfspec convert --architectures lists",
    "draft=None": "--draft off",
    'draft="head:FILE"': "--draft head:FILE",
    "entry=NAME": "--entry NAME",
    "another file (out)": "another --out",
    "flash_attn=None": "--flash-attn auto",
    "give a template": "give --chat-template",
    "n_ctx": "-c",
    "n_gpu_layers": "-ngl",
    "see its log": "run with -v to see its log",
    "state of adapting": "state of --adapt",
    "token ids instead of text": "token ids instead of text (--prompt-tokens)",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
}
_NAMES = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, OPTIONS))})(?!\.?\w)")


def in_options(message: str) -> str:
    return _NAMES.sub(lambda match: OPTIONS[match[1]], message)
