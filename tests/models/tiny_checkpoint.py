"""Writes tiny Hugging Face checkpoints: random weights that make varied text, and a tokenizer.

Needs torch, transformers and sentencepiece. The tokenizer is a SentencePiece model trained on the
spot: llama.cpp's converter recognizes byte-level BPE by a list of known vocabularies and refuses
any other, so that kind cannot be made here.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from transformers import PreTrainedModel

N_LAYER = 5
N_VOCAB = 512
N_CONTROL = 3  # unknown, begin, end
LATE = 2  # blocks from here on change less, so that early exits are often right
LATE_GAIN = 0.25
LOGIT_GAIN = 3.0
CONTROL_GAIN = 0.1  # greedy text does not end by itself

SIZES = {
    "vocab_size": N_VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": N_LAYER,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# What is in transformers' config beyond SIZES.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-grouped-tied": {**GROUPED, "tie_word_embeddings": True},
    "llama-biased-scaled": {**GROUPED, "attention_bias": True, "rope_parameters": LLAMA3_ROPE},
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "gemma2": {**GROUPED, "sliding_window": 32, "query_pre_attn_scalar": 16},
}


def config(variant: str) -> Any:
    model_type = variant.partition("-")[0]
    return transformers.AutoConfig.for_model(model_type, **(SIZES | VARIANTS[variant]))


def model(variant: str, seed: int) -> PreTrainedModel:
    """float32, in evaluation mode."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config(variant), dtype=torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            fill(name, weights, is_gemma=variant.startswith("gemma"))
    model.generation_config.eos_token_id = None
    return model.eval()


def fill(name: str, weights: torch.Tensor, is_gemma: bool) -> None:
    """Give one tensor random values that keep the hidden state O(1)."""
    noise = torch.randn_like(weights)
    if name == "model.norm.weight":
        # Random signs: with tied embeddings the likeliest next token would be the last one.
        offset = 1.0 if is_gemma else 0.0  # which adds 1 to its norm weights
        weights.copy_(torch.copysign(1 + 0.1 * noise.abs(), noise) - offset)
    elif "norm" in name:
        weights.add_(0.1 * noise)
        if is_gemma and "post_" in name and is_late(name):
            weights.copy_(LATE_GAIN * (1 + weights) - 1)  # this norm undoes any gain before it
    elif weights.dim() == 1:
        weights.copy_(0.1 * noise)
    else:
        is_vocabulary = "lm_head" in name or "embed" in name
        gain = LOGIT_GAIN if is_vocabulary else 1.0
        if is_vocabulary and is_gemma:
            gain /= math.sqrt(weights.shape[-1])  # it multiplies embeddings by this root
        if is_late(name) and ("o_proj" in name or "down_proj" in name):
            gain = LATE_GAIN
        weights.copy_(gain / math.sqrt(weights.shape[-1]) * noise)
        if is_vocabulary:
            weights[:N_CONTROL] *= CONTROL_GAIN


def is_late(name: str) -> bool:
    return name.startswith("model.layers.") and int(name.split(".")[2]) >= LATE


def tokenizer(variant: str) -> bytes:
    """A SentencePiece model, trained on the text of this file."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(Path(__file__).read_text(encoding="utf-8").splitlines()),
        model_writer=written,
        model_type="bpe",
        vocab_size=N_VOCAB,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=not variant.startswith("gemma"),
        minloglevel=2,
    )
    return written.getvalue()


def save(variant: str, model: PreTrainedModel, folder: Path) -> Path:
    """Write model and tokenizer to a new folder."""
    model.save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(tokenizer(variant))
    return folder
