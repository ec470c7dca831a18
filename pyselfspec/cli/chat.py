"""pyselfspec chat: a conversation in the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import cloup

from ..chat.conversation import Conversation
from ..chat.template import ChatTemplate
from ..speculate.completion import CompletionOptions
from ._chat_commands import COMMANDS, Commands, talk
from ._chat_screen import Lines, Records, Screen
from ._drafting import (
    controller_from,
    describes_mask,
    draft_from,
    draft_options,
    drafter_options_from,
    mask_from,
)
from ._options import (
    STDIN,
    chat_template_option,
    common_options,
    context_options,
    context_params,
    ctx_size,
    model_argument,
    model_params,
    n_predict_option,
    open_model,
    template_from,
)
from ._sampling import sampling_from, sampling_options

N_PREDICT = 1024  # tokens of an answer


@cloup.command(name="chat")
@model_argument
@cloup.option_group(
    "Conversation",
    cloup.option(
        "--system", metavar="TEXT", help="What the model is told before the conversation."
    ),
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
    model: str,
    system: str | None,
    template: str | None,
    load: Path | None,
    show_drafts: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Talk with a model that was made to chat.

    Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D ends. /help lists what
    else can be typed. Through a pipe each line is said in turn, and answered; --json prints one
    object per answer. What you type never becomes one of the model's control tokens.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".

    \b
    pyselfspec chat model.gguf
    pyselfspec chat model.gguf --system "Answer in one sentence." --show-drafts
    echo "Why is the sky blue?" | pyselfspec chat model.gguf --temp 0
    """
    if STDIN in (options["mask_file"], options["grammar_file"], template):
        raise click.UsageError("stdin is where you talk; give a file instead of -")
    if draft_from(options) is None and describes_mask(options):
        raise click.UsageError("--draft off drafts nothing, so it takes no mask")
    sampling = sampling_from(options)  # what needs no model is checked before one is loaded
    controller = controller_from(options)
    template = template_from(template)

    with (
        open_model(model, **model_params(options)) as loaded,
        loaded.context(n_ctx=ctx_size(loaded, options), **context_params(options)) as context,
    ):
        completion: CompletionOptions = {
            "n_predict": options["n_predict"],
            "draft": draft_from(options),
            "options": drafter_options_from(loaded.n_layer, options),
            "mask": mask_from(loaded.n_layer, options),
            "profile": options["profile"] == "auto",
            "controller": controller,
            "sampling": sampling,
        }
        chat_template = ChatTemplate.of(loaded, template)
        conversation = Conversation(context, chat_template, **completion)
        if load is not None:
            conversation.load(load)
        if system is not None:
            conversation.system = system
        try:
            talk(Commands(conversation, _screen(model, as_json, show_drafts)))
        finally:
            if conversation.completion is not None:
                conversation.completion.remember()


def _screen(model: str, as_json: bool, show_drafts: bool) -> Screen:
    if as_json:
        return Records(model)
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        from ._chat_terminal import Terminal  # prompt_toolkit takes its time to load

        return Terminal(model, COMMANDS, show_drafts=show_drafts)
    return Lines()
