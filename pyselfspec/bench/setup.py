"""How a benchmark is set up: the ways, the prompts as tokens, and what to say about it all."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .. import __version__
from ..chat.template import ChatTemplate
from ..costs.calibration import machine
from ..errors import ContextFullError
from ..runtime import vocabulary
from ..runtime._lib import system_info
from ..runtime.context import Context
from ..runtime.model import Model
from ..runtime.processor import cpu_backend, variant
from ..util import paths
from ..util.build import BUILD_ID
from .measuring import Answering, Question
from .prompts import Prompt, digest
from .types import Compared, Setup
from .ways import Way


def template_of(model: Model) -> ChatTemplate | None:
    """The model's own; None where it has none."""
    return ChatTemplate.of(model) if vocabulary.chat_template(model) is not None else None


def questions(
    context: Context, prompts: Sequence[Prompt], template: ChatTemplate | None
) -> list[Question]:
    """What the model gets: prompts in its chat template, or without one, their text.

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
                f"{context.n_ctx}; give a larger n_ctx or a shorter prompt"
            )
        found.append(Question(prompt.name, prompt.task, tuple(tokens)))
    return found


def setup_of(
    answering: Answering,
    ways: Sequence[Way],
    prompts: Sequence[Prompt],
    *,
    source: str,
    templated: bool,
    seed: int,
    command: str,
) -> Setup:
    """source: the name of where the prompts are from."""
    context = answering.context
    model, file = context.model, context.model.file
    skips = next((way.skips for way in ways if way.skips is not None), None)
    return Setup(
        version=__version__,
        build=BUILD_ID,
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
        attention=context.attention,
        prompts=paths.shown(source),
        prompts_sha256=digest(prompts),
        n_prompts=len(prompts),
        template=templated,
        n_predict=answering.n_predict,
        temperature=answering.temperature,
        seed=seed,
        controller=str(answering.controller),
        ways=tuple(Compared(way.name, way.drafters) for way in ways),
        mask=None if skips is None else skips.to_dict(),
        command=paths.shown(command),
        date=time.strftime("%Y-%m-%d"),
    )
