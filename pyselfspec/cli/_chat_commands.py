"""What can be typed in a chat: something to say, or one of the commands below."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from ..chat.conversation import Conversation
from ..chat.thoughts import Piece
from ..errors import ArgumentError, SelfSpecError
from ..speculate.completion import CONTEXT_FULL, INTERRUPTED
from ..speculate.prepared import prepared
from ..speculate.report import closing_line
from ..util.files import require_no_model
from ._chat_screen import Screen
from ._chat_typing import unquoted
from ._drafting import OFF, parse_draft
from ._signals import Ended
from ._words import in_options

SIGN = "/"


@dataclass(frozen=True, slots=True)
class Command:
    """argument: its name in /help; run gets what is typed there, nothing for nothing. also: other
    names, as other programs have them."""

    argument: str
    help: str
    run: Callable[[Commands, str], None]
    also: tuple[str, ...] = ()


class Commands:
    """For one conversation. draft: what the next line begins as, to be edited. file: that holds
    this conversation, so /save may replace it unasked."""

    def __init__(self, conversation: Conversation, screen: Screen) -> None:
        self.conversation = conversation
        self.screen = screen
        self.draft = ""
        self.mask = conversation.options.get("mask")  # of the command line
        self.file: Path | None = None
        self.ended = False

    def take(self, said: str) -> None:
        """Do what was typed. Errors are shown, and the conversation goes on."""
        said, is_quoted = unquoted(said)
        if not said:
            return
        try:
            if is_quoted or not said.startswith(SIGN) or said.startswith(2 * SIGN):
                self.answer(self.conversation.ask(said if is_quoted else said.removeprefix(SIGN)))
                return
            found = find_command(said.removeprefix(SIGN))
            if found is None:
                name = said.split()[0]
                known = ", ".join(SIGN + each for each in COMMANDS)
                self.screen.error(
                    f"unknown command {name}; commands are {known}; begin with {SIGN}{SIGN} to "
                    "send text that starts with a slash"
                )
                return
            command, argument = found
            if argument and not command.argument:
                raise click.UsageError(
                    f"{said.split()[0]} takes nothing after it; begin with {SIGN}{SIGN} to send "
                    "text that starts with a slash"
                )
            command.run(self, argument)
        except (SelfSpecError, click.UsageError) as error:
            text = error.message if isinstance(error, click.UsageError) else str(error)
            self.screen.error(in_options(text))

    def goes_on_from(self, path: Path) -> None:
        """Show the last turns of the conversation that was loaded from this file."""
        self.file = path.resolve()
        messages = self.conversation.messages
        self.screen.turns(messages)
        self.screen.note(f"{len(messages)} messages from {path}")

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
        elif self.conversation.thoughts.are_open and completion.finish_reason != INTERRUPTED:
            self.screen.note("the model was still thinking; a larger -n leaves room for an answer")
        self.screen.answered(self.conversation, completion)


def find_command(typed: str) -> tuple[Command, str] | None:
    """The command that was typed, without its sign, and what follows its name."""
    for name, command in COMMANDS.items():
        for each in (name, *command.also):
            match = re.fullmatch(rf"{re.escape(each)}(?:\s+(?P<argument>.*))?", typed, re.DOTALL)
            if match is not None:
                return command, match["argument"] or ""
    return None


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
        require_no_model(path)  # before anybody is asked
        is_other = path.exists() and path.resolve() != commands.file
    if is_other and not commands.screen.confirms(f"{path} exists; replace it?"):
        commands.screen.note("not saved")
        return
    with _errors_of(path):
        commands.conversation.save(path)
    commands.file = path.resolve()
    commands.screen.note(f"saved to {path}")


def _load(commands: Commands, name: str) -> None:
    path = _path(name, "/load")
    with _errors_of(path):
        commands.conversation.load(path)
    commands.goes_on_from(path)


def _path(name: str, command: str) -> Path:
    if not name:
        raise click.UsageError(f"give the name of a file: {command} FILE")
    return Path(name).expanduser()


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turn errors about a file into messages; the chat goes on."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from error


def _system(commands: Commands, text: str) -> None:
    if text:
        commands.conversation.system = None if text == OFF else text
    now = commands.conversation.system
    commands.screen.note("no system prompt" if now is None else f"system prompt: {now}")


def _stats(commands: Commands, _argument: str) -> None:
    completion = commands.conversation.completion
    if completion is None:
        commands.screen.note("there is no answer yet")
        return
    stats, context = completion.stats, commands.conversation.context
    n_held = len(completion.prompt) + len(completion.tokens)
    commands.screen.note(closing_line(completion, verbose=True))
    commands.screen.note(
        f"prompt: {stats.n_prompt} tokens, {stats.n_prompt_reused} of them reused; the first token "
        f"came after {stats.prefill_us / 1000:.0f} ms; the context holds {n_held} of "
        f"{context.n_ctx} tokens"
    )


def _draft(commands: Commands, name: str) -> None:
    options = commands.conversation.options
    if name:
        chosen = parse_draft(click.get_current_context(), click.Option(["--draft"]), name)
        draft, mask = (None, None) if chosen == OFF else (chosen, commands.mask)
        try:
            profile = options.get("profile", True)
            prepared(commands.conversation.context, draft, mask=mask, profile=profile)
        except (SelfSpecError, OSError) as error:
            kept = options.get("draft") or OFF
            raise ArgumentError(f"{error}; drafts stay as they were: {kept}") from error
        options["draft"], options["mask"] = draft, mask
        options["options"] = None  # they belong to the drafter that was
    commands.screen.note(f"drafts: {options.get('draft') or OFF}")


def _clear(commands: Commands, _argument: str) -> None:
    commands.conversation.clear()
    commands.file = None
    commands.screen.note("a new conversation")


def _help(commands: Commands, _argument: str) -> None:
    rows = [(f"/{name} {each.argument}".strip(), each.help) for name, each in COMMANDS.items()]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        commands.screen.note(f"{name:{width}}  {text}")
    commands.screen.note("/bye and /exit end, too; /? is /help, and /set system is /system")
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
    "system": Command("[TEXT|off]", "Show or change the system prompt.", _system, ("set system",)),
    "draft": Command("[NAME]", "Show or change how to draft, as --draft does.", _draft),
    "stats": Command("", "How the latest answer went.", _stats),
    "help": Command("", "Show this.", _help, ("?",)),
    "quit": Command("", "End, as Ctrl-D does.", _quit, ("bye", "exit")),
}
