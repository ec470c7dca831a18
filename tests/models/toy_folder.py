"""A folder with a toy of every kind of file that random calls use."""

from __future__ import annotations

from pathlib import Path

import gguf
import lora_adapters
import tiny_assistant
import tiny_dflash
import tiny_encoder
import tiny_gpt2
import tiny_head
import tiny_mmproj
import tiny_nextn

from pyselfspec import Model
from tools import random_calls


def write_all(folder: Path) -> Path:
    """Write models of several families, and heads, adapters and projectors for them."""
    models = random_calls.toy_models(folder)
    tiny_gpt2.write_gpt2(folder / "gpt2.gguf")
    for pooling in (gguf.PoolingType.MEAN, gguf.PoolingType.RANK):
        tiny_encoder.write_encoder(folder / f"bert-{pooling.name}.gguf", pooling)
    tiny_nextn.write(folder / "nextn.gguf", tiny_nextn.weights())
    tiny_head.write(folder / "eagle.gguf", tiny_head.random_weights())
    for i, kind in enumerate((tiny_dflash.KINDS[0], *tiny_dflash.KINDS[-2:])):
        tiny_dflash.write(folder / f"dflash{i}.gguf", tiny_dflash.random_weights(kind), kind)
    weights, assistant = tiny_assistant.random_weights()
    tiny_assistant.write_model(folder / "gemma4.gguf", weights)
    tiny_assistant.write(folder / "assistant.gguf", assistant)
    with Model(models[0]) as model:
        for kind in tiny_mmproj.N_ROWS:
            tiny_mmproj.write(folder / f"mmproj-{kind}.gguf", model.n_embd, kind)
        for i in range(2):
            lora_adapters.write_adapter(folder / f"lora{i}.gguf", model, i, head=bool(i))
    return folder
