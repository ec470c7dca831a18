"""pyselfspec models relayer and widen: what they print and write, and bad input in one line."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import broken_gguf
import pytest
from command_line import PROGRAM, TIMEOUT, Outcome, environment, run
from fixture_types import TinyPath
from gguf import GGMLQuantizationType

from pyselfspec.cli._signals import exit_status
from pyselfspec.convert import stream
from pyselfspec.convert.relayer import relayer
from pyselfspec.convert.stream import read_model
from pyselfspec.convert.widen import widen
from pyselfspec.gguf import file as gguf_file
from pyselfspec.util.paths import DEMO

FAILED, USAGE = 1, 2
OLD = b"what was there before"
FACTS = ("architecture", "n_layer", "n_embd", "n_params", "file_type", "n_bytes")


def block_names(path: Path) -> set[str]:
    return {t.name for t in broken_gguf.read(path).tensors if t.name.startswith("blk.")}


@pytest.mark.parametrize(
    ("blocks", "order"),
    [("0-2", [0, 1, 2]), ("2,0,1", [2, 0, 1]), ("0-3,1-2, 3 ", [0, 1, 2, 3, 1, 2, 3])],
)
def test_blocks_are_read_in_their_order(
    tiny_path: TinyPath, tmp_path: Path, blocks: str, order: list[int]
) -> None:
    path, out = tiny_path(n_layer=4), tmp_path / "out.gguf"
    assert run("models", "relayer", path, out, "--blocks", blocks).status == 0
    relayer(read_model(path), order).write(tmp_path / "want.gguf")
    assert out.read_bytes() == (tmp_path / "want.gguf").read_bytes()


def test_sublayers_are_zeroed(tiny_path: TinyPath, tmp_path: Path) -> None:
    path, out = tiny_path(n_layer=4), tmp_path / "out.gguf"
    assert run("models", "relayer", path, out, "--zero-attn", "1-2", "--zero-ffn", "3").status == 0
    relayer(read_model(path), zero_attn=[1, 2], zero_ffn=[3]).write(tmp_path / "want.gguf")
    assert out.read_bytes() == (tmp_path / "want.gguf").read_bytes()


def test_the_demo_is_cut(tmp_path: Path) -> None:
    """A small draft model for programs that need one: the first blocks and the head."""
    out = tmp_path / "cut.gguf"
    assert run("models", "relayer", "demo", out, "--blocks", "0-2").status == 0
    assert gguf_file.check(out).n_layer == 3
    assert len(block_names(out)) == len(block_names(DEMO)) * 3 // gguf_file.check(DEMO).n_layer


@pytest.mark.parametrize("arguments", ["relayer --blocks 1,1", "widen --factor 2"])
def test_facts_are_those_of_the_file(tiny_path: TinyPath, tmp_path: Path, arguments: str) -> None:
    command, *options = arguments.split()
    out = tmp_path / "out.gguf"
    facts = run("models", command, tiny_path(qtype="Q8_0"), out, *options, "--json").json
    file = gguf_file.check(out)
    types = Counter(tensor.type for tensor in file.tensors)
    expected = {"model": str(out), "tensor_types": types}
    assert facts == expected | {name: getattr(file, name) for name in FACTS}
    outcome = run("models", command, tiny_path(qtype="Q8_0"), out, *options)
    assert outcome.status == 0 and outcome.stderr == ""
    assert outcome.stdout.startswith(f"{out}: llama, {file.n_layer} blocks of width {file.n_embd}")
    assert outcome.stdout.count("\n") == 1


def test_widened_models_can_be_floats(tiny_path: TinyPath, tmp_path: Path) -> None:
    path, out = tiny_path(qtype="Q8_0"), tmp_path / "out.gguf"
    facts = run("models", "widen", path, out, "--factor", "2", "--dequantize", "F16", "--json").json
    assert facts["file_type"] == "F16"
    widen(read_model(path), 2, GGMLQuantizationType.F16).write(tmp_path / "want.gguf")
    assert out.read_bytes() == (tmp_path / "want.gguf").read_bytes()


# --- bad input -------------------------------------------------------------------------------


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The target: a file that is there already, and must stay as it is."""
    path = tmp_path / "out.gguf"
    path.write_bytes(OLD)
    return path


def assert_refused(outcome: Outcome, out: Path, status: int, *words: str) -> None:
    assert outcome.traceback is None, repr(outcome.traceback)
    assert (outcome.status, outcome.stdout) == (status, ""), outcome
    lines = outcome.stderr.splitlines()
    assert lines[-1].startswith("Error: ") and (status == USAGE or len(lines) == 1)
    assert [word for word in words if word not in lines[-1]] == [], lines[-1]
    assert out.read_bytes() == OLD
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ("relayer --blocks 0-4", FAILED, ["no block 4", "0 to 3"]),
        ("relayer --blocks 0-999999", FAILED, ["no block 4"]),
        ("relayer --blocks 1 --zero-attn 4", FAILED, ["no block 4"]),
        ("relayer", USAGE, ["there is no change", "--blocks"]),
        ("relayer --blocks=", USAGE, ["not a block or range"]),
        ("relayer --blocks 3-1", USAGE, ["runs backwards"]),
        ("relayer --blocks -1", USAGE, ["not a block or range"]),
        ("relayer --zero-attn 1,1", USAGE, ["block 1 is given twice"]),
        ("widen", USAGE, ["--factor"]),
        ("widen --factor 1", USAGE, ["'1' is not an integer of at least 2"]),
        ("widen --factor 1.5", USAGE, ["1.5"]),
        ("widen --factor 100000", FAILED, ["100000 is too large"]),
        ("widen --factor 2 --dequantize q4_k", USAGE, ["q4_k", "f32"]),
    ],
)
def test_bad_options(
    tiny_path: TinyPath, out: Path, arguments: str, status: int, words: list[str]
) -> None:
    command, *options = arguments.split()
    outcome = run("models", command, tiny_path(n_layer=4), out, *options)
    assert_refused(outcome, out, status, *words)


OPTIONS = {"relayer": ["--blocks", "0"], "widen": ["--factor", "2"]}


@pytest.mark.parametrize("command", OPTIONS)
def test_no_model(out: Path, command: str) -> None:
    missing = out.parent / "in.gguf"
    outcome = run("models", command, missing, out, *OPTIONS[command])
    assert_refused(outcome, out, FAILED, "in.gguf", "no such file")


@pytest.mark.parametrize("command", OPTIONS)
@pytest.mark.parametrize("name", ["", "missing/out.gguf"])
def test_bad_targets(tiny_path: TinyPath, out: Path, command: str, name: str) -> None:
    target = out.parent / name
    outcome = run("models", command, tiny_path(), target, *OPTIONS[command])
    words = [str(target if target.exists() else target.parent), "give the name" if not name else ""]
    assert_refused(outcome, out, FAILED, *words)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
@pytest.mark.parametrize("command", OPTIONS)
@pytest.mark.parametrize("limit", [100, 60_000])  # bytes: inside the header, inside the weights
def test_a_full_disk(tiny_path: TinyPath, out: Path, command: str, limit: int) -> None:
    done = subprocess.run(
        [*PROGRAM, "models", command, tiny_path(), out, *OPTIONS[command]],
        capture_output=True, text=True, env=environment(), timeout=TIMEOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    outcome = Outcome(done.returncode, done.stdout, done.stderr)
    assert_refused(outcome, out, FAILED, str(out), "File too large")


@pytest.mark.parametrize("command", OPTIONS)
def test_interrupted(
    tiny_path: TinyPath, out: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Ctrl-C comes while the first piece is on its way."""
    append = stream._append_data

    def interrupted(*arguments):
        yield next(append(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "_append_data", interrupted)
    outcome = run("models", command, tiny_path(), out, *OPTIONS[command])
    assert (outcome.status, outcome.stdout, outcome.traceback) == (exit_status(), "", None)
    assert out.read_bytes() == OLD
    assert list(out.parent.iterdir()) == [out]
