"""A chat as people see it: lines break between words, thoughts are dim, what they type while an
answer comes waits for the next line, and a question can be asked once."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import termios
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import chat_models
import pytest
from command_line import ONE_THREAD, run
from conversations import READ, READING, N, Pty, completed, conversation, said, typed
from fixture_types import NewContext
from rich.console import Console
from screens import rows

from pyselfspec import Model, SamplingParams
from pyselfspec.chat import installed
from pyselfspec.chat.answer import Piece
from pyselfspec.chat.conversation import Conversation
from pyselfspec.cli import _generation_report
from pyselfspec.cli._chat import answers as chat_answers
from pyselfspec.cli._chat.answers import Answers
from pyselfspec.cli._chat.loop import COMMANDS, find_command
from pyselfspec.cli._chat.typed_ahead import is_open, unquoted
from pyselfspec.cli._chat.wrap import Erase, Span, Wrapper
from pyselfspec.errors import ArgumentError
from pyselfspec.gguf.chat_template import tells_speakers_apart
from pyselfspec.hub import huggingface, packages
from pyselfspec.speculate.completion import Completion
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.templates.messages import Message
from pyselfspec.templates.template import ChatTemplate

WORDS = "a in the word margin terminal understanding"


# --- line breaks -----------------------------------------------------------------------------


def cut(text: str, seed: int) -> list[str]:
    """A text in pieces, as tokens cut it."""
    numbers = random.Random(seed)
    pieces = []
    while text:
        n = numbers.randint(1, 7)
        pieces.append(text[:n])
        text = text[n:]
    return pieces


def shown(pieces: Sequence[str], width: int) -> list[str]:
    """Rows of a terminal where these pieces came one after the other."""
    wrapper = Wrapper(lambda: width)
    written = ""
    for piece in pieces:
        for step in wrapper.put(piece):
            erased = "" if isinstance(step, Span) else f"\x1b[{step.n}D\x1b[K"
            written += step.text if isinstance(step, Span) else erased
    return rows(written, width)


@pytest.mark.parametrize("width", [14, 20, 33, 80])
def test_lines_break_between_words(width: int) -> None:
    """However the words come in pieces. The oracle is the standard library's."""
    numbers = random.Random(width)
    text = " ".join(numbers.choices(WORDS.split(), k=120))
    want = textwrap.wrap(text, width - 1)
    for seed in range(20):
        got = [row.rstrip() for row in shown(cut(text, seed), width)]
        assert got == want, f"seed {seed}"


def test_words_are_shown_as_soon_as_they_come() -> None:
    """Words at the margin count too: they move to the next row when they do not fit."""
    wrapper = Wrapper(lambda: 10)
    assert wrapper.put("I can ") == [Span("I can ")]
    assert wrapper.put("ass") == [Span("ass")]
    assert wrapper.put("ist") == [Erase(3), Span("\nassist")]


def test_colours_move_with_their_word() -> None:
    wrapper = Wrapper(lambda: 10)
    wrapper.put("I can ")
    wrapper.put("as", "green")
    assert wrapper.put("s") == [Span("s")]
    assert wrapper.put("ist") == [Erase(3), Span("\n"), Span("as", "green"), Span("sist")]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nfor each in range(1000): print(each, each + 1)\n```\n",
        "~~~\na long line of code, with ``` in it\n~~~\n",
        "| a | row of a table | that is wide |\n",
        "https://example.org/" + "a" * 60,
    ],
)
def test_what_people_copy_stays_whole(text: str) -> None:
    """No line breaks but the text's own: the terminal knows that its rows belong together."""
    for seed in range(5):
        wrapper = Wrapper(lambda: 16)
        steps = [step for piece in cut(text, seed) for step in wrapper.put(piece)]
        assert "".join(step.text for step in steps if isinstance(step, Span)) == text


def test_words_after_code_are_wrapped_again() -> None:
    text = "```\ncode code code code\n```\nwords and words"
    got = [row.rstrip() for row in shown(cut(text, 1), 12)]
    assert got[-2:] == ["words and", "words"]


def test_a_long_word_moves_to_a_line_of_its_own() -> None:
    assert shown(["see ", "x" * 30, " end"], 20) == ["see ", "x" * 20, "x" * 10 + " end"]


def test_wide_characters() -> None:
    """They fill two cells each, and a line may break between any two of them."""
    wrapper = Wrapper(lambda: 9)
    steps = wrapper.put("\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e")
    assert steps == [Span("\u65e5\u672c\u8a9e\u65e5\n\u672c\u8a9e")]
    composed = "e\u0301" * 8
    assert Wrapper(lambda: 9).put(composed) == [Span(composed)], "accents fill no cell"


def test_tabs_go_to_the_next_eighth_cell() -> None:
    """In code, too; at the margin they end."""
    assert Wrapper(lambda: 20).put("a\tb") == [Span("a" + 7 * " " + "b")]
    assert Wrapper(lambda: 20).put("```\nab\tc") == [Span("```\nab" + 6 * " " + "c")]
    assert Wrapper(lambda: 20).put("a b c d e f g h i\tj") == [Span("a b c d e f g h i   \nj")]


def test_a_window_can_be_resized_meanwhile() -> None:
    width = 40
    wrapper = Wrapper(lambda: width)
    wrapper.put("some words that fit the line ")
    width = 12
    assert wrapper.put("and others") == [Span("\nand others")]


# --- thoughts --------------------------------------------------------------------------------


def told_apart(pieces: Iterable[Piece]) -> tuple[str, str]:
    """Thoughts and answer."""
    found = list(pieces)
    thought = "".join(piece.text for piece in found if piece.is_thought)
    return thought, "".join(piece.text for piece in found if not piece.is_thought)


STRIPPING = """\
{%- for message in messages -%}
    {%- set content = message['content'] -%}
    {%- if message['role'] == 'assistant' -%}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
    {%- endif -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
OPENING = STRIPPING.replace("assistant\\n' -}}", "assistant\\n<think>\\n' -}}")


def thinking(
    context: Any, source: str, answer: str, n_predict: int = 99, draft: DraftConfig | None = None
) -> Conversation:
    """A conversation whose answers are this one."""
    grammar = f"root ::= {json.dumps(answer)}"
    sampling = SamplingParams(temperature=0, grammar=grammar)
    template = ChatTemplate.of(context.model, source)
    return Conversation(context, template, n_predict=n_predict, sampling=sampling, draft=draft)


FORMS = {  # signs in templates, and answers
    "think": ("</think>", "<think>\nhm <b>\n</think>\n\nyes"),
    "mistral": ("[THINK]", "[THINK]hm <b>[/THINK]yes"),
    "gpt-oss": (
        "<|channel|>analysis",
        "<|channel|>analysis<|message|>hm <b><|end|><|start|>assistant<|channel|>final<|message|>"
        "yes",
    ),
    "gemma": ("<|channel>", "<|channel>thought\nhm <b><channel|>yes"),
    "seed": ("<seed:think>", "<seed:think>hm <b></seed:think>yes"),
}


@pytest.mark.parametrize("name", FORMS)
def test_thoughts_of_each_family_stand_apart(
    name: str, model: Model, new_context: NewContext
) -> None:
    sign, answer = FORMS[name]
    chat = thinking(new_context(model, n_ctx=512), f"{chat_models.CHATML}{{# {sign} #}}", answer)
    assert told_apart(chat.ask("hi")) == ("hm <b>", "yes")
    assert chat.without_thoughts()[-1].text == "yes"


def test_thoughts_between_control_tokens(tmp_path: Path, new_context: NewContext) -> None:
    """The next prompt has no thoughts: a template finds no control tokens in an answer."""
    source = f"{chat_models.CHATML}{{{{ '[THINK]' if messages | length == 1 }}}}{{# [/THINK] #}}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chat_models.STYLES, "marks", (source, ("[THINK]", "[/THINK]", "<|im_end|>")))
        patch.setattr(chat_models, "LAST_IS_EOS", {"marks"})
        path = chat_models.write(tmp_path / "marks.gguf", "marks", user_defined=(), space=False)
    with Model(path) as marked:
        assert marked.detokenize(marked.tokenize("[THINK]", add_special=False)) == ""
        chat = thinking(new_context(marked, n_ctx=512), source, "hm hm", n_predict=4)
        assert told_apart(chat.ask("hi")) == ("hm h", "") and chat.is_thinking
        said(chat.ask("so"))
        assert "hm" not in marked.detokenize(completed(chat).prompt)


def test_pieces_keep_who_proposed_them(model: Model, new_context: NewContext) -> None:
    """With markers and characters of several tokens, and drafts that end within them."""
    answer = "<think>ab ab ab\u65e5</think>\nab ab ab <b> ab ab"
    drafts = DraftConfig("ngram", controller="fixed")  # a pass takes less time than a look-up here
    chat = thinking(new_context(model, n_ctx=512), STRIPPING, answer, draft=drafts)
    pieces = list(chat.ask("ab ab ab ab ab"))
    assert "".join(piece.text for piece in pieces) == "ab ab ab\u65e5ab ab ab <b> ab ab"
    assert {piece.origin for piece in pieces} == {None, "ngram"}
    by_token = zip(completed(chat).tokens, completed(chat).sources, strict=True)
    n_drafted = sum(len(model.piece(token)) for token, source in by_token if source)
    drafted = "".join(piece.text for piece in pieces if piece.origin)
    assert 0 < len(drafted) <= n_drafted


@pytest.mark.parametrize(
    ("source", "answer"),
    [(STRIPPING, "<think>\nhm\n</think>\n\nyes"), (OPENING, "hm\n</think>\n\nyes")],
    ids=["by the model", "by the template"],
)
def test_the_model_does_not_see_former_thoughts(
    source: str, answer: str, model: Model, new_context: NewContext
) -> None:
    chat = thinking(new_context(model, n_ctx=512), source, answer)
    assert told_apart(chat.ask("hi")) == ("hm", "yes")
    assert not chat.is_thinking
    said(chat.ask("so"))
    want = chat.template.tokens(
        [Message("user", "hi"), Message("assistant", "yes"), Message("user", "so")]
    )
    assert completed(chat).prompt == want


@pytest.mark.parametrize(
    ("source", "answer"),
    [(STRIPPING, "<think>\nhm hm hm hm"), (OPENING, "hm hm hm hm")],
    ids=["by the model", "by the template"],
)
def test_thoughts_that_did_not_end_are_not_seen_either(
    source: str, answer: str, model: Model, new_context: NewContext
) -> None:
    chat = thinking(new_context(model, n_ctx=512), source, answer, n_predict=14)
    pieces = list(chat.ask("hi"))
    assert all(piece.is_thought for piece in pieces) and chat.is_thinking
    said(chat.ask("so"))
    text = model.detokenize(completed(chat).prompt)
    assert "hm" not in text and text.count("<think>") == (source is OPENING)


def test_thoughts_stay_where_the_template_leaves_them(
    model: Model, new_context: NewContext
) -> None:
    """The former answer is its tokens, all of which the context holds."""
    answer = "<think>hm</think>yes"
    chat = thinking(new_context(model, n_ctx=512), chat_models.CHATML, answer)
    said(chat.ask("hi"))
    n_held = len(completed(chat).prompt) + len(completed(chat).tokens) - 1
    said(chat.ask("so"))
    assert completed(chat).stats.n_prompt_reused >= n_held - 1
    assert answer in model.detokenize(completed(chat).prompt)


def test_thoughts_in_a_terminal(model: Model, new_context: NewContext) -> None:
    """They are dim while they come, and /thinking shows them after that."""
    chat = thinking(new_context(model, n_ctx=512), STRIPPING, "<think>\nhm\n</think>\n\nyes")
    text = typed(chat, "/thinking\rhi\r/thinking\r\x04")
    assert "\x1b[2mhm\x1b[0m" in text.replace("\x1b[0m\x1b[2m", "") and "think>" not in text
    *_, none, one, _, yes, _closing, _, again, _ = (row.strip() for row in rows(text, 200))
    assert "has no reasoning" in none and (yes, again) == ("yes", "hm")
    assert re.fullmatch(r"thought for \d+\.\d s; /thinking shows it", one)


class Folding(Answers):
    folds = True


THOUGHTS = [
    "hm hm hm",
    "words " * 40,
    "```\n" + "x" * 130 + "\n```\nso",
    "| a table " * 12 + "|\n\n",
]


@pytest.mark.parametrize("thoughts", THOUGHTS)
def test_thoughts_are_folded_when_the_answer_begins(thoughts: str) -> None:
    """To one line, however they were broken into rows; what is above them stays."""
    written = StringIO()
    screen = Folding(console=Console(file=written, width=50, height=40, force_terminal=True))
    screen.note("above")
    pieces = [Piece(each, None, True) for each in cut(thoughts, 3)]
    screen.answer([*pieces, Piece("yes"), Piece("!")])
    above, folded, blank, *answer = (row.strip() for row in rows(written.getvalue(), 50))
    assert (above, blank, answer[0], "".join(answer)) == ("above", "", "yes!", "yes!")
    assert folded.startswith("thought for 0.")


def test_thoughts_are_not_folded_where_rows_are_unknown() -> None:
    """Rows above the screen stay, and so do all of a resized window and in the middle of a text."""
    thought, said = Piece("hm\n" * 9, None, True), Piece("yes")
    written = StringIO()
    console = Console(file=written, width=30, height=5, force_terminal=True)
    Folding(console=console).answer([thought, said])
    shown = rows(written.getvalue(), 30)
    assert shown[:7] == ["thinking:", *["hm"] * 5, shown[6]] and "thought for" in shown[6]

    def resized() -> Iterator[Piece]:
        yield thought
        console.width = 20
        yield said

    for pieces in (resized(), [said, thought, said]):
        written.truncate(0)
        Folding(console=console).answer(pieces)
        assert "thought for" not in written.getvalue()


def test_a_pipe_gets_the_answer_without_thoughts(path: Path, tmp_path: Path) -> None:
    grammar = tmp_path / "answer.gbnf"
    grammar.write_text('root ::= "<think>hm</think>yes"')
    args = ("--grammar", grammar, *ONE_THREAD)
    assert run("chat", path, *args, stdin=b"hi\n").stdout == "yes\n"
    record = run("chat", path, "--json", *args, stdin=b"hi\n").json
    assert (record["answer"], record["text"]) == ("yes", "<think>hm</think>yes")
    outcome = run("chat", path, "-n", "9", *args, stdin=b"hi\n")
    assert outcome.stdout == "\n" and "still thinking; a larger -n" in outcome.stderr


# --- what is typed ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/bye", "/exit", "/quit"])
def test_names_that_end_a_chat(name: str, model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512))
    assert "there is no" not in typed(chat, f"{name}\rnever\r")
    assert chat.messages == ()


def test_other_names_of_commands(model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512))
    text = typed(chat, "/?\r/set system be brief\r\x04")
    assert all(f"/{name}" in text for name in COMMANDS) and chat.system == "be brief"
    assert find_command("set top-k 1") == (COMMANDS["set"], "top-k 1")
    assert find_command("byes") is None
    assert find_command("system a\nb") == (COMMANDS["system"], "a\nb")


def test_text_in_triple_quotes(model: Model, new_context: NewContext, path: Path) -> None:
    """Enter begins a new line until they end; nothing in them is a command."""
    chat = conversation(new_context(model, n_ctx=1024))
    keys = '"""a\rb"""\r"""/quit"""\r/system """be\rbrief"""\r"""\r\x04'
    typed(chat, keys + "\x03\x04")
    asked = [message.text for message in chat.messages if message.role == "user"]
    assert asked == ["a\nb", "/quit"] and chat.system == "be\nbrief"
    lines = b'"""a\nb"""\n"""c\n'
    outcome = run("chat", path, "--json", "-n", "4", *ONE_THREAD, stdin=lines)
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [record["question"] for record in records] == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("text", "left", "said"),
    [
        ('"""a', True, ("a", True)),
        ('"""', True, ("", True)),
        ('""""""', False, ("", True)),
        ('"""\na\n"""', False, ("a", True)),
        ('what is """?', False, ('what is """?', False)),
        ('/edit """a"""', False, ("/edit a", False)),
        (" a ", False, ("a", False)),
    ],
)
def test_triple_quotes(text: str, left: bool, said: tuple[str, bool]) -> None:
    assert is_open(text) is left and unquoted(text) == said


def test_what_is_typed_during_an_answer_waits(path: Path, tmp_path: Path) -> None:
    """It is not shown in the answer. Each line that Enter ended is a question of its own, and what
    follows waits on the line."""
    grammar, saved = tmp_path / "letters.gbnf", tmp_path / "chat.json"
    grammar.write_text("root ::= [a-z] root")
    options = ("-n", "2000", "-c", "16384", "--temp", "0", "--grammar", grammar, *ONE_THREAD)
    with Pty("chat", path, *options) as program:
        program.type("EARLY\r")  # the program has just been started
        program.wait_for(READING)
        program.wait_for(READ)
        program.wait_for("[a-z]{20}")
        program.type("SECOND\rTHI")
        answer = program.wait_for(READING)
        assert not re.search("[A-Z]{3}", re.sub(r"\x1b\S*?[A-Za-z]", "", answer.split("tokens")[0]))
        program.wait_for("SECOND")
        program.wait_for(READ)
        program.wait_for(READING)
        program.wait_for("THI")
        program.type("RD\r")
        program.wait_for(READ)
        program.wait_for(READING)
        program.type(f"/save {saved}\r")
        program.wait_for("saved to")
        program.wait_for(READING)
        program.type("/bye\r")
        program.end()
    messages = json.loads(saved.read_text())["messages"]
    asked = [each["content"] for each in messages if each["role"] == "user"]
    assert asked == ["EARLY", "SECOND", "THIRD"]


def echoes(program: Pty) -> bool:
    """Whether the terminal shows what is typed, as it does for shells."""
    return bool(termios.tcgetattr(program.terminal)[3] & termios.ECHO)


def test_the_terminal_is_set_again_after_a_pause(path: Path, tmp_path: Path) -> None:
    """Shells put it back while a program is paused, and so does the program in the end."""
    grammar = tmp_path / "letters.gbnf"
    grammar.write_text("root ::= [a-z] root")
    options = ("-n", "-1", "-c", "65536", "--temp", "0", "--grammar", grammar, *ONE_THREAD)
    with Pty("chat", path, *options) as program:
        program.wait_for(READING)
        program.type("hi\r")
        program.wait_for(READ)
        program.wait_for("[a-z]{20}")
        assert not echoes(program)
        shell = termios.tcgetattr(program.terminal)
        shell[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(program.terminal, termios.TCSANOW, shell)
        os.kill(program.pid, signal.SIGCONT)
        while echoes(program):  # wait_for fails when nothing comes any more
            program.wait_for("[a-z]")
        program.type("\x03")
        program.wait_for("stopped")
        program.wait_for(READING)
        program.type("\x04")
        program.end()


# --- files -----------------------------------------------------------------------------------


def test_saving_asks_before_it_replaces(
    model: Model, new_context: NewContext, tmp_path: Path
) -> None:
    """Another file, not the one that holds this conversation already."""
    file = tmp_path / "chat.json"
    file.write_text("mine")
    chat = conversation(new_context(model, n_ctx=512))
    said(chat.ask("hi"))
    for answer in ("n\r", "\r", "\x03", "\x04"):
        assert "not saved" in typed(chat, f"/save {file}\r{answer}\x04")
        assert file.read_text() == "mine"
    typed(chat, f"/save {file}\ry\r/save {file}\r/clear\r/save {file}\r\r\x04")
    assert len(json.loads(file.read_text())["messages"]) == 2, "of the chat before /clear"


def test_loading_shows_the_last_turns(
    model: Model, new_context: NewContext, tmp_path: Path, path: Path
) -> None:
    file = tmp_path / "chat.json"
    chat = conversation(new_context(model, n_ctx=512))
    long = "\n".join(f"line {i}" for i in range(40))
    texts = ["first", "early", "second", "<think>hm</think>late", long, "\x1b[1mlast"]
    chat.messages = tuple(
        Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)
    )
    chat.save(file)
    other = conversation(new_context(model, n_ctx=512))
    text = re.sub(r"\x1b\[[0-9;]*m", "", typed(other, f"/load {file}\r\x04"))
    assert "> second\nlate\n\n> line 0\n" in text and "line 39\n\ufffd[1mlast\n" in text
    assert not any(part in text for part in ("first", "early", "hm", "line 20"))
    with Pty("chat", path, "--load", file, *ONE_THREAD) as program:
        program.wait_for("> second")
        program.wait_for("6 messages from")
        program.wait_for(READING)
        program.type("\x04")
        program.end()


# --- one question ----------------------------------------------------------------------------

OPTIONS = ("-n", str(N), "--temp", "0", "-c", "512", "--draft", "off", *ONE_THREAD)


def test_one_question(path: Path, model: Model, new_context: NewContext, tmp_path: Path) -> None:
    """Stdout is the answer; what comes through a pipe follows the question."""
    chat = conversation(new_context(model, n_ctx=512))
    asked = said(chat.ask("hi")), said(conversation(new_context(model, n_ctx=512)).ask("/hi\n\na"))
    file = tmp_path / "question.txt"
    file.write_text("hi\n")
    for args in ((path, "hi"), (path, "-p", "hi"), (path, "-f", file)):
        outcome = run("chat", *args, *OPTIONS)
        assert (outcome.status, outcome.stdout) == (0, asked[0] + "\n"), outcome
    assert run("chat", path, "/hi", *OPTIONS, stdin=b"a\n").stdout == asked[1] + "\n"
    record = run("chat", path, "hi", "--json", *OPTIONS).json
    assert (record["question"], record["answer"]) == ("hi", asked[0])


@pytest.mark.parametrize(
    ("args", "status", "error"),
    [
        (("a", "-p", "b"), 2, "give only one question: after MODEL, with -p or with -f"),
        ((" ",), 2, "the question is empty"),
        (("x" * 600,), 1, "give a larger n_ctx (-c) or a shorter message"),
    ],
)
def test_questions_that_cannot_be_asked(
    args: tuple[str, ...], status: int, error: str, path: Path
) -> None:
    outcome = run("chat", path, *args, *OPTIONS)
    assert (outcome.status, outcome.stdout) == (status, "") and error in outcome.stderr


def test_a_question_in_the_place_of_the_model() -> None:
    outcome = run("chat", "Why is the sky blue?")
    assert outcome.status == 2 and "text goes after MODEL, or with -p" in outcome.stderr


def test_one_question_in_a_terminal(path: Path, tmp_path: Path) -> None:
    """It ends after the answer; Ctrl-C ends it with the status that says so."""
    with Pty("chat", path, "hi", *OPTIONS) as program:
        program.wait_for(rf"{N} tokens")
        program.end()
    endless = tmp_path / "endless.gbnf"
    endless.write_text("root ::= [a-z] root")
    options = ("-n", "-1", "-c", "65536", "--grammar", endless, *ONE_THREAD)
    with Pty("chat", path, "hi", *options) as program:
        program.wait_for("[a-z]{20}")
        program.type("\x03")
        program.end(128 + signal.SIGINT)


# --- which model -----------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user's, and nothing pulled with other programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(huggingface, "installed", lambda: iter(()))
    packages.cache().mkdir(parents=True)
    return packages.cache()


def pulled(name: str, at: float, **options: Any) -> Path:
    """A tiny model in place of the one with this name, fetched at this time."""
    path = chat_models.write(packages.target(name), **options)
    os.utime(path, (at, at))
    return path


def test_without_a_chat_model_there_is_a_way_to_get_one(cache: Path) -> None:
    """The bundled model and others without roles in their templates are none."""
    pulled("gemma3-270m", 5, template="{{ messages[0].content }}")
    outcome = run("chat", stdin=b"hi\n")
    assert (outcome.status, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith("Error: no chat model is installed")
    assert "pyselfspec models pull smollm2-135m" in outcome.stderr


def test_the_chat_model_that_is_here_is_taken(cache: Path) -> None:
    pulled("smollm2-135m", 5)
    (cache / "broken.gguf").write_text("GGUF")
    outcome = run("chat", "-p", "hi", *OPTIONS)
    assert outcome.status == 0 and outcome.stderr == "model: smollm2-135m (used or pulled last)\n"
    assert outcome.stdout == run("chat", "smollm2-135m", "hi", *OPTIONS).stdout
    named = run("chat", "-p", "hi", *OPTIONS, PYSELFSPEC_MODEL="smollm2-135m")
    assert named.stdout == outcome.stdout and named.stderr == ""


def test_the_chat_model_that_was_used_last_is_taken(cache: Path, path: Path) -> None:
    """Or fetched last, or a file of the user's own."""
    old, new = pulled("smollm2-135m", 5), pulled("gemma3-270m", 9)
    assert installed.latest().name == "gemma3-270m"
    run("chat", "smollm2-135m", "hi", *OPTIONS)
    assert installed.latest().path == old
    outcome = run("chat", "-p", "hi", *OPTIONS)
    assert outcome.stderr == "model: smollm2-135m (used or pulled last)\n"
    run("chat", path, "hi", *OPTIONS)
    assert installed.latest().path == path
    new.unlink()
    old.unlink()
    assert installed.latest().path == path


def test_models_of_the_hub_are_taken(
    cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled("smollm2-135m", 5)
    found = ("hf:user/repo:tiny.gguf", path)
    monkeypatch.setattr(huggingface, "installed", lambda: iter([found]))
    assert (installed.latest().name, installed.latest().path) == found


def test_what_was_used_last_may_be_gone_or_broken(
    cache: Path, user_data: Path, tmp_path: Path
) -> None:
    here = pulled("smollm2-135m", 5)
    installed.remember(tmp_path / "gone.gguf")
    assert installed.latest().path == here
    (user_data / "pyselfspec" / "chat" / "last.json").write_text("{")
    assert installed.latest().path == here
    here.unlink()
    with pytest.raises(ArgumentError, match="no chat model is installed"):
        installed.latest()


def test_a_model_that_does_not_chat_is_said_to_be_none(cache: Path, path: Path) -> None:
    outcome = run("chat", "demo", *OPTIONS, "hi")
    assert outcome.status == 0 and outcome.stdout
    assert "Warning: demo is not a chat model" in outcome.stderr
    assert "pyselfspec models pull smollm2-135m" in outcome.stderr
    for args in (("demo", "--chat-template", "plain"), (path,)):
        assert "not a chat model" not in run("chat", *args, *OPTIONS, "-p", "hi").stderr
    assert installed.latest().path == path, "the demo model is not kept as the latest"


def test_info_and_pull_call_a_chat_model_what_chat_does(path: Path) -> None:
    assert run("models", "info", "demo", "--json").json["is_chat_model"] is False
    assert run("models", "info", path, "--json").json["is_chat_model"] is True
    assert "next: pyselfspec generate demo" in run("models", "pull", "demo").stderr


@pytest.mark.parametrize(
    ("source", "tells"),
    [
        ("{% for message in messages %}{{ message.content }}{% endfor %}", False),
        ("{{ messages[0]['content'] }} controller", False),
        (chat_models.CHATML, True),
        (chat_models.TURNS, True),
    ],
)
def test_templates_that_tell_speakers_apart(source: str, tells: bool) -> None:
    assert tells_speakers_apart(source) is tells


# --- hints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["one\ntwo\nthree", "words " * 20, "```\na\nb\n```\nc\n"])
def test_a_long_answer_says_once_how_to_stop_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a line of its own, not in code."""
    monkeypatch.setattr(chat_answers, "LONG_S", -1.0)
    written = StringIO()
    screen = Answers(console=Console(file=written, width=30, height=9, force_terminal=True))
    pieces = [Piece(piece) for piece in cut(text, 3)]
    screen.answer(pieces)
    screen.answer(pieces)
    lines = [row.strip() for row in rows(written.getvalue(), 30)]
    assert sum("Ctrl-C stops" in line for line in lines) == written.getvalue().count("Ctrl-C") == 1
    assert "```" not in text or lines.index("(Ctrl-C stops the answer)") > lines.index("b")


def test_a_dumb_terminal_shows_each_word_once() -> None:
    """It understands no control sequences, so nothing can be moved."""
    written = StringIO()
    text = "words and more words that go on until they are many, many words, more than fit a line"
    dumb = Console(file=written, force_terminal=True, _environ={"TERM": "dumb"})
    Answers(console=dumb).answer([Piece(piece) for piece in cut(text, 2)])
    assert written.getvalue() == text + "\n"


def test_a_short_answer_gives_no_hint() -> None:
    written = StringIO()
    Answers(console=Console(file=written)).answer([Piece("one\ntwo\n")])
    assert written.getvalue() == "one\ntwo\n\n"


def test_an_answer_says_what_drafts_brought(
    model: Model, new_context: NewContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Completion, "estimated_speedup", 1.74)
    monkeypatch.setattr(_generation_report, "N_TIMED", 2)
    chat = conversation(new_context(model, n_ctx=512), n_predict=20)
    assert "about 1.7x plain decoding" in typed(chat, "hi\r\x04")


def test_generate_leads_to_chat(path: Path) -> None:
    """In a terminal, for prompts that are no chat yet."""
    hint = rf'this is a chat model; ask it with: pyselfspec chat {path} "your question"'
    options = ("--temp", "0", "-n", "4", *ONE_THREAD)
    with Pty("generate", path, "-p", "hi", *options) as program:
        program.wait_for(re.escape(hint))
        program.end()
    assert "is a chat model" not in run("generate", path, "-p", "hi", *options).stderr
    for args in (("demo", "-p", "hi"), (path, "-p", "hi", "--json")):
        with Pty("generate", *args, *options) as program:
            assert "is a chat model" not in program.end()
