"""Usual names of models that people run, for files of the Hugging Face hub.

The repositories are those of the model's makers or of ggml-org; where these have none, those of
the people whose GGUF files most others use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from . import huggingface
from ._source import Entry, Offer, pull

APACHE = "Apache-2.0"
GEMMA = "Gemma, https://ai.google.dev/gemma/terms"
LLAMA = "Llama 3.2 Community License"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the hub, and the size and licence that it had when this table was made."""

    repository: str
    name: str
    n_bytes: int
    licence: str

    @property
    def hub_name(self) -> str:
        return f"{huggingface.PREFIX}{self.repository}:{self.name}"

    @property
    def type(self) -> str:
        return self.name.removesuffix(".gguf").rpartition("-")[2].upper()


MODELS = {
    "qwen3:0.6b": File("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", 639_446_688, APACHE),
    "qwen3:1.7b": File("Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q8_0.gguf", 1_834_426_016, APACHE),
    "qwen3:4b": File("Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf", 2_497_280_256, APACHE),
    "qwen3:8b": File("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", 5_027_783_488, APACHE),
    "gemma3:1b": File(
        "ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf", 806_058_240, GEMMA
    ),
    "gemma3:4b": File(
        "ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf", 2_489_757_856, GEMMA
    ),
    "llama3.2:1b": File(
        "bartowski/Llama-3.2-1B-Instruct-GGUF",
        "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        807_694_464,
        LLAMA,
    ),
    "llama3.2:3b": File(
        "bartowski/Llama-3.2-3B-Instruct-GGUF",
        "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        2_019_377_696,
        LLAMA,
    ),
    "smollm2:1.7b": File(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
        "smollm2-1.7b-instruct-q4_k_m.gguf",
        1_055_609_536,
        APACHE,
    ),
    "phi4-mini": File(
        "unsloth/Phi-4-mini-instruct-GGUF", "Phi-4-mini-instruct-Q4_K_M.gguf", 2_491_874_272, "MIT"
    ),
}


def is_name(text: str) -> bool:
    return text in MODELS


def find(name: str) -> Path | None:
    return huggingface.find(MODELS[name].hub_name)


def installed() -> Iterator[tuple[str, Path]]:
    yield from ()  # huggingface has them under their full names


def usual_names(pulled: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yield usual names of files that are given under their full names."""
    for name, file in MODELS.items():
        if file.hub_name in pulled:
            yield name, pulled[file.hub_name]


def how_to_get(name: str) -> str:
    return pull(name)


def removable(name: str) -> Path:
    return huggingface.removable(MODELS[name].hub_name)


def known() -> Iterator[Entry]:
    for name, file in MODELS.items():
        yield Entry(name, file.type, file.n_bytes, file.licence)


def offer(name: str) -> Offer:
    return replace(huggingface.offer(MODELS[name].hub_name), name=name)


def fetch(offered: Offer) -> Path:
    return huggingface.fetch(offered)
