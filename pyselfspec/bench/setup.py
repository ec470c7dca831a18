"""Prepares a benchmark: prompts as tokens, and the record of its setup."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .. import __version__
from ..costs.store import machine
from ..errors import ContextFullError
from ..runtime import vocabulary
from ..runtime.context import Context
from ..runtime.ffi.devices import system_info
from ..runtime.model import Model
from ..runtime.processor import cpu_backend, variant
from ..templates.template import ChatTemplate
from ..util import build, paths
from .measuring import Runner, TokenizedPrompt
from .prompts import Prompt, digest
from .types import Setup, VariantName
from .variants import Variant


def template_of(model: Model) -> ChatTemplate | None:
    """Return the model's chat template, None if it has none."""
    return ChatTemplate.of(model) if vocabulary.chat_template(model) is not None else None


def tokenize_prompts(
    context: Context, prompts: Sequence[Prompt], template: ChatTemplate | None
) -> list[TokenizedPrompt]:
    """Return the prompts as tokens, rendered with the chat template if there is one.

    Raises ContextFullError for a prompt that leaves no room for an answer.
    """
    found = []
    for prompt in prompts:
        tokens = (
            context.model.tokenize(prompt.text)
            if template is None
            else template.tokens(prompt.messages)
        )
        if len(tokens) >= context.n_ctx:
            raise ContextFullError(
                f"the prompt {prompt.name!r} has {len(tokens)} tokens, the context "
                f"{context.n_ctx}; give a larger n_ctx (-c) or a shorter prompt"
            )
        found.append(TokenizedPrompt(prompt.name, prompt.task, tuple(tokens)))
    return found


def make_setup(
    runner: Runner,
    variants: Sequence[Variant],
    prompts: Sequence[Prompt],
    *,
    source: str,
    templated: bool,
    seed: int,
    command: str,
) -> Setup:
    """Return the setup. source: name of the file of prompts. templated: whether they are chats."""
    context = runner.context
    model, file = context.model, context.model.file
    skips = next((variant.skips for variant in variants if variant.skips is not None), None)
    return Setup(
        version=__version__,
        build=build.BUILD_ID,
        model=paths.shown(model.path.name),
        fingerprint=model.fingerprint,
        architecture=file.architecture,
        file_type=file.file_type,
        n_params=file.n_params,
        n_bytes=file.n_bytes,
        machine=machine(),
        cpu_code=variant(cpu_backend()),
        system=system_info(),
        threads=context.n_threads,
        n_gpu_layers=model.n_gpu_layers,
        n_ctx=context.n_ctx,
        attention=context.options.attention,
        prompts=paths.shown(source),
        prompts_sha256=digest(prompts),
        n_prompts=len(prompts),
        template=templated,
        n_predict=runner.n_predict,
        temperature=runner.temperature,
        seed=seed,
        controller=str(runner.controller),
        variants=tuple(VariantName(variant.name, variant.drafters) for variant in variants),
        mask=None if skips is None else skips.to_dict(),
        command=paths.shown(command),
        date=time.strftime("%Y-%m-%d"),
    )
