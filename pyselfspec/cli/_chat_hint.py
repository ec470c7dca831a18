"""The hint of generate to use chat with a chat model."""

from __future__ import annotations

import shlex
import sys

import click

from ..gguf.chat_template import tells_speakers_apart
from ..runtime import vocabulary
from ..speculate.completion import Completion


def suggest_chat(completion: Completion, model: str) -> None:
    """Print how to chat with a chat model, on a terminal, unless the prompt is a chat already.

    model: name by which the model was opened.
    """
    template = vocabulary.chat_template(completion.context.model)
    watched = sys.stderr is not None and sys.stderr.isatty()
    if not watched or not completion.text or template is None:
        return
    if tells_speakers_apart(template) and not _is_chat(completion, template):
        name = shlex.quote(model)
        hint = f'this is a chat model; ask it with: pyselfspec chat {name} "your question"'
        click.echo(hint, err=True)


def _is_chat(completion: Completion, template: str) -> bool:
    """Tell whether the prompt has control tokens of the template."""
    model, prompt = completion.context.model, list(completion.prompt)
    text = model.detokenize(prompt[1:] if prompt[:1] == [model.start_token] else prompt)
    return any(
        marker.text in template and marker.text in text
        for marker in vocabulary.markers(model)
        if marker.is_control
    )
