"""pyselfspec chat: what a conversation keeps, how it goes on after whatever ended an answer, and
the terminal around it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import chat_models
import click
import pytest
from command_line import ONE_THREAD, PROGRAM, TIMEOUT, Outcome, environment, run
from conversations import READ, READING, N, Pty, completed, conversation, said, typed
from fixture_types import NewContext, RealModel
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from pyselfspec import (
    GREEDY,
    Completion,
    Context,
    DraftConfig,
    Fixed,
    LayerMask,
    Model,
    SamplingParams,
)
from pyselfspec.chat.conversation import Conversation
from pyselfspec.cli._chat.answers import printable
from pyselfspec.cli._chat.loop import COMMANDS
from pyselfspec.cli._chat.terminal import CommandNames
from pyselfspec.errors import ArgumentError, ContextFullError
from pyselfspec.templates.messages import Message
from pyselfspec.templates.template import ChatTemplate
from pyselfspec.util.records import RecordError

DRAFTED = {
    "draft": DraftConfig(
        "layer-skip", mask=LayerMask.early_exit(4, 2), controller=Fixed(3, p_min=0)
    )
}


def fresh(new_context: NewContext, chat: Conversation) -> list[int]:
    """The latest answer by a context that has read nothing yet, without drafts."""
    n_ctx = chat.context.n_ctx
    context = new_context(chat.context.model, n_ctx=n_ctx)
    again = Completion(
        context, completed(chat).prompt, n_predict=N, draft=None, sampling=completed(chat).sampling
    )
    for _piece in again:
        pass
    return again.tokens


# --- turns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, DRAFTED], ids=["plain", "drafted"])
def test_a_later_turn_evaluates_only_what_is_new(
    options: dict[str, Any], model: Model, new_context: NewContext
) -> None:
    """All that the sequence holds is reused, and the answer is that of a context that reads it all
    anew."""
    chat = conversation(new_context(model, n_ctx=1024), **options)
    n_held = 0
    for question in ("hi", "and then?\nso?", "the end", "x" * 40):
        text = said(chat.ask(question))
        completion = completed(chat)
        assert completion.stats.n_prompt_reused == n_held
        assert completion.tokens == fresh(new_context, chat)
        assert text == completion.text and chat.messages[-1].text == model.detokenize(
            completion.tokens
        )
        n_held = len(completion.prompt) + len(completion.tokens) - 1
        assert completion.prompt == chat.template.tokens(chat.messages[:-1])
    assert [message.role for message in chat.messages] == ["user", "assistant"] * 4


def test_what_ended_an_answer_is_in_the_next_prompt_once(
    model: Model, new_context: NewContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end-of-turn token, which the template writes, too."""
    chat = conversation(new_context(model, n_ctx=512))
    said(chat.ask("hi"))
    last = completed(chat).tokens[4]
    eog = Model.is_eog
    monkeypatch.setattr(Model, "is_eog", lambda self, token: token == last or eog(self, token))
    chat = conversation(new_context(model, n_ctx=512))
    said(chat.ask("hi"))
    assert completed(chat).finish_reason == "eog"
    answer = chat.messages[-1].tokens
    assert answer is not None and last not in answer
    assert [*answer, last] == completed(chat).tokens
    prompt = completed(chat).prompt
    said(chat.ask("so"))
    [end] = model.tokenize("<|im_end|>", add_special=False)
    assert completed(chat).prompt[: len(prompt) + len(answer) + 1] == [*prompt, *answer, end]
    assert completed(chat).stats.n_prompt_reused == len(prompt) + len(answer)


def test_a_stop_string_is_not_part_of_the_answer(model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512))
    text = said(chat.ask("hi"))
    stop = text[5:7]
    chat = conversation(new_context(model, n_ctx=512), stop=[stop])
    cut = text[: text.index(stop)]
    assert said(chat.ask("hi")) == cut and completed(chat).finish_reason == "stop"
    assert chat.messages[-1] == Message("assistant", cut)
    said(chat.ask("so"))
    assert completed(chat).tokens == fresh(new_context, chat)


def test_another_answer_and_another_question(model: Model, new_context: NewContext) -> None:
    """They go back exactly: the conversation is as if the former ones had never been."""
    sampling = SamplingParams(temperature=1.0, seed=7)
    chat = conversation(new_context(model, n_ctx=1024), sampling=sampling)
    said(chat.ask("one"))
    said(chat.ask("two"))
    before, prompt, tokens = chat.messages, completed(chat).prompt, completed(chat).tokens
    said(chat.regenerate())
    assert chat.messages[:-1] == before[:-1] and completed(chat).prompt == prompt
    assert completed(chat).sampling.seed == 8 and completed(chat).tokens != tokens
    assert completed(chat).stats.n_prompt_reused == len(prompt) - 1
    said(chat.regenerate("other"))
    assert [m.text for m in chat.messages if m.role == "user"] == ["one", "other"]
    other = conversation(new_context(model, n_ctx=1024), sampling=sampling)
    said(other.ask("one"))
    said(other.ask("other"))
    assert chat.messages == other.messages


def test_before_the_first_question_there_is_no_other(model: Model, new_context: NewContext) -> None:
    with pytest.raises(ArgumentError, match="there is no question yet"):
        said(conversation(new_context(model)).regenerate())


def test_the_system_prompt_can_change(model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512), system="be")
    assert chat.messages == (Message("system", "be"),)
    said(chat.ask("hi"))
    chat.system = "be brief"
    said(chat.ask("so"))
    assert [m.role for m in chat.messages] == ["system", *["user", "assistant"] * 2]
    assert "system\nbe brief" in model.detokenize(completed(chat).prompt)
    assert completed(chat).tokens == fresh(new_context, chat)
    chat.clear()
    assert chat.messages == (Message("system", "be brief"),)
    chat.system = None
    assert chat.messages == () and chat.system is None


# --- answers that end early ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "ctrl-c while shown", "ctrl-c in a pass"])
def test_an_answer_can_be_stopped(
    how: str, model: Model, new_context: NewContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens generated so far stay, and the conversation continues from them."""
    context = new_context(model, n_ctx=512)
    chat = conversation(context, **DRAFTED)
    whole = conversation(new_context(model, n_ctx=512))
    said(whole.ask("hi"))
    passes = Context.run

    def interrupted(self: Context, *args: Any) -> Any:
        if self is context and chat.completion and len(chat.completion.tokens) > 3:
            raise KeyboardInterrupt
        return passes(self, *args)

    pieces = chat.ask("hi")
    if how == "ctrl-c in a pass":
        monkeypatch.setattr(Context, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            said(pieces)
        monkeypatch.setattr(Context, "run", passes)
    elif how == "ctrl-c while shown":
        next(pieces)
        with pytest.raises(KeyboardInterrupt):
            pieces.throw(KeyboardInterrupt)
    else:
        next(pieces)
        pieces.close()
    tokens = completed(chat).tokens
    assert completed(chat).finish_reason == "interrupted"
    assert 0 < len(tokens) < N and tokens == completed(whole).tokens[: len(tokens)]
    assert chat.messages[-1].tokens == tuple(tokens)
    n_held = len(completed(chat).prompt) + len(tokens) - 1
    said(chat.ask("so"))
    assert completed(chat).stats.n_prompt_reused == n_held
    assert completed(chat).tokens == fresh(new_context, chat)


def test_a_question_that_is_refused_was_not_asked(model: Model, new_context: NewContext) -> None:
    refusing = chat_models.CHATML + (
        "{% if 'no' in messages[-1].content %}{{ raise_exception('no') }}{% endif %}"
    )
    context = new_context(model, n_ctx=256)
    template = ChatTemplate.of(model, refusing)
    chat = Conversation(context, template, n_predict=N, sampling=GREEDY, draft=None)
    said(chat.ask("hi"))
    before = chat.messages
    with pytest.raises(ArgumentError, match="refuses"):
        said(chat.ask("no"))
    with pytest.raises(ContextFullError, match="give a larger n_ctx"):
        said(chat.ask("x" * 300))
    with pytest.raises(ContextFullError):
        said(chat.regenerate("x" * 300))
    assert chat.messages == before
    said(chat.ask("so"))
    assert completed(chat).tokens == fresh(new_context, chat)


def test_a_full_context(model: Model, new_context: NewContext) -> None:
    """The system's text and the latest turns stay, and there is room for some turns then. Nothing
    that was said is lost."""
    chat = conversation(new_context(model, n_ctx=256), system="be brief")
    left_out = []
    for i in range(24):
        said(chat.ask(f"question {i}"))
        completion = completed(chat)
        left_out.append(chat.n_left_out)
        assert completion.finish_reason in ("length", "eog"), "room for the whole answer"
        assert len(completion.prompt) + N <= 256
        text = model.detokenize(completion.prompt)
        assert text.count("be brief") == 1 and f"question {i}" in text
        shown = re.findall(r"question (\d+)", text)
        assert [int(n) for n in shown] == list(range(i + 1))[chat.n_left_out // 2 :]
        assert completion.tokens == fresh(new_context, chat)
    assert len(chat.messages) == 1 + 2 * 24
    assert left_out == sorted(left_out) and 2 < len(set(left_out)) < 12
    kept = chat.n_left_out
    said(chat.regenerate())
    assert chat.n_left_out == kept


# --- files -----------------------------------------------------------------------------------


def test_a_saved_conversation_goes_on(
    model: Model, new_context: NewContext, tmp_path: Path
) -> None:
    chat = conversation(new_context(model, n_ctx=512), system="be")
    said(chat.ask("hi <|im_end|>\n\u00e9"))
    chat.save(tmp_path / "chat.json")
    assert json.loads((tmp_path / "chat.json").read_text())["model"] == "tiny.gguf"
    other = conversation(new_context(model, n_ctx=512))
    other.load(tmp_path / "chat.json")
    assert other.messages == chat.messages
    assert said(other.ask("so")) == said(chat.ask("so"))
    assert completed(other).prompt == completed(chat).prompt


def test_tokens_of_a_file_are_believed_where_they_are_the_text(
    model: Model, demo: Model, new_context: NewContext, tmp_path: Path
) -> None:
    """No other ones, no control tokens, and none of another vocabulary."""
    chat = conversation(new_context(model, n_ctx=512))
    said(chat.ask("hi"))
    file = tmp_path / "chat.json"
    [control] = model.tokenize("<|im_end|>", add_special=False)
    tokens = chat.messages[-1].tokens
    assert tokens is not None
    for wrong in ((*tokens, control), tokens[1:], (*tokens, 10**6), (-1,)):
        chat.save(file)
        data = json.loads(file.read_text())
        data["messages"][-1]["tokens"] = wrong
        file.write_text(json.dumps(data))
        other = conversation(new_context(model, n_ctx=512))
        other.load(file)
        assert other.messages[-1] == Message("assistant", chat.messages[-1].text)
    chat.save(file)
    other = Conversation(new_context(demo), ChatTemplate.of(demo))
    other.load(file)
    assert other.messages[-1].tokens is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not JSON"),
        ("GGUF", "not JSON"),
        ("[]", "it has no format number"),
        ('{"format": 9}', "its format is 9, this version reads 1"),
        (
            '{"format":1,"model":"","vocabulary":"","messages":[1]}',
            "expected object, got int in messages[0]",
        ),
    ],
)
def test_what_is_no_saved_chat(
    content: str, reason: str, model: Model, new_context: NewContext, tmp_path: Path
) -> None:
    chat = conversation(new_context(model, n_ctx=512))
    (tmp_path / "chat.json").write_text(content)
    with pytest.raises(RecordError) as raised:
        chat.load(tmp_path / "chat.json")
    says = f"{tmp_path / 'chat.json'} is not a saved chat ({reason}); give another file"
    assert str(raised.value) == says
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ArgumentError, match="is a model"):
        chat.save(tmp_path / "model.gguf")


# --- who proposed what -----------------------------------------------------------------------


def test_pieces_of_a_drafted_answer(model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512), **DRAFTED)
    pieces = list(chat.ask("hi"))
    completion = completed(chat)
    assert "".join(piece.text for piece in pieces) == completion.text
    assert len(completion.sources) == len(completion.tokens)
    n_drafted = completion.sources.count("layer-skip")
    assert n_drafted == completion.stats.n_accepted > 0
    assert completion.sources.count(None) == completion.stats.n_steps
    assert {piece.origin for piece in pieces} == {None, "layer-skip"}


# --- through a pipe --------------------------------------------------------------------------


def piped(path: Path, lines: str, *args: str | Path) -> Outcome:
    options = ("-n", str(N), "--temp", "0", "-c", "512", *ONE_THREAD)
    outcome = run("chat", path, *options, *args, stdin=lines.encode())
    assert outcome.traceback is None, outcome
    return outcome


def test_lines_through_a_pipe(path: Path, model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512), system="be")
    want = [said(chat.ask(question)) for question in ("hi", "/so")]
    outcome = piped(path, "hi\n\n//so\n/stats\n/quit\nmore", "--system", "be", "--draft", "off")
    assert outcome.status == 0 and outcome.stdout == "\n".join([*want, ""])
    assert f"{N} tokens" in outcome.stderr


def test_records_through_a_pipe(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    outcome = piped(path, f"hi\n/save {file}\n/edit ho\n/draft off\n/regen", "--json")
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [record["question"] for record in records] == ["hi", "ho", "ho"]
    assert [record["draft"] for record in records][-1] == "off"
    assert records[2]["text"] == records[1]["text"]
    assert records[2]["n_prompt_reused"] == records[2]["n_prompt"] - 1
    [again] = piped(path, "so", "--json", "--load", file).stdout.splitlines()
    assert json.loads(again)["n_prompt"] > records[0]["n_prompt"] + N


def test_the_mask_comes_back_with_drafts(path: Path) -> None:
    outcome = piped(path, "hi\n/draft off\nhi\n/draft auto\nhi", "--json", "--exit-layer", "2")
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    first, off, again = (record["draft"] for record in records)
    assert first == again != off == "off" and "layer-skip" in first


def test_sampling_options_can_change(path: Path, tmp_path: Path) -> None:
    """Each by its names on the command line, and back to its default."""
    grammar = tmp_path / "yes.gbnf"
    grammar.write_text('root ::= "yes"')
    lines = f"/set seed 3\n/set temp 2.5\nhi\n/set grammar {grammar}\n/regen\n/set grammar default"
    schema = '/set json-schema {"const": "a b"}'
    outcome = piped(
        path, f"{lines}\n/set temperature 0\n{schema}\nhi\n/set", "--json", "--top-k", "7"
    )
    first, yes, quoted = map(json.loads, outcome.stdout.splitlines())
    assert yes["answer"] == "yes" and quoted["answer"] == '"a b"'
    same = piped(path, "hi", "--json", "--top-k", "7", "--seed", "3", "--temp", "2.5")
    assert same.json["answer"] == first["answer"] != yes["answer"]
    shown = dict(line.split(maxsplit=1) for line in outcome.stderr.splitlines()[-22:])
    assert (shown["temperature"], shown["top-k"], shown["seed"]) == ("0.0", "7", "3")
    assert shown["grammar"] == "not set" and shown["json-schema"] == '{"const": "a b"}'


def test_a_value_that_is_refused_changes_nothing(
    model: Model, new_context: NewContext, tmp_path: Path
) -> None:
    (broken := tmp_path / "broken.gbnf").write_text("no grammar")
    chat = conversation(new_context(model, n_ctx=512))
    grammars = f"/set grammar /no/such\r/set grammar {broken}"
    shown = typed(chat, f"/set top-k 5\r/set top-k x\r{grammars}\r/set\r\x04")
    assert "the grammar is not valid GBNF" in shown
    assert "top-k: 'x' is not an integer of at least 0" in shown
    assert "/no/such: No such file" in shown
    sampling = chat.options["sampling"]
    assert sampling is not None and (sampling.top_k, sampling.grammar) == (5, None)
    assert re.search(r"grammar +not set", shown)


def test_another_model_goes_on_with_the_conversation(path: Path, tmp_path: Path) -> None:
    """It reads all messages, in its own template; a name that is none leaves the present one."""
    other = chat_models.write(tmp_path / "other.gguf", "turns")
    outcome = piped(path, f"hi\n/model {other}\nso\n/model {path}\n/regen", "--json")
    first, second, third = map(json.loads, outcome.stdout.splitlines())
    assert [each["model"] for each in (first, second, third)] == [str(path), str(other), str(path)]
    assert second["n_prompt"] > first["n_prompt"] + N and third["question"] == "so"
    saved = tmp_path / "chat.json"
    piped(path, f"hi\n/save {saved}")
    [want] = piped(other, "so", "--json", "--load", saved).stdout.splitlines()
    assert json.loads(want)["answer"] == second["answer"]


def test_a_model_that_does_not_open_leaves_the_present_one(
    path: Path, tmp_path: Path, new_context: NewContext
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with Model(path) as own:
        chat = conversation(new_context(own, n_ctx=512))
        shown = typed(chat, f"hi\r/model nope\r/model {broken}\r/model\r/regen\r\x04")
        assert "unknown model 'nope'" in shown and f"model: {path}" in shown
        assert chat.context.model is own and len(chat.messages) == 2


@pytest.mark.parametrize(
    ("lines", "args", "error"),
    [
        ("/set nope 1", (), "there is no sampling option 'nope'; they are temperature, top-k, "),
        ("/set nope", (), "there is no sampling option 'nope'"),
        ("/set temp", (), "give a value: /set temp VALUE, or default"),
        ("/set temp -1", (), "temp: '-1' is not a number of at least 0"),
        ("/set grammar -", (), "stdin is read for messages"),
        ("/model nope", (), "unknown model 'nope'"),
        ("/nope", (), "unknown command /nope; commands are /regen, "),
        ("/load", (), "give the name of a file: /load FILE"),
        ("/load /no/such/file", (), "/no/such/file: No such file"),
        ("/draft nope", (), "'nope' is none of: auto, off, "),
        ("/draft head", (), 'this model has no draft head; give one: draft="head:FILE"'),
        ("/draft model:/no/such", (), "; drafts stay as they were: auto"),
        ("/clear x", (), "/clear takes no argument"),
        ("/quit now", (), "/quit takes no argument"),
        ("/exit strategy for a startup?", (), "/exit takes no argument; begin with //"),
        ("/regen", (), "there is no question yet"),
        ("/edit", (), "there is no question to edit yet"),
        ("x" * 600, (), "give a larger n_ctx (-c) or a shorter message"),
        ("hi", ("--chat-template", "/no/such/file"), "No such file"),
        ("hi", ("--mask", "-"), "stdin is read for messages"),
        ("hi", ("--draft", "off", "--exit-layer", "2"), "it takes no mask"),
    ],
)
def test_what_goes_wrong_in_a_pipe_ends_it(
    lines: str, args: tuple[str, ...], error: str, path: Path
) -> None:
    outcome = piped(path, lines + "\nhi\n", *args)
    assert outcome.status in (1, 2) and outcome.stdout == ""
    assert error in outcome.stderr and outcome.stderr.splitlines()[-1].startswith("Error: ")


def test_a_model_without_a_template_says_what_to_do(tiny_path: Callable[..., Path]) -> None:
    outcome = piped(tiny_path(), "hi")
    assert (
        outcome.status == 1
        and "give a template (--chat-template): chatml, plain or one of" in outcome.stderr
    )
    assert piped(tiny_path(), "hi", "--chat-template", "plain").status == 0


def test_generate_leads_to_chat_where_nothing_follows(path: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.gbnf"
    nothing.write_text('root ::= ""')
    args = ("-p", "hi", "--grammar", nothing, *ONE_THREAD)
    assert "use pyselfspec chat" in run("generate", path, *args).stderr
    assert "pyselfspec chat" not in run("generate", path, *args[:2], *ONE_THREAD, "-n", "4").stderr


def test_a_template_in_a_file_that_is_broken_is_told_from_the_models(
    path: Path, tmp_path: Path
) -> None:
    given = tmp_path / "broken.jinja"
    given.write_text("a\n{{ b")
    outcome = piped(path, "hi", "--chat-template", given)
    assert outcome.status == 1
    assert outcome.stderr.startswith(f"Error: {given}: the chat template is broken in line 2")


def test_a_pipe_takes_bytes_that_are_no_text(path: Path) -> None:
    outcome = run("chat", path, *ONE_THREAD, stdin=b"hi \xff\n")
    assert outcome.status == 1 and "stdin is not UTF-8 text: byte 0xff" in outcome.stderr


def test_errors_of_stdout_are_not_taken_for_those_of_a_file(path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        outcome = talk_into(path, full)
    assert (outcome.returncode, outcome.stderr) == (
        1, b"Error: stdout: No space left on device\n",
    )  # fmt: skip
    reader, writer = os.pipe()
    os.close(reader)  # as head does that has seen enough
    with os.fdopen(writer, "wb") as broken:
        outcome = talk_into(path, broken)
    assert (outcome.returncode, outcome.stderr) == (1, b"")


def talk_into(path: Path, stdout: IO[bytes]) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, "chat", str(path), *ONE_THREAD]
    return subprocess.run(
        command, input=b"hi\n", stdout=stdout, stderr=subprocess.PIPE, env=environment(),
        timeout=TIMEOUT, check=False,
    )  # fmt: skip


# --- in a terminal ---------------------------------------------------------------------------


def test_keys(model: Model, new_context: NewContext, user_data: Path) -> None:
    """Enter sends, Alt-Enter begins a new line, Ctrl-C forgets a line, Ctrl-D ends, the latest
    question can be changed, and the history is the user's alone."""
    chat = conversation(new_context(model, n_ctx=1024))
    said(chat.ask("hi"))
    typed(chat, "a\x1b\rb\rforget\x03/edit\r!\r\x04never\r")
    questions = [message.text for message in chat.messages if message.role == "user"]
    assert questions == ["hi", "a\nb!"]
    history = user_data / "pyselfspec" / "chat" / "history"
    assert history.stat().st_mode & 0o077 == 0 and "+b" in history.read_text()


def test_the_page_lists_all_commands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chat.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `/(.+?)` \| (.+?) \|$", page, re.MULTILINE)
    listed = [(name.replace("\\|", "|"), text) for name, text in rows]
    assert listed == [(f"{n} {c.argument}".strip(), c.help) for n, c in COMMANDS.items()]


def test_commands_are_completed() -> None:
    def found(text: str) -> list[str]:
        event = CompleteEvent(completion_requested=True)
        return [each.text for each in CommandNames(COMMANDS).get_completions(Document(text), event)]

    assert found("/") == list(COMMANDS) and found("/s") == ["save", "system", "set", "stats"]
    assert found("s") == found("a /s") == found("/save x") == []


def test_a_drafter_that_cannot_draft_leaves_the_former_one(
    model: Model, new_context: NewContext
) -> None:
    chat = conversation(new_context(model, n_ctx=512), draft="ngram")
    with click.Context(click.Command("chat")):
        shown = typed(chat, "/draft head\rhi\r/draft layer-skip\r/quit\r")
    assert "drafts stay as they were: ngram" in " ".join(shown.split())
    assert completed(chat).draft == "ngram" and chat.messages
    assert "drafts: layer-skip" in shown and chat.config.draft == "layer-skip"


def test_the_system_prompt_is_shown(model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512))
    shown = typed(chat, "/system\r/system Be nice.\r/system off\r/quit\r")
    assert shown.count("no system prompt") == 2 and "system prompt: Be nice." in shown


def test_errors_in_a_terminal_do_not_end_it(model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512))
    shown = typed(chat, "/nope\r/load /no/such\r" + "x" * 600 + "\r/help\r/quit\r")
    for text in ("unknown command /nope", "/no/such: No such file", "give a larger n_ctx (-c)"):
        assert text in shown
    assert all(f"/{name}" in shown for name in COMMANDS) and chat.messages == ()


def test_drafts_are_coloured(model: Model, new_context: NewContext) -> None:
    chat = conversation(new_context(model, n_ctx=512), **DRAFTED)
    shown = typed(chat, "hi\r\x04", show_drafts=True)
    completion = completed(chat)
    n_own = completion.sources.count(None)
    assert f"the model: {n_own}" in shown and f"\x1b[32m■ layer-skip: {N - n_own}" in shown
    uncoloured = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert printable(completion.text) in uncoloured
    assert "\x1b[32m" not in typed(chat, "hi\r\x04")


def test_models_do_not_steer_the_terminal() -> None:
    assert printable("a\x1b]0;x\x07\x9b1m\r\n\tb\u202e") == "a�]0;x��1m�\n\tb�"


def test_a_real_terminal(path: Path, tmp_path: Path) -> None:
    """Ctrl-C stops an answer that never ends by itself, and not the program."""
    endless = tmp_path / "endless.gbnf"
    endless.write_text("root ::= [a-z] root")
    options = ("-n", "-1", "-c", "65536", "--temp", "0", "--grammar", endless, *ONE_THREAD)
    with Pty("chat", path, *options) as program:
        program.wait_for(READING)
        program.type("hi there\r")
        program.wait_for(READ)
        program.wait_for("[a-z]{2}")
        program.type("\x03")
        program.wait_for("stopped")
        program.wait_for(READING)
        program.type("/stats\r")
        program.wait_for("of 65536 tokens")
        program.wait_for(READING)
        program.type("\x04")
        program.end()


# --- a real model ----------------------------------------------------------------------------


@pytest.mark.real
def test_a_real_conversation(real_model: RealModel, new_context: NewContext) -> None:
    with Model(real_model("smollm2-135m", "q8_0")) as model:
        context = new_context(model, n_ctx=1024)
        chat = Conversation(
            context, ChatTemplate.of(model), n_predict=48, sampling=GREEDY, draft="ngram"
        )
        said(chat.ask("What is the capital of France?"))
        first = completed(chat)
        said(chat.ask("And of Italy?"))
        second = completed(chat)
        n_held = len(first.prompt) + len(first.tokens) - 1
        assert second.stats.n_prompt_reused == n_held
        assert second.prompt[: n_held + 1] == first.prompt + first.tokens
        whole = model.tokenize(chat.template.text(chat.messages[:3]), add_special=False)
        assert model.detokenize(second.prompt) == model.detokenize(whole)
        assert len(second.prompt) - n_held < 24, "what is new"
