"""pyselfspec chat: a conversation in a terminal or through a pipe, or one answer."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click
import cloup

from ._chat.answers import Once
from ._chat.loop import COMMANDS, ChatLoop
from ._chat.screen import Lines, Records, Screen
from ._chat.setup import Setup
from ._chat.typed_ahead import typing_waits
from ._drafting import DraftOptions
from ._help import ManyOptions
from ._machine import MachineOptions
from ._model import model_argument
from ._options import (
    MAX_TEXT,
    STDIN,
    common_options,
    n_predict_option,
    prompt_file_option,
    prompt_option,
    read_text,
    template_from,
    template_option,
    text_argument,
)
from ._pictures import PictureOptions
from ._sampling import SamplingOptions
from ._types import FILE, option, rare, takes

N_PREDICT = 1024  # tokens of an answer


@dataclass(frozen=True, slots=True)
class ConversationOptions:
    """The conversation, and how it is shown."""

    title: ClassVar[str] = "Conversation"
    prompt: str | None = prompt_option("Question to answer")
    prompt_file: str | None = prompt_file_option("File with the question.")
    system: str | None = option("--system", metavar="TEXT", help="System prompt.  [default: none]")
    template: str | None = template_option()
    load: Path | None = rare(
        "--load", type=FILE, help="Continue the conversation in a file that /save wrote."
    )
    show_drafts: bool = option(
        "--show-drafts",
        is_flag=True,
        help="Colour the tokens of answers by the drafter that they come from.",
    )
    n_predict: int = n_predict_option(N_PREDICT)


@cloup.command(name="chat", cls=ManyOptions)
@model_argument
@text_argument("Question to answer; without one, chat.")
@takes(
    options=ConversationOptions,
    pictures=PictureOptions,
    drafts=DraftOptions,
    sampling=SamplingOptions,
    machine=MachineOptions,
)
@common_options
def command(
    model: str,
    text: str | None,
    options: ConversationOptions,
    pictures: PictureOptions,
    drafts: DraftOptions,
    sampling: SamplingOptions,
    machine: MachineOptions,
    as_json: bool,
) -> None:
    """Chat with a model, or ask it one question.

    /help lists the commands and keys of a chat. Text from a pipe is appended to TEXT; without TEXT,
    each line of the pipe is a question. --json prints one object per answer.

    \b
    pyselfspec chat
    pyselfspec chat model.gguf --system "Answer in one sentence." --show-drafts
    pyselfspec chat model.gguf "Why is the sky blue?"
    pyselfspec chat model.gguf "Summarize this." < notes.txt
    """
    if STDIN in (options.prompt_file, drafts.mask_file, sampling.grammar_file, options.template):
        raise click.UsageError("stdin is read for messages; give a file instead of -")
    pictures.check()
    drafts.check()
    params = sampling.params()  # errors in options appear before a model is loaded
    template = template_from(options.template)
    question = _question(text, options.prompt, options.prompt_file)

    watched = not as_json and sys.stdout is not None and sys.stdout.isatty()
    is_talk = watched and question is None and sys.stdin is not None and sys.stdin.isatty()
    setup = Setup(machine, drafts, template, model, pictures)
    with (
        typing_waits() if is_talk else nullcontext("") as typed,
        setup.begin(n_predict=options.n_predict, sampling=params) as conversation,
    ):
        if options.load is not None:
            conversation.load(options.load)
        if options.system is not None:
            conversation.system = options.system
        screen: Screen = Records(model) if as_json else Lines()
        if is_talk:
            from ._chat.terminal import Terminal  # prompt_toolkit is slow to load

            screen = Terminal(model, COMMANDS, typed=typed, show_drafts=options.show_drafts)
        elif watched and question is not None:
            screen = Once(show_drafts=options.show_drafts)
        loop = ChatLoop(conversation, screen, setup, sampling)
        for path in pictures.images:
            loop.attach(path)
        loop.run(question, options.load)


def _question(argument: str | None, option: str | None, file: str | None) -> str | None:
    """Return the question to answer, with the text of a pipe; None for a conversation."""
    given = [each for each in (argument, option, file) if each is not None]
    if not given:
        return None
    if len(given) > 1:
        raise click.UsageError("give only one question: after MODEL, with -p or with -f")
    question = given[0] if file is None else read_text(file, MAX_TEXT).rstrip("\n")
    if sys.stdin is not None and not sys.stdin.isatty():
        text = read_text(STDIN, MAX_TEXT).rstrip("\n")
        question = f"{question}\n\n{text}" if text else question
    if not question.strip():
        raise click.UsageError("the question is empty; give one after MODEL, with -p or with -f")
    return question
