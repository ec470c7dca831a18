"""Pictures in chats: with a question, in later turns, in saved conversations, and where no model
reads them; and in prompts of generate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import FAILED, ONE_THREAD, Outcome, check_error, run
from conversations import N, completed, conversation, said
from fixture_types import NewContext
from png_files import png
from tiny_mmproj import N_ROWS, write

from pyselfspec import GREEDY, Completion, Model
from pyselfspec.chat.pictures import UNREAD
from pyselfspec.cli._chat.dropped import picture_paths
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.projector import Projector


@pytest.fixture(scope="module")
def mmproj(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mmproj") / "p.gguf", model.n_embd, seed=1)


@pytest.fixture(scope="module")
def projector(model: Model, mmproj: Path) -> Iterator[Projector]:
    with Projector(model, mmproj, n_threads=1) as projector:
        yield projector


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Files of two pictures."""
    paths = [tmp_path / f"{seed}.png" for seed in range(2)]
    for seed, path in enumerate(paths):
        path.write_bytes(png(seed))
    return paths


def test_a_picture_comes_before_its_question(
    model: Model, projector: Projector, new_context: NewContext
) -> None:
    """It stays in later turns, which do not read it again, and with another question."""
    chat = conversation(new_context(model, n_ctx=512), projector=projector)
    said(chat.ask("what?", [png(0)]))
    read = projector.read(png(0)).tokens
    row = next(token for token in read if token < 0)
    at = completed(chat).prompt.index(row) - read.index(row)
    assert tuple(completed(chat).prompt[at : at + len(read)]) == read
    ends = completed(chat).prompt[:at], completed(chat).prompt[at + len(read) :]
    before, after = map(model.detokenize, ends)
    assert before.endswith("user\n") and after.startswith("what?")
    n_held = len(completed(chat).prompt) + N - 1
    said(chat.ask("and?"))
    assert completed(chat).stats.n_prompt_reused == n_held
    said(chat.regenerate("or?"))
    assert completed(chat).prompt.count(row) == 1
    said(chat.ask("both?", [png(1), png(0)]))
    assert completed(chat).prompt.count(row) == 2


def test_pictures_of_turns_that_no_longer_fit_are_left_out(
    model: Model, projector: Projector, new_context: NewContext
) -> None:
    chat = conversation(new_context(model, n_ctx=256), projector=projector)
    for seed in range(9):
        said(chat.ask("what is this?", [png(seed)]))
        rows = [token for token in completed(chat).prompt if token < 0]
        n_seen = (2 * (seed + 1) - chat.n_left_out) // 2
        assert len(set(rows)) == len(rows) == n_seen * N_ROWS["gemma3"]
    assert chat.n_left_out > 0


def test_a_model_without_a_projector_is_told_of_a_picture(
    model: Model, projector: Projector, new_context: NewContext, tmp_path: Path
) -> None:
    """The picture is still there for one that has a projector, and in a saved conversation."""
    chat = conversation(new_context(model, n_ctx=512), projector=projector)
    said(chat.ask("what?", [png(0)]))
    prompt = completed(chat).prompt
    chat.save(tmp_path / "chat.json")
    other = conversation(new_context(model, n_ctx=512))
    other.load(tmp_path / "chat.json")
    said(other.regenerate())
    assert f"user\n{UNREAD}what?" in model.detokenize(completed(other).prompt)
    other.switch(new_context(model, n_ctx=512), other.template, None, projector)
    said(other.regenerate())
    assert completed(other).prompt == prompt


def test_a_picture_that_cannot_be_read_was_not_asked_about(
    model: Model, projector: Projector, new_context: NewContext
) -> None:
    chat = conversation(new_context(model, n_ctx=512), projector=projector)
    with pytest.raises(ArgumentError, match="no known format"):
        said(chat.ask("what?", [b"no picture"]))
    assert chat.messages == ()


# --- on the command line ---------------------------------------------------------------------


def chatted(path: Path, *args: str | Path, lines: str = "") -> Outcome:
    options = ("-n", str(N), "--temp", "0", "-c", "512", *ONE_THREAD)
    return run("chat", path, *args, *options, stdin=lines.encode())


def test_pictures_of_files(path: Path, mmproj: Path, pictures: list[Path]) -> None:
    """An option adds them to the first question, and a command to the next one."""
    one, other = pictures
    texts = {
        chatted(path, "what?", "--mmproj", mmproj, *args).stdout
        for args in ((), ("--image", one), ("--image", other), ("--image", one, "--image", other))
    }
    assert len(texts) == 4
    asked = f"/image {one}\nwhat?\n/clear\nwhat?\n/clear\n/image {one}\n/image {other}\nwhat?"
    outcome = chatted(path, "--mmproj", mmproj, "--json", lines=asked)
    answers = [json.loads(line)["answer"] + "\n" for line in outcome.stdout.splitlines()]
    assert len(set(answers)) == 3 and set(answers) < texts


def test_a_projector_that_is_not_there_is_noticed_without_pictures(path: Path) -> None:
    done = run("generate", path, "hi", "-n", "2", "--mmproj", "missing.gguf")
    check_error(done, FAILED, "missing.gguf: no such file")


def test_pictures_that_cannot_be_added(path: Path, mmproj: Path, pictures: list[Path]) -> None:
    picture, reads = str(pictures[0]), ("--mmproj", mmproj)
    check_error(chatted(path, "--image", picture), 2, "--image needs --mmproj")
    check_error(chatted(path, lines=f"/image {picture}"), 1, "start chat with --mmproj")
    check_error(chatted(path, *reads, lines="/image"), 1, "give the name of a file: /image FILE")
    check_error(chatted(path, *reads, lines="/image /no/such"), 1, "/no/such: No such file")
    check_error(chatted(path, *reads, lines=f"/image {path}"), 1, f"{path}: the picture is in no")
    with (path.parent / "long.png").open("wb") as file:
        file.truncate((1 << 28) + 1)
    check_error(chatted(path, *reads, lines=f"/image {file.name}"), 1, "long.png: more than 256")
    check_error(chatted(path, "--mmproj", path), 1, "projector")


def test_pictures_in_a_prompt_to_continue(
    path: Path,
    mmproj: Path,
    pictures: list[Path],
    model: Model,
    projector: Projector,
    new_context: NewContext,
) -> None:
    """They come before it, or at its markers, and drafts do not change the text."""
    read = [projector.read(picture.read_bytes()).tokens for picture in pictures]
    context = new_context(model, n_ctx=512)
    shown = ("--mmproj", mmproj, "--image", pictures[0], "--image", pictures[1])
    options = ("-n", str(N), "--temp", "0", "-c", "512", "--compare", "--json", *ONE_THREAD)
    for text, parts in (
        ("one two one", ("", "", "one two one")),
        ("a<__media__>b<__media__> a", ("a", "b", " a")),
    ):
        begin, between, end = (
            model.tokenize(part, add_special=not i) for i, part in enumerate(parts)
        )
        prompt = [*begin, *read[0], *between, *read[1], *end]
        known = [projector.read(picture.read_bytes()) for picture in pictures]
        want = Completion(context, prompt, None, n_predict=N, sampling=GREEDY, pictures=known)
        report = run("generate", path, text, *shown, *options).json
        assert report["text"] == "".join(want)
        assert report["n_prompt"] == len(prompt) and report["identical"]


def test_pictures_that_cannot_go_into_a_prompt(
    path: Path, mmproj: Path, pictures: list[Path]
) -> None:
    picture, reads = str(pictures[0]), ("--mmproj", mmproj)
    check_error(run("generate", path, "a", "--image", picture), 2, "--image needs --mmproj")
    two = run("generate", path, "<__media__> <__media__>", *reads, "--image", picture)
    check_error(two, 1, "the number of <__media__> in the prompt is 2, and that of pictures is 1")
    ids = run("generate", path, "--prompt-tokens", "5,6", *reads, "--image", picture)
    check_error(ids, 2, "leave out --prompt-tokens")
    check_error(run("generate", path, "a", *reads, "--image", path), 1, "the picture is in no")


def test_a_path_in_a_message_adds_its_picture(
    path: Path, mmproj: Path, pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that a terminal writes for a dropped file is one, and the answer is that of /image."""
    one = pictures[0].rename(pictures[0].with_name("a cat.png"))
    monkeypatch.chdir(one.parent)  # a text with the folder's name differs from run to run
    for typed in ("'./a cat.png' what?", "./a\\ cat.png what?", "what is in ./a\\ cat.png?"):
        want = chatted(path, "--mmproj", mmproj, lines=f'/image {one}\n"""{typed}"""')
        found = chatted(path, "--mmproj", mmproj, lines=typed)
        assert found.status == 0 and found.stdout == want.stdout
        plain = chatted(path, "--mmproj", mmproj, lines=f'"""{typed}"""')
        assert found.stdout != plain.stdout
        assert "a cat.png goes with this question" in found.stderr


def test_paths_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cat.png", "a dog.JPG", "notes.txt"):
        Path(name).write_bytes(b"")
    text = f"""What's in ./cat.png, "./a dog.JPG", ./a\\ dog.JPG or {tmp_path}/cat.png? It isn't
        cat.png alone, ./notes.txt, ./none.png, or a/{"x" * 9999}.png"""
    dog = Path("a dog.JPG")
    assert picture_paths(text) == [Path("cat.png"), dog, dog, tmp_path / "cat.png"]
