"""--lora and --lora-scaled of the command line."""

from __future__ import annotations

from pathlib import Path

from command_line import check_error, run
from lora_adapters import write_adapter

from pyselfspec import GREEDY, Completion, Model

PROMPT = "Once upon a time there was a king"


def test_adapters_of_the_command_line(demo: Model, demo_path: Path, tmp_path: Path) -> None:
    file = write_adapter(tmp_path / "a.gguf", demo, 0, size=0.1)
    texts = {}
    for scale in (0.0, 1.0, 2.5):
        with Model(demo_path, lora=[(file, scale)]) as model, model.context() as context:
            made = Completion(context, PROMPT, None, n_predict=16, sampling=GREEDY)
            texts[scale] = "".join(made)
    assert len(set(texts.values())) == 3
    common = ("generate", demo_path, "-p", PROMPT, "-n", "16", "--temp", "0")
    for options, scale in (
        ((), 0.0),
        (("--lora", file), 1.0),
        (("--lora-scaled", f"{file}:2.5"), 2.5),
    ):
        assert run(*common, *options).stdout.rstrip("\n") == texts[scale].rstrip("\n")
    check_error(run(*common, "--lora-scaled", str(file)), 2, "FILE:SCALE")
    check_error(run(*common, "--lora-scaled", f"{tmp_path / 'b.gguf'}:1"), 2, "no file")
    check_error(run(*common, "--lora", demo_path), 1, "no LoRA adapter")
