"""What can be typed in a chat: something to say, or one of the commands below."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from ..chat.conversation import Conversation, Piece
from ..errors import ArgumentError, SelfSpecError
from ..speculate.completion import CONTEXT_FULL
from ..speculate.report import closing_line
from ._chat_screen import Screen
from ._drafting import OFF, parse_draft
from ._signals import Ended
from ._words import in_options

SIGN = "/"


@dataclass(frozen=True, slots=True)
class Command:
    """argument: its name in /help; run gets what is typed there, nothing for nothing."""

    argument: str
    help: str
    run: Callable[[Commands, str], None]


class Commands:
    """For one conversation. draft: what the next line begins as, to be edited."""

    def __init__(self, conversation: Conversation, screen: Screen) -> None:
        self.conversation = conversation
        self.screen = screen
        self.draft = ""
        self.mask = conversation.options.get("mask")  # of the command line
        self.ended = False

    def take(self, said: str) -> None:
        """Do what was typed. Errors are shown, and the conversation goes on."""
        said = said.strip()
        if not said:
            return
        try:
            if not said.startswith(SIGN) or said.startswith(2 * SIGN):
                self.answer(self.conversation.ask(said.removeprefix(SIGN)))
                return
            name, *rest = said.removeprefix(SIGN).split(maxsplit=1) or ("",)
            command = COMMANDS.get(name)
            if command is None:
                known = ", ".join(SIGN + each for each in COMMANDS)
                self.screen.error(f"there is no /{name}; known are {known}; // says a slash")
                return
            command.run(self, "".join(rest))
        except (SelfSpecError, click.UsageError) as error:
            text = error.message if isinstance(error, click.UsageError) else str(error)
            self.screen.error(in_options(text))

    def answer(self, pieces: Generator[Piece, None, None]) -> None:
        """Show an answer while it comes; Ctrl-C stops it."""
        n_left_out = self.conversation.n_left_out
        try:
            with closing(pieces):
                self.screen.answer(pieces)
        except Ended:
            raise
        except KeyboardInterrupt:
            self.screen.stopped()
        completion = self.conversation.completion
        if completion is None or completion.finish_reason is None:
            return  # stopped before it began
        n = self.conversation.n_left_out
        if n > n_left_out:
            self.screen.note(
                f"the context is full: the model does not see the first {n} messages any more"
            )
        if completion.finish_reason == CONTEXT_FULL:
            self.screen.note("the context is full, so the answer ends here; see -c")
        self.screen.answered(self.conversation, completion)


def talk(commands: Commands) -> None:
    """Until there is nothing more to say."""
    screen = commands.screen
    while not commands.ended:
        said = screen.read(commands.draft)
        if said is None:
            return
        commands.draft = ""
        try:
            commands.take(said)
        except Ended:
            raise
        except KeyboardInterrupt:
            screen.stopped()


def _again(commands: Commands, _argument: str) -> None:
    commands.answer(commands.conversation.again())
    sampling = commands.conversation.options.get("sampling")
    if sampling is not None and sampling.is_greedy:
        commands.screen.note("at temperature 0 every answer is the same")


def _edit(commands: Commands, text: str) -> None:
    if text:
        commands.answer(commands.conversation.again(text))
        return
    question = commands.conversation.question
    if question is None:
        raise ArgumentError("nothing has been asked yet")
    commands.draft = f"/edit {question}"
    commands.screen.note("change the latest question and send it again")


def _save(commands: Commands, name: str) -> None:
    path = _path(name, "/save")
    with _errors_of(path):
        commands.conversation.save(path)
    commands.screen.note(f"saved to {path}")


def _load(commands: Commands, name: str) -> None:
    path = _path(name, "/load")
    with _errors_of(path):
        commands.conversation.load(path)
    n = len(commands.conversation.messages)
    commands.screen.note(f"{n} messages from {path}")


def _path(name: str, command: str) -> Path:
    if not name:
        raise click.UsageError(f"give the name of a file: {command} FILE")
    return Path(name).expanduser()


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Those of a file do not end the chat; those of stdout do."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from error


def _system(commands: Commands, text: str) -> None:
    if text:
        commands.conversation.system = None if text == OFF else text
    told = commands.conversation.system
    commands.screen.note("the model is told nothing first" if told is None else f"told: {told}")


def _stats(commands: Commands, _argument: str) -> None:
    completion = commands.conversation.completion
    if completion is None:
        commands.screen.note("there is no answer yet")
        return
    stats, context = completion.stats, commands.conversation.context
    n_held = len(completion.prompt) + len(completion.tokens)
    commands.screen.note(closing_line(completion, verbose=True))
    commands.screen.note(
        f"{stats.n_prompt} tokens were said until then, {stats.n_prompt_reused} of them known from "
        f"before; the first token came after {stats.prefill_us / 1000:.0f} ms; the context holds "
        f"{n_held} of {context.n_ctx} tokens"
    )


def _draft(commands: Commands, name: str) -> None:
    options = commands.conversation.options
    if name:
        chosen = parse_draft(click.get_current_context(), click.Option(["--draft"]), name)
        options["draft"] = None if chosen == OFF else chosen
        options["options"] = None  # they belong to the drafter that was
        options["mask"] = None if chosen == OFF else commands.mask
    commands.screen.note(f"drafts: {options.get('draft') or OFF}")


def _clear(commands: Commands, _argument: str) -> None:
    commands.conversation.clear()
    commands.screen.note("a new conversation")


def _help(commands: Commands, _argument: str) -> None:
    rows = [(f"/{name} {each.argument}".strip(), each.help) for name, each in COMMANDS.items()]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        commands.screen.note(f"{name:{width}}  {text}")
    for line in commands.screen.keys:
        commands.screen.note(line)


def _quit(commands: Commands, _argument: str) -> None:
    commands.ended = True


COMMANDS = {
    "regen": Command("", "Answer the latest question again.", _again),
    "edit": Command("[TEXT]", "Ask something else in place of the latest question.", _edit),
    "save": Command("FILE", "Write the conversation to a file.", _save),
    "load": Command("FILE", "Go on with a saved conversation.", _load),
    "clear": Command("", "Begin a new conversation.", _clear),
    "system": Command("[TEXT|off]", "Show or change what the model is told first.", _system),
    "draft": Command("[NAME]", "Show or change how to draft, as --draft does.", _draft),
    "stats": Command("", "How the latest answer went.", _stats),
    "help": Command("", "Show this.", _help),
    "quit": Command("", "End, as Ctrl-D does.", _quit),
}
