"""Conversations in tests: with tiny models, and in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, Self

import click
from command_line import ONE_THREAD, PROGRAM, environment
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from pyselfspec import GREEDY, Completion, Context
from pyselfspec.chat.answer import Piece
from pyselfspec.chat.conversation import Conversation
from pyselfspec.cli._chat.loop import COMMANDS, ChatLoop
from pyselfspec.cli._chat.sampling import parsed
from pyselfspec.cli._chat.setup import Setup
from pyselfspec.cli._chat.terminal import Terminal
from pyselfspec.cli._drafting import DraftOptions
from pyselfspec.cli._machine import MachineOptions
from pyselfspec.cli._pictures import PictureOptions
from pyselfspec.cli._types import takes
from pyselfspec.templates.template import ChatTemplate

N = 12  # tokens of an answer


def conversation(context: Context, **options: Any) -> Conversation:
    defaults: dict[str, Any] = {"n_predict": N, "sampling": GREEDY, "draft": None}
    return Conversation(context, ChatTemplate.of(context.model), **(defaults | options))


def said(pieces: Iterator[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def completed(chat: Conversation) -> Completion:
    assert chat.completion is not None
    return chat.completion


@click.command()
@takes(machine=MachineOptions, drafts=DraftOptions)
def _setup(machine: MachineOptions, drafts: DraftOptions) -> Setup:
    return Setup(machine, drafts, template=None, first="tiny", pictures=PictureOptions(None, ()))


SETUP: Setup = _setup.main([*ONE_THREAD, "-c", "512"], standalone_mode=False)


def typed(chat: Conversation, keys: str, **options: Any) -> str:
    """Type these keys into a chat; return what the terminal shows, colours included."""
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, color_system="standard", width=200)
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        screen = Terminal(
            "tiny", COMMANDS, console=console, input=pipe, output=DummyOutput(), **options
        )
        ChatLoop(chat, screen, SETUP, parsed([])).run()
    return shown.getvalue()


# a prompt begins and ends, in escape codes of terminals
READING, READ = r"\x1b\[\?2004h", r"\x1b\[\?2004l"


class Pty:
    """The program in a terminal of its own, killed at the end of a ``with`` block if it still runs
    then."""

    def __init__(self, *args: str | Path) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            command = [*PROGRAM, *map(str, args)]
            dumb = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}  # it answers no questions
            os.execve(command[0], command, environment() | dumb)
        self._new = ""
        self._runs = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runs:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.terminal)

    def wait_for(self, pattern: str) -> str:
        """Until it shows this, after what was waited for before; what it shows until then."""
        end = time.monotonic() + 60
        while not (found := re.search(pattern, self._new)):
            ready, _, _ = select.select([self.terminal], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {pattern!r} in {self._new[-300:]!r}"
            self._new += os.read(self.terminal, 4096).decode(errors="replace")
        before, self._new = self._new[: found.start()], self._new[found.end() :]
        return before

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def end(self, status: int = 0) -> str:
        """All that it shows until it ends, which it does with this status."""
        try:
            while block := os.read(self.terminal, 4096):
                self._new += block.decode(errors="replace")
        except OSError:  # the other side is closed
            pass
        ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._runs = False
        assert ended == status, self._new[-1000:]
        return self._new
