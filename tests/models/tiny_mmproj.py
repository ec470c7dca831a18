"""Projectors with random weights, as files: a small SigLIP encoder with the heads of two families,
and Qwen2-VL's.

gemma3: 16 rows per picture that see each other; janus_pro: 64 rows, each sees those before it;
MROPE: a row for 16 x 16 pixels, each sees those before it, with a row and a column in the picture.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

SIDE, PATCH, WIDTH, N_FF, N_LAYER = 64, 8, 32, 48, 2
N_ROWS = {"gemma3": 16, "janus_pro": 64}
MROPE = "qwen2vl_merger"


def write(
    path: Path,
    n_embd: int,
    kind: str = "gemma3",
    seed: int = 0,
    *,
    n_head: int = 2,
    cut: str = "",
) -> Path:
    """Write a projector for models with n_embd values per token. cut: a tensor of which half of the
    last dimension is missing."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", True)
    for key, value in {
        "image_size": SIDE, "patch_size": PATCH, "embedding_length": WIDTH,
        "feed_forward_length": N_FF, "block_count": N_LAYER, "attention.head_count": n_head,
        "projection_dim": n_embd, "projector.scale_factor": 2,
    }.items():  # fmt: skip
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5, 0.5, 0.5])

    def add(name: str, *shape: int, about: float = 0.0) -> None:
        values = rng.normal(about, 0.1, shape).astype(np.float32)
        writer.add_tensor(name, values[..., : shape[-1] // 2].copy() if name == cut else values)

    def linear(name: str, n_in: int, n_out: int) -> None:
        add(f"{name}.weight", n_out, n_in)
        add(f"{name}.bias", n_out)

    def norm(name: str) -> None:
        add(f"{name}.weight", WIDTH, about=1.0)
        add(f"{name}.bias", WIDTH)

    add("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    if kind == MROPE:
        add("v.patch_embd.weight.1", WIDTH, 3, PATCH, PATCH)  # of the second frame of a video
    else:
        add("v.patch_embd.bias", WIDTH)
        add("v.position_embd.weight", (SIDE // PATCH) ** 2, WIDTH)
    norm("v.post_ln")
    for il in range(N_LAYER):
        at = f"v.blk.{il}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            linear(f"{at}.{name}", WIDTH, WIDTH)
        norm(f"{at}.ln1")
        norm(f"{at}.ln2")
        linear(f"{at}.ffn_up", WIDTH, N_FF)
        linear(f"{at}.ffn_down", N_FF, WIDTH)
    if kind == "gemma3":
        add("mm.input_projection.weight", WIDTH, n_embd)
        add("mm.soft_emb_norm.weight", WIDTH, about=1.0)
    elif kind == MROPE:
        linear("mm.0", 4 * WIDTH, 4 * WIDTH)
        linear("mm.2", 4 * WIDTH, n_embd)
    else:
        linear("mm.0", WIDTH, N_FF)
        linear("mm.1", N_FF, n_embd)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
