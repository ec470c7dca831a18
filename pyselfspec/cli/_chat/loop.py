"""The loop of a chat, which answers messages and runs commands, and the table of commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from ...chat.answer import Piece
from ...chat.conversation import Conversation
from ...errors import ArgumentError, SelfSpecError
from ...runtime.sampling import Sampler
from ...speculate.config import OFF
from ...speculate.output.record import CONTEXT_FULL, INTERRUPTED
from ...speculate.resolve import resolve
from ...util.files import require_no_model
from .._drafting import parse_draft
from .._generation_report import closing_line, full_context
from .._options import STDIN
from .._pictures import read_picture
from .._sampling import SamplingOptions
from .._signals import Ended
from . import sampling
from .dropped import picture_paths
from .screen import Screen
from .setup import Setup
from .typed_ahead import unquoted

SIGN = "/"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a chat.

    argument: name of its argument in /help, empty if it takes none. run: gets the argument, or an
    empty string. also: names of the command in other programs.
    """

    argument: str
    help: str
    run: Callable[[ChatLoop, str], None]
    also: tuple[str, ...] = ()


class ChatLoop:
    """Answers messages and runs commands in one conversation.

    setup: opens other models. sampling: the options whose values the conversation has. draft: text
    that the next line starts with, for editing. pictures: of the next question. file: the file that
    holds this conversation, which /save replaces without confirmation.
    """

    def __init__(
        self, conversation: Conversation, screen: Screen, setup: Setup, sampling: SamplingOptions
    ) -> None:
        self.conversation = conversation
        self.screen = screen
        self.setup = setup
        self.sampling = sampling
        self.draft = ""
        self.pictures: list[bytes] = []
        self.config = conversation.config  # of the command line
        self.file: Path | None = None
        self.ended = False

    def run(self, question: str | None = None, loaded: Path | None = None) -> None:
        """Answer one question; or without one, answer messages and run commands until the user
        ends the chat. loaded: the file of the conversation that goes on."""
        try:
            if question is not None:
                self.ask(question)
                return
            if loaded is not None:
                self.show_loaded(loaded)
            while not self.ended and (said := self.screen.read(self.draft)) is not None:
                self.draft = ""
                try:
                    self.take(said)
                except Ended:
                    raise
                except KeyboardInterrupt:
                    self.screen.stopped()
        finally:
            self.remember()

    def remember(self) -> None:
        """Keep what the latest answer learned of costs, before its model is closed."""
        if self.conversation.completion is not None:
            self.conversation.completion.remember()

    def take(self, said: str) -> None:
        """Answer a message or run a command. Shows errors, after which the conversation
        continues."""
        said, is_quoted = unquoted(said)
        if not said:
            return
        try:
            if is_quoted:
                self.ask(said)
                return
            is_text = not said.startswith(SIGN) or said.startswith(2 * SIGN)
            found = None if is_text else find_command(said.removeprefix(SIGN))
            paths = picture_paths(said) if found is None and self.conversation.projector else []
            if is_text or paths:
                for path in paths:
                    with _shown_errors(str(path)):
                        self.attach(path)
                    self.screen.note(f"{path} goes with this question")
                self.ask(said.removeprefix(SIGN) if is_text else said)
                return
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
                    f"{said.split()[0]} takes no argument; begin with {SIGN}{SIGN} to send "
                    "text that starts with a slash"
                )
            command.run(self, argument)
        except (SelfSpecError, click.UsageError) as error:
            text = error.message if isinstance(error, click.UsageError) else str(error)
            self.screen.error(text)

    def show_loaded(self, path: Path) -> None:
        """Show the last turns of the conversation that was loaded from this file."""
        self.file = path.resolve()
        messages = self.conversation.without_thoughts()
        self.screen.turns(messages)
        self.screen.note(f"{len(messages)} messages from {path}")

    def attach(self, path: Path) -> None:
        """Add the picture in a file to the next question."""
        projector = self.conversation.projector
        if projector is None:
            raise ArgumentError(
                "this model reads no pictures here; start chat with --mmproj and its projector file"
            )
        data = read_picture(projector, path)  # or an error now, and not with the question
        if data not in self.pictures:
            self.pictures.append(data)

    def ask(self, question: str) -> None:
        """Answer a question with the pictures that wait for it."""
        before = self.conversation.messages
        self.answer(self.conversation.ask(question, self.pictures))
        if self.conversation.messages is not before:  # else Ctrl-C came before the first token
            self.pictures = []

    def answer(self, pieces: Generator[Piece, None, None]) -> None:
        """Show an answer as it is generated; Ctrl-C stops it."""
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
            return  # interrupted before the first token
        n = self.conversation.n_left_out
        if n > n_left_out:
            self.screen.note(
                f"the context is full: the model no longer sees the first {n} messages"
            )
        if completion.finish_reason == CONTEXT_FULL:
            self.screen.note(full_context(completion.context))
        elif self.conversation.is_thinking and completion.finish_reason != INTERRUPTED:
            self.screen.note("the model was still thinking; a larger -n leaves room for an answer")
        self.screen.answered(self.conversation, completion)


def find_command(typed: str) -> tuple[Command, str] | None:
    """Return the command that was typed, without its slash, and its argument; None if unknown."""
    for name, command in COMMANDS.items():
        for each in (name, *command.also):
            match = re.fullmatch(rf"{re.escape(each)}(?:\s+(?P<argument>.*))?", typed, re.DOTALL)
            if match is not None:
                return command, match["argument"] or ""
    return None


def _again(chat: ChatLoop, _argument: str) -> None:
    chat.answer(chat.conversation.regenerate())
    sampling = chat.conversation.options.get("sampling")
    if sampling is not None and sampling.is_greedy:
        chat.screen.note("at temperature 0 every answer is the same")


def _edit(chat: ChatLoop, text: str) -> None:
    if text:
        chat.answer(chat.conversation.regenerate(text))
        return
    question = chat.conversation.question
    if question is None:
        raise ArgumentError("there is no question to edit yet; ask one first")
    chat.draft = f"/edit {question}"
    chat.screen.note("change the latest question and send it again")


def _save(chat: ChatLoop, name: str) -> None:
    with _file(name, "/save") as path:
        require_no_model(path)  # before asking for confirmation
        is_other = path.exists() and path.resolve() != chat.file
        if is_other and not chat.screen.confirms(f"{path} exists; replace it?"):
            chat.screen.note("not saved")
            return
        chat.conversation.save(path)
    chat.file = path.resolve()
    chat.screen.note(f"saved to {path}")


def _load(chat: ChatLoop, name: str) -> None:
    with _file(name, "/load") as path:
        chat.conversation.load(path)
    chat.show_loaded(path)


@contextmanager
def _file(name: str, command: str) -> Iterator[Path]:
    """Yield the path of a file. Turns its errors into ArgumentError, which a chat shows before it
    continues."""
    if not name:
        raise click.UsageError(f"give the name of a file: {command} FILE")
    path = Path(name).expanduser()
    with _shown_errors(str(path)):
        yield path


@contextmanager
def _shown_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{error.filename or what}: {error.strerror or error}") from error


def _image(chat: ChatLoop, name: str) -> None:
    with _file(name, "/image") as path:
        chat.attach(path)
    chat.screen.note(f"{path} goes with the next question")


def _system(chat: ChatLoop, text: str) -> None:
    if text:
        chat.conversation.system = None if text == OFF else text
    now = chat.conversation.system
    chat.screen.note("no system prompt" if now is None else f"system prompt: {now}")


def _set(chat: ChatLoop, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        for line in sampling.listed(chat.sampling):
            chat.screen.note(line)
        return
    sampling.require_name(name)
    if not value.strip():
        raise click.UsageError(f"give a value: /set {name} VALUE, or {sampling.DEFAULT}")
    if value.strip() == STDIN:
        raise click.UsageError("stdin is read for messages; give a file instead of -")
    with _shown_errors(value):
        options = sampling.changed(chat.sampling, name, value.strip())
        params = options.params()
    with Sampler(chat.conversation.context.model, params):
        pass  # or an error now, and not with the question
    chat.conversation.options["sampling"], chat.sampling = params, options
    chat.screen.note(f"{name} is {value.strip()}")


def _model(chat: ChatLoop, name: str) -> None:
    former = chat.conversation.context.model
    if not name:
        chat.screen.note(f"model: {former.path}")
        return
    with _shown_errors(name):
        opened = chat.setup.open(name)
    chat.remember()
    chat.conversation.switch(*opened)
    chat.config = opened.config
    former.close()
    chat.screen.opened(name)


def _stats(chat: ChatLoop, _argument: str) -> None:
    completion = chat.conversation.completion
    if completion is None:
        chat.screen.note("there is no answer yet")
        return
    stats, context = completion.stats, chat.conversation.context
    n_held = len(completion.prompt) + len(completion.tokens)
    chat.screen.note(closing_line(completion, verbose=True))
    chat.screen.note(
        f"prompt: {stats.n_prompt} tokens, {stats.n_prompt_reused} of them reused; the first token "
        f"came after {stats.prefill_us / 1000:.0f} ms; the context holds {n_held} of "
        f"{context.n_ctx} tokens"
    )


def _thinking(chat: ChatLoop, _argument: str) -> None:
    chat.screen.note(chat.conversation.reasoning or "the latest answer has no reasoning")


def _draft(chat: ChatLoop, name: str) -> None:
    conversation = chat.conversation
    if name:
        chosen = parse_draft(name)
        config = chat.config.with_draft(None if chosen == OFF else chosen)
        try:
            resolve(conversation.context, config)
        except (SelfSpecError, OSError) as error:
            kept = conversation.config.names or OFF
            message = f"{error}; drafts stay as they were: {kept}"
            raise ArgumentError(message) from error
        conversation.config = config
    chat.screen.note(f"drafts: {conversation.config.names or OFF}")


def _clear(chat: ChatLoop, _argument: str) -> None:
    chat.conversation.clear()
    chat.file, chat.pictures = None, []
    chat.screen.note("a new conversation")


def _help(chat: ChatLoop, _argument: str) -> None:
    rows = [(f"/{name} {each.argument}".strip(), each.help) for name, each in COMMANDS.items()]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        chat.screen.note(f"{name:{width}}  {text}")
    chat.screen.note("/bye and /exit are /quit, /? is /help, and /set system is /system")
    for line in chat.screen.keys:
        chat.screen.note(line)


def _quit(chat: ChatLoop, _argument: str) -> None:
    chat.ended = True


COMMANDS = {
    "regen": Command("", "Answer the latest question again.", _again),
    "edit": Command("[TEXT]", "Ask something else in place of the latest question.", _edit),
    "save": Command("FILE", "Write the conversation to a file.", _save),
    "load": Command("FILE", "Go on with a saved conversation.", _load),
    "clear": Command("", "Begin a new conversation.", _clear),
    "image": Command("FILE", "Add a picture to the next question.", _image),
    "system": Command("[TEXT|off]", "Show or change the system prompt.", _system, ("set system",)),
    "set": Command("[NAME VALUE]", "Show the sampling options, or change one.", _set),
    "model": Command("[NAME]", "Show the model, or go on with another one.", _model),
    "draft": Command("[NAME]", "Show or change how to draft, as --draft does.", _draft),
    "thinking": Command("", "Show the reasoning of the latest answer.", _thinking),
    "stats": Command("", "Show the speed and the drafts of the latest answer.", _stats),
    "help": Command("", "Show the commands.", _help, ("?",)),
    "quit": Command("", "End, as Ctrl-D does.", _quit, ("bye", "exit")),
}
