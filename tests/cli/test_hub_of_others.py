"""Models that Ollama and LM Studio have downloaded: listed, opened by name, and left where they
are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from command_line import check_error, completions, run
from fixture_types import TinyPath

from pyselfspec import Model, hub, model_path
from pyselfspec.hub import huggingface


def write_for_ollama(folder: Path, name: str, content: bytes) -> None:
    """Write a model as Ollama does. name: the place of its manifest."""
    digest = hashlib.sha256(content).hexdigest()
    (blob := folder / "blobs" / f"sha256-{digest}").parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    (manifest := folder / "manifests" / name).parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{hexes}"}
        for kind, hexes in (("template", "0" * 64), ("model", digest), ("license", "1" * 64))
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))


@pytest.fixture
def foreign(tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with models of Ollama and LM Studio, and no others."""
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(huggingface, "installed", lambda: iter(()))
    content, other = (tiny_path(qtype=each).read_bytes() for each in ("Q4_0", "Q8_0"))
    ollama = tmp_path / ".ollama" / "models"
    write_for_ollama(ollama, "registry.ollama.ai/library/tiny/latest", content)
    write_for_ollama(ollama, "registry.ollama.ai/library/llama3.2/1b", other)
    write_for_ollama(ollama, "registry.ollama.ai/someone/own/v2", content)
    write_for_ollama(ollama, "hf.co/user/repo/Q4_0", content)
    for file in (
        ".lmstudio/models/maker/repo/m-Q4_K_M.gguf",
        ".lmstudio/models/maker/repo/mmproj-m.gguf",
        ".cache/lm-studio/models/maker/old/o.gguf",
    ):
        (path := tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def test_models_of_other_programs_are_listed_and_opened(foreign: Path) -> None:
    before = sorted(foreign.rglob("*"))
    rows = run("models", "list", "--json").json["models"]
    here = {row["name"]: row["type"] for row in rows if row["path"] and row["name"] != "demo"}
    assert here == {
        "ollama:tiny:latest": "Q4_0",  # the shortest name of the file
        "ollama:llama3.2:1b": "Q8_0",
        "lmstudio:maker/old:o.gguf": "Q4_0",
        "lmstudio:maker/repo:m-Q4_K_M.gguf": "Q4_0",
    }
    others = ("ollama:someone/own:v2", "ollama:hf.co/user/repo:Q4_0", "ollama:tiny")
    for name in (*here, *others, "lmstudio:maker/repo", "lmstudio:maker/repo:q4_k_m"):
        with Model(name) as model:
            assert model.file.path.is_relative_to(foreign)
    assert run("models", "pull", "ollama:tiny").stdout == f"{model_path('ollama:tiny')}\n"
    assert sorted(foreign.rglob("*")) == before, "nothing is copied"


def test_shells_complete_models_of_other_programs(foreign: Path) -> None:
    assert completions(["chat"], "lmstudio:maker/o") == [("lmstudio:maker/old:o.gguf", "plain")]
    assert completions(["generate"], "ollama:t") == [("ollama:tiny:latest", "plain")]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("info ollama:qwen3:4b", "not been pulled yet; get it with: ollama pull qwen3:4b"),
        ("pull ollama:qwen3:4b", "not been pulled yet; get it with: ollama pull qwen3:4b"),
        ("pull lmstudio:a/b:Q8_0", "get it with: lms get https://huggingface.co/a/b"),
        ("info lmstudio:a", "write lmstudio:USER/REPO[:FILE]"),
        ("rm ollama:tiny", "remove it with: ollama rm tiny"),
        ("rm lmstudio:maker/repo", "is in LM Studio's folder"),
    ],
)
def test_other_programs_get_and_remove_their_models(foreign: Path, args: str, says: str) -> None:
    check_error(run("models", *args.split()), (1, 2), says)
    assert (foreign / ".lmstudio/models/maker/repo/m-Q4_K_M.gguf").exists()


@pytest.mark.parametrize(
    "damage",
    [b"", b"[]", b"\xff", b'{"layers": [{}]}', b'{"layers": []}',
     b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../../x"}]}'],
)  # fmt: skip
def test_a_damaged_manifest_is_one_line(foreign: Path, damage: bytes) -> None:
    manifest = foreign / ".ollama/models/manifests/registry.ollama.ai/library/tiny/latest"
    manifest.write_bytes(damage)
    check_error(run("models", "info", "ollama:tiny"), 1, str(manifest), "ollama pull tiny")
    assert "ollama:tiny:latest" not in hub.installed()
    assert "ollama:someone/own:v2" in hub.installed()


def test_files_that_cannot_be_read_are_named_and_the_others_listed(foreign: Path) -> None:
    blob = model_path("ollama:tiny")
    blob.unlink()
    broken = foreign / ".lmstudio/models/maker/repo/m-Q4_K_M.gguf"
    broken.write_bytes(broken.read_bytes()[:5000])
    listed = run("models", "list", "--json")
    here = {row["name"] for row in listed.json["models"] if row["path"]}
    assert here == {"demo", "ollama:llama3.2:1b", "lmstudio:maker/old:o.gguf"}
    missing, short = listed.stderr.splitlines()
    assert missing.startswith(f"Warning: ollama:tiny:latest is not listed: {blob}")
    assert short.startswith("Warning: lmstudio:maker/repo:m-Q4_K_M.gguf is not listed: ")
    for name in ("ollama:tiny", "lmstudio:maker/repo"):
        check_error(run("models", "info", name), 1)
