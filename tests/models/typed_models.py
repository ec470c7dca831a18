"""Tiny models of several architectures and weight types, K types among them, and the plain text of
any of them, made without the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyselfspec import GREEDY, Context, LayerMask, Model, Sampler, SamplingParams
from tools.models import random_gguf, tiny_gguf

N_LAYER = 4
EXIT = LayerMask.early_exit(N_LAYER, 2)  # predicts well here: late blocks change little
SEEDED = SamplingParams(temperature=1.0, top_k=0, seed=11)
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED}

# Of architectures and weight types; gemma2 and gemma3 have blocks with a window of 32 tokens.
WINDOWED = ("gemma2", "gemma3")
MODELS = [
    (arch, qtype)
    for arch in ("llama", "gemma3", "falcon", "qwen2moe")
    for qtype in ("F16", "Q8_0", "Q4_0")
] + [("llama", "Q4_K"), ("llama", "Q6_K")]

TypedModel = Callable[[str, str], Model]


@contextmanager
def opened(tiny: Any, folder: Path) -> Iterator[TypedModel]:
    """Loaded models by architecture and weight type; a K type needs rows of 256, so its model is
    another one. Do not close them."""
    wide: dict[str, Model] = {}
    with ExitStack() as stack:

        def model(arch: str, qtype: str) -> Model:
            if qtype in tiny_gguf.FILE_TYPES:
                found: Model = tiny(arch, qtype=qtype, late_scale=0.05)
                return found
            if qtype not in wide:
                shape = random_gguf.Shape(n_layer=N_LAYER, n_embd=256, n_ff=512, n_vocab=519)
                recipe = random_gguf.Recipe(shape, qtype, seed=0, late_scale=0.05, late_from=2)
                random_gguf.write(folder / f"{qtype}.gguf", recipe, 4096, lambda _: None)
                wide[qtype] = stack.enter_context(Model(folder / f"{qtype}.gguf"))
            return wide[qtype]

        yield model


def require_exact(context: Context) -> None:
    """Skip where the library does not promise that bits are the same at every width, and drafts are
    not verified row by row either."""
    if context.abilities.pass_width > 1 and context.abilities.exact_width < 16:
        pytest.skip("our kernels do not compute here")


def plain_text(
    context: Context, prompt: Sequence[int], n: int, sampling: SamplingParams = GREEDY
) -> list[int]:
    """n tokens by hand: the prompt in passes of at most 16 tokens, then one token a pass. Nothing
    of what the context held is kept."""
    context.sequence().drop()
    for first in range(0, len(prompt) - 1, 16):
        context.decode(prompt[first : min(first + 16, len(prompt) - 1)], outputs="none")
    tokens: list[int] = []
    with Sampler(context.model, sampling.with_seed()) as sampler:
        sampler.begin(list(prompt))
        for _ in range(n):
            context.decode([[*prompt, *tokens][-1]])
            tokens.append(sampler.sample(context, 0))
            if context.model.is_eog(tokens[-1]):
                break
    return tokens
