"""Benches beside other programs: what is read out of these, and what the tables derive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from tools.bench import peers, perplexity, plain_peers, transformers_exit

REPORT = """
decoded   96 tokens in    2.000 seconds, speed:   48.000 t/s

n_draft   = 4
n_predict = 96
n_drafted = 80
n_accept  = 60
accept    = 75.000%
"""


def test_what_programs_report() -> None:
    program = [sys.executable, "-c", f"import sys; print({REPORT!r}, file=sys.stderr)"]
    outcome = peers.speculative(program, repeats=2)
    assert outcome.tokens_per_second == [48.0, 48.0]
    assert (outcome.n_drafted, outcome.n_accepted) == (160, 120)
    assert outcome.peak_kb > 0


@pytest.mark.parametrize("code", ["raise SystemExit('no model')", "print('hello')"])
def test_a_program_that_fails(code: str) -> None:
    with pytest.raises(click.ClickException, match=r"no model|hello"):
        peers.speculative([sys.executable, "-c", code], repeats=1)


def test_rows_are_over_plain_decoding() -> None:
    plain = {"tokens_per_second": [38.0, 40.0, 42.0], "n_drafted": 0, "n_accepted": 0}
    fast = {"tokens_per_second": [48.0], "n_drafted": 80, "n_accepted": 60}
    record = {
        "model": "m",
        "peers": {"llama-bench": plain | {"peak_kb": 1000}, "other": fast | {"peak_kb": 1250}},
    }
    assert peers.cells(record) == [
        ["m", "llama-bench", "40.0", "1.00", "0.95 to 1.05", "-", "+0.0%"],
        ["m", "other", "48.0", "1.20", "1.20 to 1.20", "0.75", "+25.0%"],
    ]


def test_perplexities_side_by_side(demo_path: Path, tmp_path: Path) -> None:
    program = tmp_path / "llama-perplexity"
    program.write_text(
        '#!/bin/sh\necho "[1]9.0,\n0.01 I Final estimate: PPL = 89.5974 +/- 15.4597"\n'
    )
    program.chmod(0o755)
    assert perplexity.their_perplexity(tmp_path, demo_path, 1, 64, 2) == [89.5974, 15.4597]
    ours = perplexity.our_perplexity(demo_path, 1, 64, 2)
    assert all(value > 0 for value in ours) and ours != perplexity.our_perplexity(
        demo_path, 1, 64, 1
    )
    [cells] = perplexity.cells(
        {"model": "m", "n_chunks": 2, "n_ctx": 64, "theirs": [1.5, 0.25], "ours": ours}
    )
    assert cells[:3] == ["m", "2 of 64", "1.5000 ± 0.2500"]
    program.write_text("#!/bin/sh\necho no figure\n")
    with pytest.raises(click.ClickException, match="no figure"):
        perplexity.their_perplexity(tmp_path, demo_path, 1, 64, 2)


def test_rows_beside_transformers() -> None:
    record = {
        "model": "m",
        "transformers_plain_us": [2e6, 1e6, 3e6],
        "transformers_exit_us": [1e6],
        "pyselfspec_plain_us": [4e5],
        "pyselfspec_exit_us": [5e5],
        "n_tokens": {
            f"{s}_{kind}": 100 for s in transformers_exit.SIDES for kind in ("plain", "exit")
        },
        "transformers_same_text": False,
        "pyselfspec_same_text": True,
    }
    assert transformers_exit.cells(record) == [
        ["m", "transformers", "50.0", "100.0", "2.00", "no"],
        ["m", "pyselfspec", "250.0", "200.0", "0.80", "yes"],
    ]


def test_plain_decoding_over_stock_and_memory() -> None:
    times = {
        "token": {plain_peers.STOCK: [30, 20, 40], plain_peers.OURS: [10, 20, 30]},
        "prompt": {
            plain_peers.STOCK: [900],
            plain_peers.OURS: [600],
            plain_peers.UPSTREAM: [910],
        },
    }
    machine = {"machine": "a processor, 2 cores", "system": "AVX2 = 1 | AVX512 = 1 |"}
    record = machine | {"model": "m.gguf", "threads": 2, "prompt": 512, "bytes": 80_000}
    record |= {"us": times, "read": [5 * 10**9]}
    [row] = plain_peers.cells(record)
    assert row[:3] == ["a processor", "m.gguf", "2"]
    assert row[3:6] == ["33333.3", "50000.0", "1.50"]
    assert row[6:] == ["1.00 to 3.00", "512", "1.50", "5.0", "0.80", "-", "0.99"]
    [row] = plain_peers.cells(record | {"system": "AVX2 = 1 |"})
    assert row[0] == "a processor, AVX2"


def test_memory_is_read_faster_than_a_disk(tmp_path: Path) -> None:
    reader = plain_peers.compiled_reader(tmp_path)
    speeds = [float(subprocess.check_output([reader, str(n)], text=True)) for n in (1, 3)]
    assert all(speed > 1e8 for speed in speeds)
    assert subprocess.run([reader, "none"]).returncode == 2
