"""Broken model files, some of each kind: one short line, no signal, no hang."""

from __future__ import annotations

from pathlib import Path

import tiny_assistant
import tiny_dflash
import tiny_head

from pyselfspec.util.paths import DEMO
from tools import fuzz_gguf


def test_broken_files_end_in_one_line(tmp_path: Path) -> None:
    for model in (DEMO, *fuzz_gguf.tiny_models(tmp_path)):
        faults, ends = fuzz_gguf.fuzz(model, 3, 20261121, tmp_path)
        assert faults == [] and ends


def test_broken_heads_end_in_one_line(tmp_path: Path) -> None:
    weights, of_head = tiny_assistant.random_weights()
    model = tiny_assistant.write_model(tmp_path / "model.gguf", weights)
    heads = [
        tiny_assistant.write(tmp_path / "assistant.gguf", of_head),
        tiny_head.write(tmp_path / "eagle.gguf", tiny_head.random_weights()),
    ]
    for kind in tiny_dflash.KINDS:
        of_kind = tiny_dflash.random_weights(kind)
        heads.append(tiny_dflash.write(tmp_path / f"{kind.name}.gguf", of_kind, kind))
    for head in heads:
        faults, ends = fuzz_gguf.fuzz(head, 5, 20261123, tmp_path, target=model)
        assert faults == [] and any("generate" in end for end in ends)


def test_a_signal_is_a_fault(tmp_path: Path, monkeypatch) -> None:
    """Whatever ends the process of a file is told, and the next file is tried all the same."""
    monkeypatch.setattr(
        fuzz_gguf, "WORKER", fuzz_gguf.WORKER.replace("json.loads(line)", "[os.abort()]")
    )
    faults, ends = fuzz_gguf.fuzz(fuzz_gguf.tiny_models(tmp_path)[0], 2, 1, tmp_path)
    assert ends == {"ended -6": 2} and len(faults) == 2
