"""The table of what works with every architecture, see tools/arch_table.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixture_types import TinyPath

from pyselfspec import Model
from tools import arch_rows, arch_table
from tools.arch_rows import Row


@pytest.mark.archs
def test_the_table_is_what_is_measured(toy_models: Path, archs_folder: Path) -> None:
    rows = arch_table.measured(toy_models)
    if toy_models != archs_folder:  # the lines of the others are taken as they are
        anew = {row.model: row for row in rows}
        rows = [anew.pop(row.model, row) for row in arch_table.kept_rows()]
        assert not anew, "models that the table does not have"
    changed = arch_table.difference(rows)
    assert not changed, "\n" + "".join(changed)


def test_the_table_contradicts_no_promise() -> None:
    rows = arch_table.kept_rows()
    assert len(rows) > 100 and rows == sorted(rows, key=lambda row: f"{row.model}.gguf")
    for row in rows:
        assert not row.faults, row.faults


def test_a_change_is_shown_by_the_lines_that_differ() -> None:
    rows = arch_table.kept_rows()
    assert arch_table.difference(rows) == []
    known = next(i for i, row in enumerate(rows) if row.model == "llama-dense")
    rows[known] = replace(rows[known], exact_q8_0="1")
    *_, before, after = arch_table.difference(rows)
    assert before.startswith("-llama-dense\t") and after.startswith("+llama-dense\t")
    assert arch_table.difference(rows[1:])[3].startswith(f"-{rows[0].model}\t")


def test_what_is_measured_of_a_model(tiny_path: TinyPath) -> None:
    path = tiny_path(qtype="Q8_0")
    row = arch_table.measure_in_own_process(path)
    with Model(path) as model:
        blocks = ",".join(map(str, range(model.n_layer)))
    assert (row.memory, row.skip_attn, row.skip_ffn) == ("attention", blocks, blocks)
    assert (row.ngram, row.early_exit, row.mask, row.rollback) == ("same",) * 4
    assert not row.faults


def test_a_process_that_ends_is_a_line_of_the_table(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    row = arch_table.measure_in_own_process(broken)
    assert (row.model, row.memory) == ("broken", arch_rows.CRASHED)
    assert row.faults == [arch_rows.CRASHED]


def test_what_contradicts_the_library_is_a_fault() -> None:
    row = Row("a", memory="attention", promised="32", exact_f16="32", exact_q8_0="refused")
    assert not row.faults
    assert not replace(row, exact_f16="16").faults  # promised is 16, or less
    [fault] = replace(row, exact_f16="16!").faults
    assert fault.startswith("exact_f16: ") and "up to 16 rows" in fault
    assert replace(row, mask=arch_rows.OTHER).faults == ["mask gives another text"]


@pytest.mark.parametrize(("promised", "found"), [(0, "4"), (4, "4"), (5, "4!")])
def test_the_widths_that_are_found_are_those_of_the_logits(
    promised: int, found: str, tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that change from width 5 on are the same up to 4."""
    true = arch_rows.logits_at
    monkeypatch.setattr(arch_rows, "promised_by", lambda *_: promised)
    monkeypatch.setattr(
        arch_rows,
        "logits_at",
        lambda model, way, width: true(model, way, width) + (width >= 5),
    )
    with Model(tiny_path()) as model:
        assert arch_rows.exact_up_to(model, arch_rows.Attention()) == found


def test_the_page_for_readers_is_current() -> None:
    page = arch_table.PAGE.read_text(encoding="utf-8")
    assert page == arch_table.with_summary(page, arch_table.kept_rows()), (
        "run python tools/arch_table.py docs"
    )
