"""Bad input: one line that begins with "Error:", exit status 1 or 2, nothing on stdout.

Whatever could end the process inside the library runs in a process of its own.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import broken_gguf
import pytest
from broken_gguf import RawGguf
from command_line import (
    FAILED,
    PROGRAM,
    TIMEOUT,
    USAGE,
    Outcome,
    check_error,
    environment,
    run,
    run_alone,
)
from fixture_types import TinyPath
from gguf import GGUFValueType

from pyselfspec.runtime.ffi import devices
from pyselfspec.util import paths

ANY = (FAILED, USAGE)  # where only the message matters
MEMORY = 3 * 2**30  # bytes that a process which asks for too much may have
N_LAYER = 4
FULL_DISK = Path("/dev/full")


# --- the files -------------------------------------------------------------------------------


def rename_architecture(raw: RawGguf) -> None:
    raw.metadata = {k.replace("llama.", "quux.", 1): v for k, v in raw.metadata.items()}
    raw.set_string("general.architecture", "quux")
    raw.set_string("tokenizer.ggml.model", "llama")


def drop_tensors(raw: RawGguf) -> None:
    raw.tensors.clear()


def drop_bos(raw: RawGguf) -> None:
    raw.metadata["tokenizer.ggml.add_bos_token"] = (GGUFValueType.BOOL, False)


def bring_bad_mask(raw: RawGguf) -> None:
    raw.set_string("pyselfspec.draft_mask", '{"n_layer": 99}')


EDITS: dict[str, Callable[[RawGguf], None]] = {
    "architecture.gguf": rename_architecture,
    "vocabulary.gguf": drop_tensors,
    "newline.gguf": lambda raw: raw.set_string("tokenizer.ggml.model", "ll\nma"),
    "no-bos.gguf": drop_bos,
    "bad-mask.gguf": bring_bad_mask,
}
TEXTS = {
    "prompt.txt": b"hello",
    "latin1.txt": b"gr\xfcn",
    "cut.txt": b"gr\xc3",
    "mask-5.json": b'{"n_layer": 5, "skip_attn": [1]}',
    "mask-twice.json": b'{"n_layer": 4, "skip_ffn": [2, 2]}',
    "mask-cut.json": b'{"n_layer": 4, "skip_attn": [1]',
    "mask-list.json": b"[1]",
    "mask-deep.json": b'{"n_layer": 4, "skip_attn": ' + b"[" * 100_000,
    "mask-null.json": b"null",
    "mask-nulls.json": b"[0, null, 0, 0]",
    "bad.gbnf": b"root ::= (\n",
    "no-root.gbnf": b'word ::= "a"\n',
    "empty.gbnf": b"",
    "nul.gbnf": b'root ::= "a"\0 "b"',
    "good.gbnf": b'root ::= "a"\n',
}


@pytest.fixture(scope="session")
def folder(tiny_path: TinyPath, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file the table below names."""
    folder = tmp_path_factory.mktemp("bad")
    tiny, ids = tiny_path(n_layer=N_LAYER), tiny_path(n_layer=N_LAYER, vocab="none")
    good = tiny.read_bytes()
    models = {
        "tiny.gguf": good,
        "ids.gguf": ids.read_bytes(),
        "cut-data.gguf": good[: len(good) // 2],
    }
    for name, edit in EDITS.items():
        raw = broken_gguf.read(tiny)
        edit(raw)
        models[name] = raw.to_bytes()
    for name, content in (models | TEXTS).items():
        (folder / name).write_bytes(content)
    return folder


# --- the table -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Arguments, with files of the folder written as "@name", and what must come of them."""

    args: str | list[str]
    status: int | tuple[int, ...]
    words: list[str] = field(default_factory=list)
    stdin: bytes = b""
    alone: bool = False

    def arguments(self, folder: Path) -> list[str]:
        parts = self.args.split() if isinstance(self.args, str) else self.args
        return [str(folder / p[1:]) if p.startswith("@") else p for p in parts]

    def check(self, folder: Path) -> None:
        runner = run_alone if self.alone else run
        check_error(runner(*self.arguments(folder), stdin=self.stdin), self.status, *self.words)

    def __str__(self) -> str:
        return (self.args if isinstance(self.args, str) else " ".join(self.args))[:70]


def usage(args: str | list[str], *words: str) -> Case:
    return Case(args, USAGE, list(words))


def on_tiny(args: str, *words: str, status: int | tuple[int, ...] = FAILED) -> Case:
    return Case(f"generate @tiny.gguf -t 1 -n 3 -p hi {args}", status, list(words))


MODELS = [
    ("@missing.gguf", ["no such file"]),
    ("@", ["directory"]),
    ("@cut-data.gguf", ["cut-data.gguf", "cut off"]),
    ("@architecture.gguf", ["architecture.gguf", "unknown model architecture", "quux"]),
    ("@newline.gguf", ["unknown tokenizer", "ll\\nma"]),
    ("@vocabulary.gguf", ["vocabulary.gguf", "only a vocabulary"]),
]

CASES = [
    # models
    *(Case(f"generate {name} -p hi -n 3 -t 1", FAILED, w, alone=True) for name, w in MODELS),
    *(Case(f"models info {name} --json", FAILED, words, alone=True) for name, words in MODELS[-2:]),
    Case("models info @missing.gguf", FAILED, ["no such file"]),
    Case("models info @", FAILED, ["directory"]),
    Case("generate @bad-mask.gguf -p hi -t 1", FAILED, ["bad-mask.gguf", "99", "4"]),
    # masks
    on_tiny("--mask @mask-5.json", "5 blocks", "4"),
    on_tiny("--mask @mask-twice.json", "skip_ffn names 2 twice"),
    on_tiny("--mask @mask-cut.json", "not JSON"),
    on_tiny("--mask @mask-list.json", "1 blocks, not for 4"),
    on_tiny("--mask @mask-deep.json", "not JSON"),
    on_tiny("--mask @mask-null.json", "an object or a list, got null"),
    on_tiny("--mask @mask-nulls.json", "0 to 3 for each block, got null"),
    on_tiny("--mask @latin1.txt", "latin1.txt", "UTF-8"),
    on_tiny("--mask @missing.json", "missing.json", "no such file"),
    on_tiny("--mask @", "directory"),
    on_tiny("--mask /dev/zero", "/dev/zero", "64 MiB"),
    on_tiny("--mask @mask-5.json --skip-attn 1", "give only one mask", status=USAGE),
    on_tiny("--mask @mask-5.json --draft off", "--draft off", status=USAGE),
    on_tiny("--skip-ffn 1 --draft off", "--draft off", status=USAGE),
    on_tiny("--verify residual --draft off", "--verify residual needs drafts", status=USAGE),
    # lists of blocks
    on_tiny("--skip-attn 4", "block 4", "0 to 3"),
    on_tiny("--skip-ffn 2-99999", "block 4", "0 to 3"),
    on_tiny("--skip-attn 0-3 --skip-ffn 0-3", "skips all 4 blocks"),
    on_tiny("--skip-attn 1,1", "--skip-attn", "twice", status=USAGE),
    on_tiny("--skip-ffn 1-3,2", "--skip-ffn", "block 2", "twice", status=USAGE),
    on_tiny("--skip-attn 3-1", "3-1", "backwards", status=USAGE),
    on_tiny("--skip-attn -1", "'-1'", status=USAGE),
    on_tiny("--skip-attn 1,", "''", status=USAGE),
    on_tiny("--skip-attn 99999999999999999999", "--skip-attn", status=USAGE),
    # prompts
    Case("generate @tiny.gguf -c 256 -t 1", FAILED, ["prompt", "-c"], stdin=b"word " * 999),
    Case("generate @tiny.gguf -t 1", FAILED, ["stdin", "UTF-8", "0xfc"], stdin=b"gr\xfcn"),
    Case("generate @tiny.gguf -t 1 -f -", FAILED, ["stdin", "UTF-8"], stdin=b"cut \xc3"),
    Case("generate @tiny.gguf -t 1 -f @latin1.txt", FAILED, ["latin1.txt", "UTF-8", "offset 2"]),
    Case("generate @tiny.gguf -t 1 -f @cut.txt", FAILED, ["cut.txt", "UTF-8"]),
    Case("generate @tiny.gguf -f @missing.txt", FAILED, ["missing.txt", "no such file"]),
    Case("generate @tiny.gguf -f @", FAILED, ["directory"]),
    Case(["generate", "@tiny.gguf", "-f", "", "-n", "3"], ANY, [], stdin=b"not asked for"),
    Case(["generate", "@no-bos.gguf", "-p", "", "-t", "1"], FAILED, ["prompt", "no tokens"]),
    usage("generate demo -p hi -f @prompt.txt", "one prompt"),
    usage("generate demo -p hi --prompt-tokens 5", "one prompt"),
    usage("generate demo -f @prompt.txt --prompt-tokens 5", "one prompt"),
    Case("generate @tiny.gguf -f - --mask -", ANY, ["stdin"], stdin=b"hi"),
    Case("generate @tiny.gguf --mask -", ANY, ["stdin"], stdin=b'{"n_layer": 4}'),
    Case("generate @ids.gguf -p hi -t 1", FAILED, ["no tokenizer", "--prompt-tokens"]),
    Case("generate @ids.gguf --prompt-tokens 5 --stop a -t 1", FAILED, ["no tokenizer", "stop"]),
    Case(
        "generate @ids.gguf --prompt-tokens 5 --grammar @good.gbnf -t 1",
        FAILED, ["no tokenizer", "grammar"], alone=True,
    ),
    # ids
    usage(["generate", "--prompt-tokens", ""], "--prompt-tokens", "1,5,9"),
    usage("generate --prompt-tokens 5,x", "'5,x'"),
    Case("generate @ids.gguf -t 1 --prompt-tokens -1", ANY, ["-1"], alone=True),
    Case("generate @ids.gguf -t 1 --prompt-tokens 5,-7", ANY, ["-7"], alone=True),
    Case("generate @ids.gguf -t 1 --prompt-tokens 5,9999", FAILED, ["9999"], alone=True),
    Case("generate @ids.gguf -t 1 --prompt-tokens 4294967301", ANY, ["4294967301"], alone=True),
    # numbers
    usage("generate -p hi -n 0", "-n", "at least 1, or -1 for no limit"),
    usage("generate -p hi -t 513", "--threads", "512"),
    usage("models convert a b -t 513", "--threads", "512"),
    usage("generate -p hi -c -1", "-c"),
    usage("generate -p hi -t 0", "-t"),
    usage("generate -p hi -ngl -2", "-ngl"),
    usage("generate -p hi --gpu-layers some", "--gpu-layers", "an integer of at least -1"),
    usage("generate -p hi --split-mode tensor", "--split-mode", "none", "layer", "row"),
    usage("generate -p hi --main-gpu -1", "--main-gpu"),
    usage("generate -p hi --flash-attn maybe", "--flash-attn", "auto"),
    usage("generate -p hi --cache-type-k q3_k", "--cache-type-k", "q8_0"),
    on_tiny("--flash-attn off --cache-type-v q8_0", "V of type q8_0", "--flash-attn", "bf16"),
    usage("generate -p hi --temp -0.1", "--temp"),
    usage("generate -p hi --top-k -1", "--top-k"),
    usage("generate -p hi --top-p 1.5", "--top-p"),
    usage("generate -p hi --min-p -1", "--min-p"),
    usage("generate -p hi --repeat-penalty 0", "--repeat-penalty"),
    usage("generate -p hi --repeat-last-n -1", "--repeat-last-n"),
    usage("generate -p hi --seed -2", "--seed"),
    usage("generate -p hi --seed 4294967295", "--seed", "4294967294"),
    usage("generate -p hi --draft-max 0", "--draft-max"),
    usage("generate -p hi --draft-p-min 2", "--draft-p-min"),
    on_tiny("--temp nan", "temp", "nan", status=ANY),
    on_tiny("--presence-penalty nan", "presence", "nan"),
    on_tiny("--draft-p-min nan", "p", "min", "nan", status=ANY),
    on_tiny("--repeat-penalty 1e38", "at most", "1e+38"),
    Case("models convert who/what out.gguf", FAILED, ["is no folder", "hf download who/what"]),
    Case("models convert ./what out.gguf", FAILED, ["is no folder", "and tokenizer"]),
    Case("generate @ids.gguf -p hi -t 1 -c 67108865", FAILED, ["n_ctx (-c) is at most"]),
    usage("layers search @tiny.gguf -t 1 --max-cost nan", "--max-cost", "at most 1", "nan"),
    usage("layers search @tiny.gguf -t 1 --share nan", "--share", "at most 1", "nan"),
    on_tiny("--top-k 2147483648", "top", "2147483648", status=ANY),
    on_tiny("--repeat-last-n 2147483648", "last", "2147483648", status=ANY),
    # grammars and stop strings
    on_tiny("--grammar @no-root.gbnf", "GBNF", "root"),
    on_tiny("--grammar @empty.gbnf", "grammar", "empty"),
    on_tiny("--grammar @nul.gbnf", "grammar"),
    on_tiny("--grammar @missing.gbnf", "missing.gbnf", "no such file"),
    on_tiny("--grammar @latin1.txt", "latin1.txt", "UTF-8"),
    Case(["generate", "@tiny.gguf", "-p", "hi", "--stop", ""], ANY, ["stop", "empty"]),
    # usage
    usage("frobnicate", "frobnicate"),
    usage("generate @tiny.gguf hi more", "more"),
    usage("generate -p hi @tiny.gguf more", "one prompt"),
    usage("generate Once", "unknown model", "text goes after MODEL, or with -p"),
    usage("generate -p hi --frob", "--frob"),
    usage("generate -p hi --draft frob", "frob", "layer-skip", "off"),
    usage("generate -p", "-p"),
    usage("models info -p hi", "-p"),
    usage("models info @tiny.gguf more", "more"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_clear_line(case: Case, folder: Path) -> None:
    case.check(folder)


def test_a_bad_grammar(folder: Path) -> None:
    """llama.cpp's parser says on stderr what it expected, before our line."""
    outcome = run_alone(
        "generate", folder / "tiny.gguf", "-p", "hi", "--grammar", folder / "bad.gbnf"
    )
    assert (outcome.status, outcome.stdout) == (FAILED, "")
    assert "')'" in outcome.stderr and "Traceback" not in outcome.stderr
    assert "not valid GBNF" in outcome.stderr.splitlines()[-1]


def test_no_prompt_at_a_terminal(folder: Path) -> None:
    """A newcomer who gives no prompt is told how, instead of a program that waits."""
    import pty

    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, "generate", folder / "tiny.gguf"],
            stdin=theirs, capture_output=True, text=True, env=environment(), timeout=TIMEOUT,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    check_error(Outcome(done.returncode, done.stdout, done.stderr), USAGE, "-p TEXT", "-f FILE")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("args", ["-f {}", "-p hi --mask {}", "-p hi --grammar {}"])
def test_unreadable_file(folder: Path, tmp_path: Path, args: str) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o000)
    outcome = run("generate", folder / "tiny.gguf", *args.format(secret).split())
    check_error(outcome, FAILED, "secret", "permission")


# --- what is not in the arguments ------------------------------------------------------------


@pytest.mark.skipif(not FULL_DISK.exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "args",
    ["generate demo -p hi -n 3 -t 1", "generate demo -p hi -n 3 -t 1 --json",
     "models info demo --json", "--help"],
)  # fmt: skip
def test_unwritable_output(args: str) -> None:
    with FULL_DISK.open("w") as full:
        done = subprocess.run(
            [*PROGRAM, *args.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=TIMEOUT,
        )  # fmt: skip
    check_error(Outcome(done.returncode, "", done.stderr), FAILED, "space")


@pytest.mark.parametrize(
    ("redirection", "args"),
    [("<&-", "-n 3"), ("<&-", "-n 3 -f -"), (">&-", "-p hi -n 3"), (">&-", "-p hi -n 3 --json")],
)
def test_closed_streams(folder: Path, redirection: str, args: str) -> None:
    prefix = ("sh", "-c", f'exec "$@" {redirection}', "sh")
    model = folder / "tiny.gguf"
    outcome = run_alone("generate", model, "-t", "1", *args.split(), prefix=prefix)
    check_error(outcome, ANY)


def test_prompt_that_is_no_utf8_as_an_argument(folder: Path) -> None:
    outcome = run_alone("generate", folder / "tiny.gguf", "-t", "1", "-p", b"gr\xfcn")
    check_error(outcome, USAGE, "not UTF-8 text")


def test_model_whose_name_is_no_utf8(folder: Path, tmp_path: Path) -> None:
    """A file name is bytes; whatever the system opens must load."""
    odd = os.fsencode(tmp_path) + b"/gr\xfcn.gguf"
    try:
        os.symlink(folder / "tiny.gguf", odd)
    except OSError:
        pytest.skip("this file system wants UTF-8")
    outcome = run_alone("generate", odd, "-t", "1", "-n", "3", "-p", "hi", "--json")
    assert outcome.json["n_generated"] == 3


# --- more than the machine has ---------------------------------------------------------------


def with_little_memory(*args: str | Path) -> Outcome:
    """Run where huge allocations fail, whatever this machine has."""
    done = subprocess.run(
        [*PROGRAM, *args],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(),
        timeout=TIMEOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory")
@pytest.mark.parametrize(
    "n_ctx",
    [10**9, 2**31, 2**32 + 256, 10**20],
)
def test_context_larger_than_memory(folder: Path, n_ctx: int) -> None:
    outcome = with_little_memory(
        "generate", folder / "tiny.gguf", "-t", "1", "-p", "hi", "-n", "3", "-c", str(n_ctx)
    )
    check_error(outcome, ANY, str(n_ctx))


@pytest.mark.parametrize("n_threads", [513, 99_999_999_999])
def test_more_threads_than_ggml_takes(folder: Path, n_threads: int) -> None:
    outcome = run_alone(
        "generate", folder / "tiny.gguf", "-p", "hi", "-n", "3", "-t", str(n_threads)
    )
    check_error(outcome, ANY, "threads", str(n_threads))


@pytest.mark.skipif(bool(devices.gpus()), reason="this library has a GPU")
@pytest.mark.parametrize("n_gpu_layers", [-1, 1, 99_999_999_999])
def test_gpu_layers_without_a_gpu_are_a_note(folder: Path, n_gpu_layers: int) -> None:
    args = ["generate", folder / "tiny.gguf", "-p", "hi", "-n", "3", "-t", "1", "--temp", "0"]
    outcome = run(*args, "-ngl", str(n_gpu_layers))
    assert outcome.status == 0
    assert outcome.stdout == run(*args).stdout
    notes = [line for line in outcome.stderr.splitlines() if "-ngl" in line]
    assert len(notes) == 1
    assert notes[0].startswith(
        "Warning: n_gpu_layers (-ngl) has no effect, the model runs on the CPU: "
    )


@pytest.mark.parametrize("module", ["click", "pyselfspec.util.plugins"])
def test_ctrl_c_while_modules_load(run_python: Callable[..., Any], module: str) -> None:
    code = (
        "import os, signal, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "sys.argv = ['pyselfspec', '--version']\n"
        "import runpy; runpy.run_module('pyselfspec', run_name='__main__')"
    )
    done = run_python(code)
    assert done.returncode in (-signal.SIGINT, 130), done
    assert done.stderr == ""


# --- odd, but fine ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_ctx", [1, 5])
def test_smallest_contexts_do_not_abort(folder: Path, n_ctx: int) -> None:
    """llama.cpp rounds a context up; whether 5 tokens fit into "1" is not the point here."""
    outcome = run_alone(
        "generate", folder / "tiny.gguf", "-t", "1", "--prompt-tokens", "5,6,7,8,9", "-n", "2",
        "-c", str(n_ctx),
    )  # fmt: skip
    if outcome.status:
        check_error(outcome, ANY)
    else:
        assert len(outcome.stdout.split(",")) == 2


def test_info_of_a_model_that_brings_a_bad_mask_does_not_crash(folder: Path) -> None:
    outcome = run("models", "info", folder / "bad-mask.gguf")
    if outcome.status:
        check_error(outcome, FAILED, "bad-mask.gguf")


@pytest.mark.parametrize("args", [["-p", ""], []], ids=["-p", "stdin"])
def test_empty_prompt_begins_at_the_beginning(folder: Path, args: list[str]) -> None:
    """With a token that begins every text, there is something to continue."""
    outcome = run("generate", folder / "tiny.gguf", "-t", "1", "-n", "3", "--json", *args)
    assert outcome.json["n_prompt"] == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("generate demo --num-ctx 512", "Did you mean '--ctx-size'?"),
        ("serve demo --no-mmap", "Did you mean '--load-mode'?"),
        ("bench demo --spec-type ngram-simple", "Did you mean '--draft'?"),
        ("chat demo --format json", "Did you mean '--json-schema'?"),
        ("bench demo --out runs.jsonl", "Did you mean '--results'?"),
        ("generate demo Once upon a time", "upon a time; put text of several words in quotes"),
        ("bench demo Once", "unexpected: Once"),
        ("-m demo", "-m: options go after a command, like pyselfspec chat -m MODEL"),
        ("--model demo", "--model: options go after a command"),
        ("generate demo --grammar root::=x", "--grammar takes a file"),
        ("generate demo -j @/dev/null", "/dev/null is not JSON"),
    ],
)
def test_habits_from_other_programs_lead_to_what_is_meant(args: str, words: str) -> None:
    check_error(run(*args.split()), USAGE, words)


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_a_checkpoint_leads_to_the_command_that_converts_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x08" + bytes(7) + b'{"a":{}}')
    outcome = run("generate", tmp_path / name, "hi")
    check_error(outcome, FAILED, "give the folder to pyselfspec models convert")


def test_a_device_without_room_is_named(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Writing to a full disk is an error without a file name."""

    def full(_number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    small = "-t 1 --chunk-size 64 --window 8 --chunks 1 --results".split()
    outcome = run("scan-layers", folder / "tiny.gguf", *small, tmp_path / "scan.jsonl")
    check_error(outcome, FAILED, "scan.jsonl: No space left")


def test_a_home_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.devnull)  # also root cannot make folders there
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    outcome = run_alone("demo", "--size", "40M")
    check_error(outcome, FAILED, "Not a directory; set XDG_CACHE_HOME to a folder that can be")


def test_only_paths_in_the_users_folders_get_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.elsewhere(str(paths.cache("x"))).startswith("; set XDG_CACHE_HOME to a folder")
    assert paths.elsewhere("/elsewhere/x") == ""
    assert paths.elsewhere(str(tmp_path)) == ""  # it exists, so it is a path of the user's own


def test_a_folder_that_had_to_be_made_for_them_gets_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home without any folders cannot be written: the first one is named by the system."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    if sys.platform == "linux":
        said = [paths.elsewhere(str(tmp_path / name)) for name in ("home/.cache", "home/.local")]
        assert [each.split()[2] for each in said] == ["XDG_CACHE_HOME", "XDG_DATA_HOME"]
    both = paths.elsewhere(str(tmp_path / "home"))
    assert both.startswith("; set XDG_DATA_HOME and XDG_CACHE_HOME to a folder that can")
    (tmp_path / "home").mkdir()
    assert paths.elsewhere(str(tmp_path / "home")) == ""


def test_generate_does_without_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only measurements for the next time are lost."""
    args = ("generate", folder / "tiny.gguf", "-p", "hi", "-n", "8", "-t", "1", "--temp", "0")
    wanted = run_alone(*args)
    monkeypatch.setenv("HOME", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    monkeypatch.setenv("XDG_DATA_HOME", os.devnull)
    outcome = run_alone(*args)
    assert (outcome.status, outcome.stdout) == (0, wanted.stdout), outcome.stderr


def test_passwords_of_databases_stay_secret(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    small = "-t 1 --chunk-size 64 --window 8 --chunks 1 --trials 1 --strategy optuna".split()
    out = tmp_path / "search.jsonl"
    storage = "nosuchdb://me:sesame@localhost/db"
    args = ["layers", "search", str(folder / "tiny.gguf"), *small, "--results", str(out)]
    args += ["--storage", storage]
    monkeypatch.setattr(sys, "argv", ["pyselfspec", *args])
    outcome = run(*args)
    check_error(outcome, FAILED, "nosuchdb://me:***@localhost/db")
    assert "sesame" not in outcome.stderr
    assert out.exists() and "--storage" in out.read_text() and "sesame" not in out.read_text()
