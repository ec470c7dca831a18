"""Converts a Hugging Face checkpoint to a GGUF model with llama.cpp's converter.

The converter is convert_hf_to_gguf.py of the pinned source, unchanged, with its modules and its
gguf-py. The build copies them to the library's folder.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from contextlib import closing
from pathlib import Path

from ..errors import ModelFileError, SelfSpecError, UnsupportedError
from ..gguf import file as gguf_file
from ..util import build
from ..util.extras import install_command
from ..util.files import replacing
from ..util.progress import Progress
from . import subprogram
from .quantize import Steps, require_type, require_written, run_quantizer

CONVERTER = build.LIB_DIR.parent / "converter" / "convert_hf_to_gguf.py"
NEEDED = ("torch", "transformers", "sentencepiece")
DIRECT = frozenset({"f32", "f16", "bf16"})  # the converter writes them; others are quantized
_PERCENT = re.compile(r"Writing: +(\d+)%\|")
_UNSUPPORTED = re.compile(r"Model (\S+) is not supported")


def architectures() -> list[str]:
    """Return the architectures that the converter supports, by their names in config.json."""
    table = (CONVERTER.parent / "conversion" / "__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(table).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TEXT_MODEL_MAP":
            assert node.value is not None
            return sorted(ast.literal_eval(node.value))
    raise SelfSpecError(f"{CONVERTER} does not list the architectures that it knows")


def convert(
    checkpoint: Path, target: Path, type_name: str, *, n_threads: int | None = None
) -> None:
    """Write the model in a folder with config.json, weights and tokenizer to a GGUF file.

    type_name: see quantize.TYPES. Types other than F32, F16 and BF16 go through a temporary
    file beside the target with the checkpoint's 16-bit type, F16 if it has none.
    n_threads: for quantizing, default: the cores this process may use.

    Raises SelfSpecError when PyTorch, transformers or sentencepiece is missing, UnsupportedError
    for an architecture the converter does not know, ModelFileError for anything else that is wrong
    with the checkpoint, ArgumentError and OSError for the target.
    """
    for _progress in convert_steps(checkpoint, target, type_name, n_threads=n_threads):
        pass


def convert_steps(
    checkpoint: Path, target: Path, type_name: str, *, n_threads: int | None = None
) -> Steps:
    """Convert like ``convert``; yield the progress. Closed early, it leaves no target."""
    type_name = require_type(type_name)
    _require_checkpoint(checkpoint)
    _require_packages()
    with replacing(target) as unfinished:
        if type_name in DIRECT:
            yield from _run(checkpoint, unfinished, type_name, target)
        else:
            floats = unfinished.with_name("floats.gguf")
            yield from _run(checkpoint, floats, "auto", target)
            yield from run_quantizer(
                floats, unfinished, type_name, n_threads, origin=checkpoint, target=target
            )


def _require_checkpoint(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "is no folder"
        get = f" (hf download {folder} --local-dir FOLDER)" if _is_repository(folder) else ""
        raise ModelFileError(
            f"{folder} {what}: give the folder of a Hugging Face checkpoint, "
            f"with config.json, weights and tokenizer{get}"
        )


def _is_repository(path: Path) -> bool:
    """Whether the path looks like a name on the Hugging Face Hub, OWNER/NAME."""
    return len(path.parts) == 2 and not path.is_absolute() and not path.parent.exists()


def _require_packages() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SelfSpecError(f"converting needs {', '.join(missing)}: {install_command('convert')}")


def _run(checkpoint: Path, written: Path, outtype: str, target: Path) -> Steps:
    """Run the converter. `target` is where the user expects the result, for messages."""
    # The name of the folder becomes the name of the model, so it must not be ".".
    options = ("--outtype", outtype, "--outfile", written)
    with closing(subprogram.run(CONVERTER, *options, checkpoint.resolve())) as lines:
        try:
            for line in lines:
                if match := _PERCENT.match(line):
                    yield Progress("converting", int(match[1]), 100)
        except subprogram.Failed as failure:
            require_written(failure.reason, target)
            raise _explain(checkpoint, failure.reason) from None
    # The converter succeeds, too, with a checkpoint whose weights are not there.
    try:
        gguf_file.check(written)
    except ModelFileError as error:
        reason = str(error).replace(str(written), "the result")
        raise ModelFileError(f"{checkpoint} is not complete: {reason}") from None


def _explain(checkpoint: Path, reason: str) -> SelfSpecError:
    if unsupported := _UNSUPPORTED.search(reason):
        return UnsupportedError(
            f"{checkpoint}: llama.cpp's converter does not know {unsupported[1]}; "
            f"pyselfspec models convert --architectures lists the {len(architectures())} it knows"
        )
    return ModelFileError(f"{checkpoint}: llama.cpp's converter cannot read this: {reason}")
