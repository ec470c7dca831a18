"""The drop-in with what changes a model's passes: LoRA adapters, and pictures of chat handlers."""

from __future__ import annotations

import base64
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from lora_adapters import write_adapter
from png_files import png
from tiny_mmproj import N_ROWS, write

import pyselfspec
from pyselfspec import Model

import llama_cpp  # isort: skip

OPTIONS = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
PROMPT = "The cat sat on the mat. The cat sat on the mat. The cat sat on"


def test_a_lora_adapter(demo: Model, demo_path: Path, tmp_path: Path) -> None:
    """Drafts leave the text as llama_cpp's own class writes it."""
    file = write_adapter(tmp_path / "a.gguf", demo, 0, size=0.05)
    texts = {}
    for kind, options in (
        (llama_cpp.Llama, {}),
        (llama_cpp.Llama, {"lora_path": str(file)}),
        (pyselfspec.Llama, {"lora_path": str(file), "draft": "ngram"}),
        (pyselfspec.Llama, {"lora_path": str(file), "lora_scale": 0.5}),
        (llama_cpp.Llama, {"lora_path": str(file), "lora_scale": 0.5}),
    ):
        with closing(kind(str(demo_path), **OPTIONS, **options)) as made:
            answer = made.create_completion(PROMPT, max_tokens=32, temperature=0)
            texts[kind, repr(options)] = answer["choices"][0]["text"]
            if kind is pyselfspec.Llama:
                assert made.draft and made.last_stats.n_drafted, made.why_plain
    plain, adapted, drafted, half, half_plain = texts.values()
    assert plain != adapted == drafted
    assert half == half_plain


def test_a_quantized_adapter_is_not_drafted_with(
    demo: Model, demo_path: Path, tmp_path: Path
) -> None:
    file = write_adapter(tmp_path / "q.gguf", demo, 0, rank=32, type_name="Q8_0", size=0.01)
    with closing(pyselfspec.Llama(str(demo_path), lora_path=str(file), **OPTIONS)) as made:
        assert made.draft is None and "Q8_0" in made.why_plain


@pytest.mark.parametrize("kind", sorted(N_ROWS))
def test_pictures_of_a_chat_handler(
    kind: str, demo: Model, demo_path: Path, tmp_path: Path
) -> None:
    from llama_cpp.llama_chat_format import Llava15ChatHandler

    mmproj = write(tmp_path / "p.gguf", demo.n_embd, kind, seed=1)

    def said(llama: Any, seed: int) -> str:
        url = f"data:image/png;base64,{base64.b64encode(png(seed)).decode()}"
        parts = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": PROMPT},
        ]
        messages = [{"role": "user", "content": parts}]
        answer = llama.create_chat_completion(messages, max_tokens=24, temperature=0)
        return str(answer["choices"][0]["message"]["content"])

    found, fixed = [], pyselfspec.DraftConfig("ngram", controller="fixed")
    for made_by, options in ((llama_cpp.Llama, {}), (pyselfspec.Llama, {"draft": fixed})):
        handler = Llava15ChatHandler(clip_model_path=str(mmproj), verbose=False)
        with closing(made_by(str(demo_path), chat_handler=handler, **OPTIONS, **options)) as llama:
            found.append([said(llama, seed) for seed in (0, 1, 0)])
            if made_by is pyselfspec.Llama:
                assert llama.draft == "ngram", llama.why_plain
    assert found[0] == found[1]
