"""The users' benchmark without a model: figures from runs, tables, formats, the report, prompts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import needs
import pytest
from bench_results import (
    DRAFTED,
    EVERY,
    NAMES,
    RESULTS,
    SETUP,
    VARIANTS,
    from_csv,
    from_json_lines,
    run,
)

from pyselfspec.bench import formats, prompts, report, tables
from pyselfspec.bench.figures import ALL, Spread, complete, is_busy, rows
from pyselfspec.bench.file import BenchFile
from pyselfspec.bench.measuring import TokenizedPrompt, plan
from pyselfspec.bench.report import html
from pyselfspec.bench.types import PLAIN, UPSTREAM, Results, Setup, VariantName
from pyselfspec.bench.variants import Variant
from pyselfspec.errors import ArgumentError, SelfSpecError
from pyselfspec.util.records import encode


def to_dict(record: Any) -> Any:
    """Return a record as parsed JSON."""
    return json.loads(encode(record))


def row(found: Results, variant: str, task: str = ALL) -> Any:
    [one] = [row for row in rows(found) if (row.variant, row.task) == (variant, task)]
    return one


def test_speed_is_the_ratio_of_the_medians_of_rounds() -> None:
    us = {PLAIN: (20_000, 40_000, 25_000), "auto": (10_000, 50_000, 8_000)}
    runs = [
        run(variant, i=i, us=each)
        for variant, all_us in us.items()
        for i, each in enumerate(all_us)
    ]
    found = Results(replace(SETUP, variants=VARIANTS[:2]), tuple(runs))
    assert row(found, PLAIN, "chat").tokens_per_second == Spread(800.0, 500.0, 1000.0)
    assert row(found, "auto", "chat").tokens_per_second == Spread(2000.0, 400.0, 2500.0)
    assert row(found, "auto", "chat").speed == 2.5
    assert row(found, PLAIN, "chat").speed is None
    assert is_busy(found)


def test_prompts_of_a_round_count_by_their_tokens() -> None:
    found = row(Results(SETUP, (*EVERY, run("auto", "q", 0, us=70_000))[-1:] + EVERY[:-1]), PLAIN)
    assert found.tokens_per_second.median == 40 / 0.040
    long = tuple(replace(r, n_tokens=80, us=20_000) if r.prompt == "q" else r for r in EVERY)
    assert row(Results(SETUP, long), PLAIN).tokens_per_second.median == 100 / 0.040


def test_counts_become_rates() -> None:
    found = row(RESULTS, "auto")
    assert found.at == (1.0, 0.5) and found.acceptance == 0.75
    assert found.by_source == {"ngram": (96, 72)}
    assert found.tokens_per_pass == 20 / 8
    assert found.prompt_per_second == Spread(2000.0, 2000.0, 2000.0)  # 10 tokens in 5 ms
    assert (found.n_same, found.n_answers, found.n_rounds) == (6, 6, 3)
    assert row(RESULTS, PLAIN).acceptance is None


def test_another_text_than_that_of_plain_decoding_is_told() -> None:
    runs = tuple(replace(r, text_sha256="x") if r.key == (1, "q", "auto") else r for r in EVERY)
    found = Results(SETUP, runs)
    assert (row(found, "auto").n_same, row(found, "ngram").n_same) == (5, 6)
    assert any("texts differ" in note for note in tables.notes(found))
    assert not any("texts differ" in note for note in tables.notes(RESULTS))


def test_llama_cpps_kernels_are_compared_by_speed_only() -> None:
    names = [VariantName(UPSTREAM, ""), *VARIANTS]
    runs = tuple(run(UPSTREAM, p, i, us=2_000, text_sha256="x") for i in range(3) for p in "pq")
    found = Results(replace(SETUP, variants=tuple(names)), (*runs, *EVERY))
    assert row(found, UPSTREAM).speed == 10 and row(found, UPSTREAM).n_same is None
    assert not any("texts differ" in note for note in tables.notes(found))
    assert "with its own kernels" in dict(tables.provenance(found.setup))[UPSTREAM]
    assert [cells[-1] for cells in tables.tables(found)[0].rows[:2]] == ["-", "-"]


@needs.jinja2
def test_the_report_names_the_fastest_drafter_and_not_llama_cpp() -> None:
    names = [VariantName(UPSTREAM, ""), *VARIANTS]
    runs = tuple(run(UPSTREAM, p, i, us=1, text_sha256="x") for i in range(3) for p in "pq")
    assert "with auto" in html(Results(replace(SETUP, variants=tuple(names)), (*runs, *EVERY)))


def test_a_round_that_was_cut_off_does_not_count() -> None:
    assert complete(EVERY[:-1], NAMES) == list(EVERY[:12])
    first = complete(EVERY[:4], NAMES)  # of the first round, one prompt whole
    assert first == list(EVERY[:3])
    assert complete(EVERY[:2], NAMES) == []
    nothing = Results(SETUP, EVERY[:2])
    assert rows(nothing) == [] and "nothing to compare" in tables.notes(nothing)[0]


def test_variants_take_turns_and_what_is_done_is_left_out() -> None:
    variants = [Variant(name, "") for name in "ab"]
    questions = [TokenizedPrompt(name, "t", (1,)) for name in "xy"]
    todo = plan(questions, variants, 2)
    told = ["".join((str(i), q.name, variant.name)) for i, q, variant in todo]
    assert told == "0xa 0xb 0yb 0ya 1xa 1xb 1yb 1ya".split()
    rest = plan(questions, variants, 2, {(0, "x", "a"), (1, "y", "a")})
    assert [job for job in todo if job not in rest] == [todo[0], todo[-1]]


#
# formats
#


def test_json_and_json_lines_have_the_same_runs_and_figures() -> None:
    data = json.loads(formats.to_json(RESULTS))
    again = from_json_lines(formats.json_lines(RESULTS))
    assert again == RESULTS
    assert data["setup"] == to_dict(SETUP) and data["setup"]["format"] == Setup.FORMAT
    assert data["runs"] == [to_dict(each) for each in EVERY]
    assert [each["speed"] for each in data["rows"]] == [each.speed for each in rows(again)]


def test_csv_has_every_run_with_the_setup() -> None:
    found = from_csv(formats.to_csv(RESULTS))
    assert len(found) == len(EVERY)
    for line, each in zip(found, EVERY, strict=True):
        expected = to_dict(each)
        assert {name: line[name] for name in expected if name != "steps"} == {
            name: value for name, value in expected.items() if name != "steps"
        }
        setup = {n.removeprefix("setup."): v for n, v in line.items() if n.startswith("setup.")}
        assert setup == to_dict(SETUP)


def test_markdown_shows_the_figures_and_the_setup() -> None:
    text = formats.markdown(RESULTS)
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    [auto] = [c for c in cells if c[:2] == ["auto", ALL]]
    assert auto[3:] == ["2000", "2000 to 2000", "2.00", "2.50", "75%", "100% 50%", "6 of 6"]
    for value in (SETUP.machine, SETUP.build, SETUP.fingerprint, SETUP.command, "native; CPU"):
        assert value in text
    assert "| 256 | 1 | 1.00 |" in text  # costs by width


def test_a_table_has_as_many_cells_as_columns() -> None:
    with pytest.raises(ValueError, match="cells"):
        tables.Table("x", ("a", "b"), "<<", [["1"]])
    assert tables.Table("x", ("a",), ">", [["b|c"]]).markdown().endswith("| b\\|c |")


#
# the report
#

ADDRESSES = re.compile(r"""(?:src|href|action|url\(|@import|srcset|data)\s*[=(]\s*["']?\s*[\w/]""")


@needs.jinja2
def page(results: Results) -> tuple[str, ElementTree.Element]:
    text = html(results)
    doctype, rest = text.split("\n", 1)
    assert doctype == "<!DOCTYPE html>"
    return text, ElementTree.fromstring(rest)


@needs.jinja2
@pytest.mark.parametrize(
    "results",
    [RESULTS, Results(SETUP, EVERY), Results(SETUP), Results(SETUP, EVERY[:1])],
    ids=["all", "without widths", "empty", "cut off"],
)
def test_the_report_is_well_formed_and_needs_no_other_host(results: Results) -> None:
    text, tree = page(results)
    assert not ADDRESSES.search(text)
    assert not {element.tag for element in tree.iter()} & {"script", "link", "img", "iframe"}
    assert "prefers-color-scheme: dark" in text
    for name, value in tables.provenance(SETUP):
        assert any((e.text or "") == name for e in tree.iter("dt"))
        assert any("".join(e.itertext()) == value for e in tree.iter("dd"))


@needs.jinja2
def test_the_report_shows_every_number_and_quotes_what_models_write() -> None:
    text, tree = page(RESULTS)
    assert "<b>&amp;" not in text and "&lt;b&gt;" in text
    cells = {"".join(cell.itertext()) for cell in tree.iter("td")}
    assert {cell for table in tables.tables(RESULTS) for row in table.rows for cell in row} <= cells
    titles = {element.get("title") for element in tree.iter("i")}
    assert any("drafted: 3 by ngram; 2 accepted" in title for title in titles if title)


@needs.jinja2
def test_differences_within_the_spread_are_called_noise() -> None:
    """Rounds of plain decoding take 16 to 24 ms."""
    setup = replace(SETUP, variants=(VARIANTS[0], VARIANTS[2]))
    plain = [run(i=i, us=us) for i, us in enumerate((16_000, 20_000, 24_000))]
    for variant_us, noise in (((15_000, 18_000, 19_000), True), ((10_000, 12_000, 15_000), False)):
        drafted = [run("ngram", i=i, us=us) for i, us in enumerate(variant_us)]
        results = Results(setup, (*plain, *drafted))
        found = {row.variant: row.within_noise for row in rows(results)}
        assert found == {PLAIN: False, "ngram": noise}
        text, _ = page(results)
        assert (", within noise" in text) == noise
        assert ("\u22481.11\u00d7" in text) == noise
    one_round = Results(setup, (plain[0], run("ngram", us=15_900)))
    assert not any(row.within_noise for row in rows(one_round))


@needs.jinja2
def test_what_scrolls_in_the_report_can_be_focused_and_has_a_name() -> None:
    _, tree = page(RESULTS)
    parents = {child: parent for parent in tree.iter() for child in parent}
    boxes = [parents[each] for each in tree.iter("table")]
    assert boxes and all(box.get("class") == "scroll" for box in boxes)
    for box in (*boxes, *(each for each in tree.iter("div") if each.get("class") == "text")):
        assert box.get("tabindex") == "0" and box.get("role") and box.get("aria-label")


def test_bars_are_as_long_as_speeds() -> None:
    found = report.bars(RESULTS)
    assert found.keys() == {"chat", "code", "all tasks"}
    for group in found.values():
        assert [(bar.row.variant, bar.share) for bar in group] == list(
            zip(NAMES, (0.5, 1.0, 1.0), strict=True)
        )
        assert len({bar.colour for bar in group}) == 3


def test_the_passes_of_the_example_add_up() -> None:
    best = row(RESULTS, "auto")
    found = report.example(RESULTS, best)
    assert found is not None and found.n_most == 4
    plain, *drafted = found.lanes
    assert plain.share == 1 and len(plain.columns) == 20
    for lane in drafted:
        assert len(lane.columns) == 8 and lane.share == 8 * 1210 / 20_000
        assert all(column.colours == ("own", "one", "one") for column in lane.columns)
    for lane in found.lanes:
        assert sum(column.share for column in lane.columns) == pytest.approx(1)
    assert sum(n for _, _, n in found.shares) == 24
    assert "".join(text for text, _ in found.pieces) == "".join(DRAFTED.texts) * 8


#
# files and prompts
#


@needs.filelock
def test_a_file_is_taken_up_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert RESULTS.widths is not None
    with BenchFile(path, SETUP) as file:
        file.add(EVERY[0])
        file.add(RESULTS.widths)
    with path.open("a") as cut_off:
        cut_off.write('{"prompt": "p", "ta')
    with BenchFile(path, replace(SETUP, date="later", command="other")) as file:
        assert file.found.runs == EVERY[:1] and file.found.widths == RESULTS.widths
        file.add(EVERY[1])
    assert from_json_lines(path.read_text(encoding="utf-8")).runs == EVERY[:2]


@needs.filelock
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_predict": 21}, "another number of tokens"),
        ({"fingerprint": "g"}, "another model"),
        ({"variants": VARIANTS[:2]}, "another choice of variants"),
        ({"prompts_sha256": "1"}, "another set of prompts"),
        ({"build": "c"}, "another library build"),
    ],
)
def test_a_file_of_another_setup_is_refused(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    with BenchFile(path, SETUP) as file:
        file.add(EVERY[0])
    before = path.read_bytes()
    with pytest.raises(SelfSpecError, match=f"{says}.*another file"):
        BenchFile(path, replace(SETUP, **changes))
    assert path.read_bytes() == before


@needs.filelock
def test_a_line_that_is_no_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    BenchFile(path, SETUP).close()
    with path.open("a") as file:
        file.write('{"prompt": "p"}\n')
    with pytest.raises(SelfSpecError, match="line 2 is no result"):
        BenchFile(path, SETUP)


def test_prompts_in_every_way_to_write_them() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines = ["Hello", {"prompt": "Write", "task": "story", "id": "s"}, {"messages": messages}]
    found = prompts.read("\n\n".join(map(json.dumps, lines)), "x.jsonl")
    assert [(p.name, p.task, p.text) for p in found] == [
        ("1", "own", "Hello"),
        ("s", "story", "Write"),
        ("5", "own", "Hi"),
    ]
    assert [m.role for m in found[2].messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "x.jsonl has no prompts"),
        ("\n \n", "x.jsonl has no prompts"),
        ('"a"\n{', "x.jsonl, line 2: not JSON"),
        ('"a"\n\n7', "x.jsonl, line 3 is no prompt"),
        ("{}", "line 1 is no prompt"),
        ('{"prompt": ""}', "line 1 is no prompt: the prompt is empty"),
        ('{"prompt": 1}', '"prompt" must be a string'),
        ('{"prompt": "a", "messages": []}', "line 1 is no prompt"),
        ('{"messages": [{"role": "user"}]}', "line 1 is no prompt"),
        (
            '{"messages": [{"role": "assistant", "content": "a"}]}',
            "last message must have the role user",
        ),
        ('{"prompt": "a", "id": "1"}\n{"prompt": "b", "id": "1"}', "line 2: there are two"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(says)):
        prompts.read(text, "x.jsonl")


def test_prompts_that_come_with_the_package() -> None:
    found = prompts.bundled()
    assert [p.task for p in found] == ["chat", "code-edit", "summary", "story"]
    assert all(20 < len(p.text) < 3000 for p in found)
    assert prompts.digest(found) != prompts.digest(found[:3])
