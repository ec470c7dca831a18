"""The models of a chat, opened as its command line says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Unpack

import click

from ...chat import installed
from ...chat.conversation import Conversation
from ...gguf.chat_template import tells_speakers_apart
from ...runtime.context import Context
from ...runtime.projector import Projector
from ...speculate.completion import CompletionOptions
from ...speculate.config import DraftConfig
from ...templates.template import ChatTemplate
from .._drafting import DraftOptions
from .._machine import MachineOptions
from .._pictures import PictureOptions


class Opened(NamedTuple):
    """An open model with what a conversation needs; closing the model closes all of it."""

    context: Context
    template: ChatTemplate
    config: DraftConfig
    projector: Projector | None


@dataclass(frozen=True, slots=True)
class Setup:
    """How the models of a chat are opened.

    template: a source or a name, None for the model's. first: the name of the model that the
    projector belongs to.
    """

    machine: MachineOptions
    drafts: DraftOptions
    template: str | None
    first: str
    pictures: PictureOptions

    @contextmanager
    def begin(self, **options: Unpack[CompletionOptions]) -> Iterator[Conversation]:
        """Yield a conversation with the first model; close the model that it ends with."""
        context, template, config, projector = self.open(self.first)
        conversation = Conversation(context, template, config, projector=projector, **options)
        try:
            yield conversation
        finally:
            conversation.context.model.close()

    def open(self, name: str) -> Opened:
        """Open a model by path or name, and remember it as the latest chat model. Warns if it is
        not a chat model."""
        model = self.machine.model(name)
        try:
            template = ChatTemplate.of(model, self.template)
            config = self.drafts.config(model.n_layer)
            projector = None
            if name == self.first:
                projector = self.pictures.projector(model, self.machine.threads)
            opened = Opened(self.machine.context(model), template, config, projector)
        except BaseException:
            model.close()
            raise
        if self.template is None:
            _note_model(name, model.path, template.source)
        return opened


def _note_model(name: str, path: Path, template: str) -> None:
    """Record the model as the latest chat model, or warn that it is not a chat model."""
    if tells_speakers_apart(template):
        installed.remember(path)
        return
    click.echo(
        f"Warning: {name} is not a chat model: it continues your text instead of answering; get a "
        f"chat model with: {installed.GET_ONE}",
        err=True,
    )
