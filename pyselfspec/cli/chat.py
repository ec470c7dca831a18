"""pyselfspec chat: a conversation in the terminal or line by line through a pipe, or one answer."""

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
from ..chat.template import ChatTemplate
from ..errors import ModelFileError
from ..gguf.chat_template import tells_speakers_apart
from ..speculate.completion import CompletionOptions
from ._chat_answers import Once
from ._chat_commands import COMMANDS, Commands, talk
from ._chat_screen import Lines, Records, Screen
from ._chat_typing import typing_waits
from ._completion import complete_model
from ._drafting import (
    controller_from,
    describes_mask,
    draft_from,
    draft_options,
    drafter_options_from,
    mask_from,
)
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

N_PREDICT = 1024  # tokens of an answer


@cloup.command(name="chat")
@click.argument("model", envvar="PYSELFSPEC_MODEL", required=False, shell_complete=complete_model)
@click.argument("question", required=False)
@cloup.option_group(
    "Conversation",
    cloup.option("-p", "--prompt", metavar="QUESTION", help="Answer this question, and end."),
    cloup.option("--system", metavar="TEXT", help="System prompt."),
    chat_template_option,
    cloup.option(
        "--load",
        type=click.Path(path_type=Path),
        help="Go on with a conversation that /save has written.",
    ),
    cloup.option(
        "--show-drafts", is_flag=True, help="Colour the tokens of answers by who proposed them."
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
    """Talk with a model that was made to chat.

    Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D ends. /help lists what
    else can be typed. With a QUESTION it answers that and ends; text from a pipe follows the
    question. Without one, each line of a pipe is a question. --json prints one object per answer.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else the chat
    model on this machine that was used or pulled last.

    \b
    pyselfspec chat
    pyselfspec chat model.gguf --system "Answer in one sentence." --show-drafts
    pyselfspec chat model.gguf "Why is the sky blue?"
    pyselfspec chat model.gguf "Summarize this." < notes.txt
    """
    if STDIN in (options["mask_file"], options["grammar_file"], template):
        raise click.UsageError("stdin is where you talk; give a file instead of -")
    if draft_from(options) is None and describes_mask(options):
        raise click.UsageError("--draft off drafts nothing, so it takes no mask")
    sampling = sampling_from(options)  # what needs no model is checked before one is loaded
    controller = controller_from(options)
    template = template_from(template)
    question = _question(question, prompt)

    watched = not as_json and _is_terminal(sys.stdout)
    is_talk = watched and question is None and _is_terminal(sys.stdin)
    name, title = _choose(model, say=not is_talk)
    with (
        typing_waits() if is_talk else nullcontext("") as typed,
        open_model(name, **model_params(options)) as loaded,
        loaded.context(n_ctx=ctx_size(loaded, options), **context_params(options)) as context,
    ):
        chat_template = ChatTemplate.of(loaded, template)
        if template is None:
            _note_model(name, loaded.path, chat_template.source)
        completion: CompletionOptions = {
            "n_predict": options["n_predict"],
            "draft": draft_from(options),
            "options": drafter_options_from(loaded.n_layer, options),
            "mask": mask_from(loaded.n_layer, options),
            "profile": options["profile"] == "auto",
            "controller": controller,
            "sampling": sampling,
        }
        conversation = Conversation(context, chat_template, **completion)
        if load is not None:
            conversation.load(load)
        if system is not None:
            conversation.system = system
        screen: Screen = Records(name) if as_json else Lines()
        if is_talk:
            from ._chat_terminal import Terminal  # prompt_toolkit takes its time to load

            screen = Terminal(title, COMMANDS, typed=typed, show_drafts=show_drafts)
        elif watched and question is not None:
            screen = Once(show_drafts=show_drafts)
        _run(Commands(conversation, screen), question, load)


def _question(argument: str | None, option: str | None) -> str | None:
    """The one question to answer, with what comes through a pipe; None for a conversation."""
    if argument is not None and option is not None:
        raise click.UsageError("give one question: after MODEL or with -p")
    question = option if argument is None else argument
    if question is None:
        return None
    if sys.stdin is not None and not sys.stdin.isatty():
        text = read_text(STDIN, MAX_TEXT).rstrip("\n")
        question = f"{question}\n\n{text}" if text else question
    if not question.strip():
        raise click.UsageError("the question is empty")
    return question


def _choose(model: str | None, *, say: bool) -> tuple[str, str]:
    """The name that opens the model, and the title that people see; say: on stderr, too."""
    if model is not None and " " in model.strip() and not Path(model).exists():
        raise click.UsageError(
            f"{model!r} is no file; to ask something, give MODEL first, or use -p"
        )
    if model is not None:
        try:
            hub.model_path(model)
        except hub.UnknownModelError as error:
            raise ModelFileError(f"{error}; a question goes after MODEL, or with -p") from error
        return model, model
    name = installed.latest().name
    title = f"{name} (used or pulled last)"
    if say:
        click.echo(f"model: {title}", err=True)
    return name, title


def _note_model(name: str, path: Path, template: str) -> None:
    """Keep it as the latest chat model, or warn that it is none."""
    if tells_speakers_apart(template):
        installed.remember(path)
        return
    click.echo(
        f"Warning: {name} is not a chat model: it continues your text and answers nothing; get one "
        f"that answers with: {installed.GET_ONE}",
        err=True,
    )


def _run(commands: Commands, question: str | None, load: Path | None) -> None:
    """The whole chat, or the answer to one question."""
    conversation = commands.conversation
    try:
        if load is not None and question is None:
            commands.goes_on_from(load)
        if question is None:
            talk(commands)
        else:
            commands.answer(conversation.ask(question))
    finally:
        if conversation.completion is not None:
            conversation.completion.remember()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
