"""The architectures of tiny models, and the tensors of each."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_DIM = 32  # the block size of Q8_0 and Q4_0, so quantized K/V caches work too
SLIDING_WINDOW = 32  # tokens; short, so that tests cross it
N_EXPERT = 4
NORM_EPS = 1e-5


@dataclass(frozen=True)
class Arch:
    """The tensors of one architecture."""

    kv_share: int = 2  # query heads per K/V head; 0: one K/V head for all
    fused_qkv: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    layer_norm: bool = False  # LayerNorm with bias; otherwise RMS norm
    ffn: str = "gated"  # gated | fused (gate and up in one) | plain (no gate) | experts
    ffn_norm: bool = True  # False: attention and feed-forward share one norm
    out_bias: bool = False  # biases on attn_output, ffn_up and ffn_down
    post_norm: bool = False
    shared_expert: bool = False
    tied: bool = False  # the head is the token embedding
    partial_rotary: bool = False
    window_period: int = 0  # every n-th block attends to everything, the others to a window
    rope_sections: tuple[int, ...] = ()  # pairs of values by dimension of RoPE, with M-RoPE
    n_deepstack: int = 0  # blocks that add a part of a picture's row each


ARCHS = {
    "llama": Arch(),
    "qwen2": Arch(qkv_bias=True),
    "qwen3": Arch(qk_norm=True),
    "gemma2": Arch(post_norm=True, tied=True, window_period=2),
    "gemma3": Arch(qk_norm=True, post_norm=True, tied=True, window_period=3),
    "phi3": Arch(fused_qkv=True, ffn="fused"),
    "gptneox": Arch(
        kv_share=1, fused_qkv=True, qkv_bias=True, layer_norm=True, ffn="plain", out_bias=True,
        partial_rotary=True,
    ),
    "falcon": Arch(kv_share=0, fused_qkv=True, layer_norm=True, ffn="plain", ffn_norm=False),
    "qwen3moe": Arch(qk_norm=True, ffn="experts"),
    "qwen2moe": Arch(qkv_bias=True, ffn="experts", shared_expert=True),
    "qwen2vl": Arch(qkv_bias=True, rope_sections=(4, 6, 6, 0)),
    "qwen3vl": Arch(qk_norm=True, rope_sections=(6, 5, 5, 0), n_deepstack=2),
}  # fmt: skip
# qwen3vl differs from qwen2vl in pictures only
ARCHITECTURES: tuple[str, ...] = tuple(name for name in ARCHS if name != "qwen3vl")


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: GGUF name and numpy shape (outputs first, inputs last)."""

    name: str
    shape: tuple[int, ...]
    keep_f32: bool = False  # small or sensitive: never quantized


def block_of(name: str) -> int | None:
    """Block number of a tensor name, None outside the blocks."""
    return int(name.split(".")[1]) if name.startswith("blk.") else None


def model_tensors(arch: Arch, n_layer: int, n_embd: int, n_vocab: int) -> list[Tensor]:
    """All tensors of a model, blocks 0..n_layer-1, in file order."""
    tensors = [Tensor("token_embd.weight", (n_vocab, n_embd))]
    for block in range(n_layer):
        tensors += [
            Tensor(f"blk.{block}.{t.name}", t.shape, t.keep_f32)
            for t in (*_attention(arch, n_embd), *_feed_forward(arch, n_embd))
        ]
    tensors += _norm(arch, "output_norm", n_embd)
    if not arch.tied:
        tensors.append(Tensor("output.weight", (n_vocab, n_embd)))
    return tensors


def _vector(name: str, n: int) -> Tensor:
    return Tensor(name, (n,), keep_f32=True)


def _norm(arch: Arch, name: str, n: int) -> list[Tensor]:
    norm = [_vector(f"{name}.weight", n)]
    return [*norm, _vector(f"{name}.bias", n)] if arch.layer_norm else norm


def _linear(name: str, n_out: int, n_in: int, bias: bool) -> list[Tensor]:
    linear = [Tensor(f"{name}.weight", (n_out, n_in))]
    return [*linear, _vector(f"{name}.bias", n_out)] if bias else linear


def _attention(arch: Arch, n_embd: int) -> list[Tensor]:
    n_kv = n_head_kv(arch, n_embd) * HEAD_DIM
    tensors = _norm(arch, "attn_norm", n_embd)
    if arch.fused_qkv:
        tensors += _linear("attn_qkv", n_embd + 2 * n_kv, n_embd, arch.qkv_bias)
    else:
        for name, n_out in (("attn_q", n_embd), ("attn_k", n_kv), ("attn_v", n_kv)):
            tensors += _linear(name, n_out, n_embd, arch.qkv_bias)
    if arch.qk_norm:
        tensors += [_vector(f"attn_{x}_norm.weight", HEAD_DIM) for x in "qk"]
    tensors += _linear("attn_output", n_embd, n_embd, arch.out_bias)
    if arch.post_norm:
        tensors.append(_vector("post_attention_norm.weight", n_embd))
    return tensors


def _feed_forward(arch: Arch, n_embd: int) -> list[Tensor]:
    n_ff = ff_width(n_embd)
    tensors = _norm(arch, "ffn_norm", n_embd) if arch.ffn_norm else []
    if arch.ffn == "experts":
        tensors += _experts(n_embd, expert_width(n_embd))
    else:
        if arch.ffn == "gated":
            tensors += _linear("ffn_gate", n_ff, n_embd, False)
        n_up = 2 * n_ff if arch.ffn == "fused" else n_ff
        tensors += _linear("ffn_up", n_up, n_embd, arch.out_bias)
        tensors += _linear("ffn_down", n_embd, n_ff, arch.out_bias)
    if arch.shared_expert:
        tensors.append(_vector("ffn_gate_inp_shexp.weight", n_embd))
        tensors += _linear("ffn_gate_shexp", n_ff, n_embd, False)
        tensors += _linear("ffn_up_shexp", n_ff, n_embd, False)
        tensors += _linear("ffn_down_shexp", n_embd, n_ff, False)
    if arch.post_norm:
        tensors.append(_vector("post_ffw_norm.weight", n_embd))
    return tensors


def _experts(n_embd: int, n_ff: int) -> list[Tensor]:
    return [
        Tensor("ffn_gate_inp.weight", (N_EXPERT, n_embd), keep_f32=True),
        Tensor("ffn_gate_exps.weight", (N_EXPERT, n_ff, n_embd)),
        Tensor("ffn_up_exps.weight", (N_EXPERT, n_ff, n_embd)),
        Tensor("ffn_down_exps.weight", (N_EXPERT, n_embd, n_ff)),
    ]


def n_head(n_embd: int) -> int:
    return n_embd // HEAD_DIM


def n_head_kv(arch: Arch, n_embd: int) -> int:
    return n_head(n_embd) // arch.kv_share if arch.kv_share else 1


def ff_width(n_embd: int) -> int:
    return 2 * n_embd


def expert_width(n_embd: int) -> int:
    return n_embd // 2
