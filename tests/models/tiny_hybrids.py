"""Tiny random models with recurrent states, as GGUF files."""

from __future__ import annotations

from pathlib import Path

from tools.models import random_gguf

# Gains of the sublayers with which the states decide the greedy text, so that some of the tokens
# copied from it are rejected.
VARIED = {"lfm2": 2.0, "qwen35": 3.5, "nemotron_h": 2.5, "mamba2": 2.2, "mamba": 8.0}


def write_hybrid(
    path: Path, arch: str, *, varied: bool = False, seed: int = 0, n_ctx: int = 512
) -> Path:
    """A float model of four blocks, whose greedy text is a cycle of tokens unless it is varied."""
    gain = VARIED[arch] if varied else 1.0
    return random_gguf.write_tiny(path, arch, gain=gain, seed=seed, n_ctx=n_ctx)
