"""Converting checkpoints. Programs that stand for the converter need no PyTorch; the real one
converts a tiny checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FAILED, ONE_THREAD, check_error, run
from gguf import GGUFReader
from written_files import metadata, small_files

from pyselfspec import Model
from pyselfspec.convert import huggingface as convert
from pyselfspec.errors import ModelFileError, SelfSpecError, UnsupportedError
from pyselfspec.gguf import file as gguf_file

INTERRUPTED = 130
Stand = Callable[[str], Path]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Puts a program in the converter's place; returns an empty folder that passes for one with a
    checkpoint. In the code, ``out`` is the file to write."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    program = tmp_path / "program.py"
    monkeypatch.setattr(convert, "CONVERTER", program)
    monkeypatch.setattr(convert, "NEEDED", ())

    def write(code: str) -> Path:
        program.write_text(
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "out = Path(sys.argv[sys.argv.index('--outfile') + 1])\n" + code
        )
        return folder

    return write


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """In a folder of its own, so that one can see what is left."""
    folder = tmp_path / "target"
    folder.mkdir()
    return folder / "model.gguf"


# --- the program --------------------------------------------------------------------------------


def test_the_reason_of_a_failure_is_said_in_one_line(stand_in: Stand, target: Path) -> None:
    folder = stand_in("out.write_text('half')\nraise ValueError('bad\\nluck')")
    with pytest.raises(ModelFileError, match=r"checkpoint.*converter.*: bad luck$"):
        convert.convert(folder, target, "f16")
    assert not list(target.parent.iterdir())


def test_a_program_that_dies_without_a_word(stand_in: Stand, target: Path) -> None:
    folder = stand_in("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ModelFileError, match="SIGKILL ended it"):
        convert.convert(folder, target, "f16")


def test_a_result_that_is_no_model_is_not_kept(stand_in: Stand, target: Path) -> None:
    target.write_text("old")
    folder = stand_in("out.write_bytes(b'GGUF')")
    with pytest.raises(ModelFileError, match="checkpoint is not complete"):
        convert.convert(folder, target, "f16")
    assert target.read_text() == "old"


def test_full_disk(stand_in: Stand, target: Path) -> None:
    folder = stand_in("import numpy\nwith out.open('wb') as f: numpy.zeros(99999).tofile(f)")
    with small_files(1000), pytest.raises(OSError, match="is the disk full") as error:
        convert.convert(folder, target, "q8_0")
    assert error.value.filename == str(target)
    assert not list(target.parent.iterdir())


def test_missing_packages_are_named(stand_in: Stand, target: Path, monkeypatch: Any) -> None:
    folder = stand_in("")
    monkeypatch.setattr(convert, "NEEDED", ("json", "no_such_torch", "no_such_transformers"))
    outcome = run("models", "convert", folder, target)
    words = ("no_such_torch, no_such_transformers", "pip install 'pyselfspec[convert]'")
    check_error(outcome, FAILED, *words)


def test_interrupt(tmp_path: Path, target: Path, run_python: Any) -> None:
    """The stand-in presses Ctrl-C in the middle of its work, and would then go on for ever."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys\n"
        "open(sys.argv[sys.argv.index('--outfile') + 1], 'w').write('half')\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "signal.pause()\n"
    )
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from pyselfspec.convert import huggingface as convert\n"
        "from pyselfspec.cli import main\n"
        "convert.CONVERTER, convert.NEEDED = Path(sys.argv[1]), ()\n"
        "main(['models', 'convert', *sys.argv[2:]])\n"
    )
    done = run_python(code, program, checkpoint, target, "--type", "q8_0")
    assert (done.returncode, done.stdout) == (INTERRUPTED, "")
    assert "Traceback" not in done.stderr
    assert not list(target.parent.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(("name", "words"), [("", "no config.json"), ("missing", "no folder")])
def test_not_a_checkpoint(name: str, words: str, tmp_path: Path, target: Path) -> None:
    check_error(run("models", "convert", tmp_path / name, target), FAILED, words, "config.json")


def test_architectures_are_those_of_the_converter() -> None:
    known = convert.architectures()
    assert {"LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM"} <= set(known)
    outcome = run("models", "convert", "--architectures")
    assert (outcome.status, outcome.stdout.split()) == (0, known)


def test_the_converter_brings_its_licences() -> None:
    for folder in (convert.CONVERTER.parent, convert.CONVERTER.parent / "gguf-py"):
        assert "MIT License" in (folder / "LICENSE").read_text(encoding="utf-8")


# --- the real one -------------------------------------------------------------------------------

PROMPT = "def test_"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.environ.get("CI"):
        for name in convert.NEEDED:
            pytest.importorskip(name)
    import tiny_checkpoint

    model = tiny_checkpoint.model("llama-grouped-tied", seed=0)
    folder = tmp_path_factory.mktemp("hf") / "tiny-model"
    return tiny_checkpoint.save("llama-grouped-tied", model, folder)


@pytest.fixture
def changed(checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the checkpoint with another config, or without a file."""

    def change(without: str | None = None, **config: Any) -> Path:
        folder = shutil.copytree(checkpoint, tmp_path / "changed")
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
        if without is not None:
            (folder / without).unlink()
        return folder

    return change


@pytest.mark.nightly
@pytest.mark.slow
def test_types_differ_in_their_weights_only(checkpoint: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.gguf" for name in ("f32", "q8_0", "q4_0")}
    logits = {}
    for name, file in files.items():
        convert.convert(checkpoint, file, name, n_threads=1)
        assert gguf_file.check(file).file_type == name.upper()
        with Model(file) as model, model.context(n_ctx=256, n_threads=1) as context:
            tokens = model.tokenize(PROMPT)
            assert model.detokenize(tokens) == f" {PROMPT}"
            logits[name] = context.decode(tokens).logits[-1]
        assert np.corrcoef(logits[name], logits["f32"])[0, 1] > 0.9
    assert metadata(files["f32"]) == metadata(files["q4_0"]) == metadata(files["q8_0"])
    assert metadata(files["f32"])["general.name"] == "Tiny Model"
    shapes = [{t.name: tuple(t.shape) for t in GGUFReader(f).tensors} for f in files.values()]
    assert shapes[1:] == shapes[:-1]
    assert sorted(tmp_path.iterdir()) == sorted(files.values())


@pytest.mark.nightly
@pytest.mark.slow
def test_command(checkpoint: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from inside the folder, whose name still becomes the model's."""
    monkeypatch.chdir(checkpoint)
    outcome = run("models", "convert", ".", target, "--type", "q8_0", "--json", *ONE_THREAD)
    assert outcome.json["architecture"] == "llama"
    assert outcome.json["file_type"] == "Q8_0"
    assert metadata(target)["general.name"] == "Tiny Model"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"architectures": ["FooForCausalLM"]}, UnsupportedError, "FooForCausalLM.*architectures"),
        ({"architectures": []}, ModelFileError, "architecture"),
        ({"num_hidden_layers": 7}, ModelFileError, "not complete: .*block_count is 7"),
        ({"without": "model.safetensors"}, ModelFileError, "not complete.*no weights"),
        ({"without": "tokenizer.model"}, ModelFileError, "tokenizer"),
    ],
    ids=str,
)
def test_checkpoint_that_is_no_use(
    change: Any, error: type[SelfSpecError], words: str, changed: Any, target: Path
) -> None:
    folder = changed(**change)
    with pytest.raises(error, match=words) as caught:
        convert.convert(folder, target, "q8_0", n_threads=1)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
    assert not list(target.parent.iterdir())


@pytest.mark.nightly
@pytest.mark.slow
def test_type_that_llama_cpp_cannot_write(checkpoint: Path, target: Path) -> None:
    with pytest.raises(ModelFileError, match=f"^{checkpoint}: .*cannot quantize.* file type"):
        convert.convert(checkpoint, target, "nvfp4")
    assert not list(target.parent.iterdir())
