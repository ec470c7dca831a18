"""pyselfspec chat: a conversation in a terminal or through a pipe, or one answer."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

import click
import cloup

from .. import hub
from ..chat import installed
from ..chat.conversation import Conversation
from ..errors import UnknownModelError
from ..gguf.chat_template import tells_speakers_apart
from ..templates.template import ChatTemplate
from ._chat_answers import Once
from ._chat_commands import COMMANDS, Commands, talk
from ._chat_screen import Lines, Records, Screen
from ._chat_typing import typing_waits
from ._completion import complete_model
from ._drafting import check_drafting, config_from, draft_options
from ._options import (
    MAX_TEXT,
    STDIN,
    chat_template_option,
    common_options,
    context_options,
    context_params,
    ctx_size,
    model_params,
    n_predict_option,
    open_model,
    read_text,
    template_from,
)
from ._sampling import sampling_from, sampling_options
from ._types import FILE

N_PREDICT = 1024  # tokens of an answer


@cloup.command(name="chat")
@cloup.argument(
    "model",
    envvar="PYSELFSPEC_MODEL",
    required=False,
    shell_complete=complete_model,
    help="GGUF file, or a name that pyselfspec models list shows.  [default: $PYSELFSPEC_MODEL, "
    "else the chat model on this machine that was used or pulled last]",
)
@cloup.argument("question", required=False, help="Question to answer; without one, chat.")
@cloup.option_group(
    "Conversation",
    cloup.option(
        "-p",
        "--prompt",
        metavar="QUESTION",
        help="Question to answer, in place of the argument QUESTION.",
    ),
    cloup.option("--system", metavar="TEXT", help="System prompt.  [default: none]"),
    chat_template_option,
    cloup.option(
        "--load",
        type=FILE,
        help="Continue the conversation in a file that /save wrote.",
    ),
    cloup.option(
        "--show-drafts",
        is_flag=True,
        help="Colour the tokens of answers by the drafter that they come from.",
    ),
    n_predict_option(N_PREDICT),
)
@draft_options
@sampling_options
@context_options
@common_options
def command(
    model: str | None,
    question: str | None,
    prompt: str | None,
    system: str | None,
    template: str | None,
    load: Path | None,
    show_drafts: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Chat with a model, or ask it one question.

    Enter sends, Alt-Enter starts a new line, Ctrl-C stops an answer, Ctrl-D exits, /help lists the
    commands. Text from a pipe is appended to QUESTION; without QUESTION, each line of the pipe is a
    question. --json prints one object per answer.

    \b
    pyselfspec chat
    pyselfspec chat model.gguf --system "Answer in one sentence." --show-drafts
    pyselfspec chat model.gguf "Why is the sky blue?"
    pyselfspec chat model.gguf "Summarize this." < notes.txt
    """
    if STDIN in (options["mask_file"], options["grammar_file"], template):
        raise click.UsageError("stdin is read for messages; give a file instead of -")
    check_drafting(options)
    sampling = sampling_from(options)  # errors in options appear before a model is loaded
    template = template_from(template)
    question = _question(question, prompt)

    watched = not as_json and _is_terminal(sys.stdout)
    is_talk = watched and question is None and _is_terminal(sys.stdin)
    name, title = _choose(model, announce=not is_talk)
    with (
        typing_waits() if is_talk else nullcontext("") as typed,
        open_model(name, **model_params(options)) as loaded,
        loaded.context(n_ctx=ctx_size(loaded, options), **context_params(options)) as context,
    ):
        chat_template = ChatTemplate.of(loaded, template)
        if template is None:
            _note_model(name, loaded.path, chat_template.source)
        conversation = Conversation(
            context,
            chat_template,
            config_from(loaded.n_layer, options),
            n_predict=options["n_predict"],
            sampling=sampling,
        )
        if load is not None:
            conversation.load(load)
        if system is not None:
            conversation.system = system
        screen: Screen = Records(name) if as_json else Lines()
        if is_talk:
            from ._chat_terminal import Terminal  # prompt_toolkit is slow to load

            screen = Terminal(title, COMMANDS, typed=typed, show_drafts=show_drafts)
        elif watched and question is not None:
            screen = Once(show_drafts=show_drafts)
        _run(Commands(conversation, screen), question, load)


def _question(argument: str | None, option: str | None) -> str | None:
    """Return the question to answer, with the text of a pipe; None for a conversation."""
    if argument is not None and option is not None:
        raise click.UsageError("two questions are given; give one, after MODEL or with -p")
    question = option if argument is None else argument
    if question is None:
        return None
    if sys.stdin is not None and not sys.stdin.isatty():
        text = read_text(STDIN, MAX_TEXT).rstrip("\n")
        question = f"{question}\n\n{text}" if text else question
    if not question.strip():
        raise click.UsageError("the question is empty; give one after MODEL or with -p")
    return question


def _choose(model: str | None, *, announce: bool) -> tuple[str, str]:
    """Return the name to open the model by, and its title for users.

    announce: print the title to stderr if the model is a default.
    """
    if model is not None and " " in model.strip() and not Path(model).exists():
        raise click.UsageError(
            f"{model!r} is not a file; to ask a question, give MODEL first, or use -p"
        )
    if model is not None:
        try:
            hub.model_path(model)
        except UnknownModelError as error:
            hint = f"{error}; a question goes after MODEL, or with -p"
            raise UnknownModelError(hint) from error
        return model, model
    name = installed.latest().name
    title = f"{name} (used or pulled last)"
    if announce:
        click.echo(f"model: {title}", err=True)
    return name, title


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


def _run(commands: Commands, question: str | None, load: Path | None) -> None:
    """Run the whole chat, or answer one question."""
    conversation = commands.conversation
    try:
        if load is not None and question is None:
            commands.show_loaded(load)
        if question is None:
            talk(commands)
        else:
            commands.answer(conversation.ask(question))
    finally:
        if conversation.completion is not None:
            conversation.completion.remember()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
