"""Everyday tasks by llama.cpp's own programs: what is sent, what is read out, what the table says.

Its programs are played by scripts here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tools.bench import _llama_server, task_peers
from tools.bench._llama_server import Client, parse, serving
from tools.bench._main import main
from tools.bench._task_file import Task
from tools.bench.task_peers import Everybody, Outcome
from tools.bench.tasks import PLAIN

ROOT = Path(__file__).resolve().parents[2]
# Says of every completion how it was asked for, and drafts where it has a --spec-type.
SERVER = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def answer(self, data, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def do_GET(self):
        self.answer({{"pid": os.getpid(), "arguments": sys.argv[1:]}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/detokenize":
            return self.answer({{"content": "".join(chr(97 + t % 26) for t in asked["tokens"])}})
        if asked["prompt"] == [0]:
            return self.answer({{"error": "no such prompt"}}, 400)
        timings = {{"predicted_n": 11, "predicted_ms": 20.0}}
        if "--spec-type" in sys.argv:
            timings["predicted_ms"] = 10.0
            timings |= {{"draft_n": 8, "draft_n_accepted": 5}}
        self.answer({{"tokens": [0, 1, 2], "timings": timings, "asked": asked}})

    def log_message(self, *_):
        pass

host, port = (sys.argv[sys.argv.index(option) + 1] for option in ("--host", "--port"))
HTTPServer((host, int(port)), Handler).serve_forever()
"""
LOOKUP = """#!{python}
import sys
with open(sys.argv[sys.argv.index("-f") + 1]) as file:
    print(file.read().removesuffix("\\n") + "abcd")
print("encoded    9 tokens in    1.000 seconds, speed:    9.000 t/s")
print("decoded   11 tokens in    0.020 seconds, speed:  550.000 t/s")
print("n_drafted    = 6\\nt_draft      = 0.5 ms\\nn_accept     = 4")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With programs of llama.cpp."""
    made = tmp_path / "programs"
    made.mkdir()
    for name, content in (("llama-server", SERVER), ("llama-lookup", LOOKUP)):
        (made / name).write_text(content.format(python=sys.executable))
        (made / name).chmod(0o755)
    return made


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


#
# the server
#


@pytest.mark.parametrize("answer", [{}, {"tokens": [1]}, {"tokens": [1], "timings": {}}, [], None])
def test_no_figures_are_an_error(answer: Any) -> None:
    with pytest.raises(click.ClickException, match="no answer with timings"):
        parse(answer)


def test_a_prompt_is_sent_as_tokens_and_nothing_is_reused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_llama_server, "parse", lambda answer: answer["asked"])
    with serving([folder / "llama-server"]) as client:
        asked: Any = client.complete((5, 6), n_predict=64, temp=0.7, seed=3)
        assert client.text([1, 2]) == "bc"
    assert asked == {
        "prompt": [5, 6],
        "n_predict": 64,
        "temperature": 0.7,
        "seed": 3,
        "cache_prompt": False,
        "return_tokens": True,
    }


def test_a_server_hears_this_machine_alone_and_ends_with_the_block(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), serving([folder / "llama-server", "-x"]) as client:
        told = client.get("/props")
        assert told["arguments"] == ["-x", "--host", "127.0.0.1", "--port", str(client.port)]
        assert is_running(told["pid"])
        raise KeyboardInterrupt
    assert not is_running(told["pid"]) and not client.is_ready


def test_a_server_that_does_not_listen_to_the_end_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_llama_server, "STOP_S", 0.1)
    program = folder / "llama-server"
    text = program.read_text()
    program.write_text(
        text.replace("host, port", "import signal; signal.signal(15, 1)\nhost, port")
    )
    with serving([program]) as client:
        pid = client.get("/")["pid"]
    assert not is_running(pid)


def test_a_bench_that_is_ended_leaves_no_server(
    folder: Path, demo_path: Path, tmp_path: Path
) -> None:
    pids, tasks = tmp_path / "pids", tmp_path / "tasks.jsonl"
    tasks.write_text('{"task": "story", "turns": ["Once upon a time"]}\n')
    program = folder / "llama-server"
    text = program.read_text()
    kill = 'if self.path == "/completion":\n            return os.kill(os.getppid(), 15)\n        '
    text = text.replace('if asked["prompt"]', kill + 'if asked["prompt"]')
    begin = text.index("HTTPServer((host")
    note = f"with open({str(pids)!r}, 'a') as file:\n    file.write(f'{{os.getpid()}} ')\n"
    program.write_text(text[:begin] + note + text[begin:])
    arguments = ["task-peers", folder, demo_path, "--tasks", tasks, "-t", "1", "-c", "256"]
    command = [sys.executable, ROOT / "tools" / "bench.py", *arguments, "--way", "ngram-mod"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.strip().endswith("Aborted!")
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2 and not any(map(is_running, started))


def test_what_a_server_says_when_it_does_not_start() -> None:
    with (
        pytest.raises(click.ClickException, match="no such model"),
        serving([sys.executable, "-c", "raise SystemExit('no such model')"]),
    ):
        pass


def test_a_server_that_does_not_answer(folder: Path) -> None:
    with serving([folder / "llama-server"]) as client:
        with pytest.raises(click.ClickException, match=r"400.*no such prompt"):
            client.complete([0], 1, 0.0, 0)
    with pytest.raises(click.ClickException, match="gives no answer"):
        client.complete([1], 1, 0.0, 0)


#
# llama-lookup
#


def test_what_lookup_reports(folder: Path) -> None:
    made = task_peers.of_lookup([folder / "llama-lookup"], "user\nHi \\n\nassistant\n")
    counts = (made.n_tokens, made.n_passes, made.n_drafted, made.n_accepted)
    assert (made.us, *counts) == (20000, 10, 6, 6, 4)
    assert made.text.startswith("abcd\n")


def test_lookup_without_a_report() -> None:
    with pytest.raises(click.ClickException, match="reports no speed"):
        task_peers.of_lookup([sys.executable, "-c", "print('hello')"], "Hi")


def outcome(text: str) -> Outcome:
    return Outcome(us=1, n_tokens=1, n_passes=1, n_drafted=0, n_accepted=0, text=text)


def test_lookup_prints_more_than_its_answer() -> None:
    plain = outcome("abc")
    assert task_peers.is_same("llama-lookup", outcome("abcd\n"), plain)
    assert not task_peers.is_same("llama-lookup", outcome("abd"), plain)
    assert not task_peers.is_same("ngram-mod", outcome("abcd"), plain)


#
# a run
#


def test_all_ways_get_the_same_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(_self: Everybody, way: str, prompt: Any, _seed: int) -> Outcome:
        asked.append((way, prompt))
        return outcome(f"{way} says")

    def prompts(task: Task) -> Any:
        answers: list[str] = []
        for i in range(len(task.turns)):
            yield (*task.turns[: i + 1], *answers), answers

    monkeypatch.setattr(Everybody, "answer", answer)
    context = SimpleNamespace(model=SimpleNamespace(tokenize=str))
    speaking: Any = SimpleNamespace(temp=0.0, context=context, prompts=prompts)
    runs = Everybody(speaking, {PLAIN: Client(0)}, {}).compare([Task("k", ("one", "two"))])
    ways = [PLAIN, "pyselfspec, plain", "pyselfspec"]
    second = ("one", "two", "pyselfspec, plain says")
    assert [way for way, _ in asked] == [*ways, *ways, *reversed(ways)]
    warm_up, *prompts = [prompt for _, prompt in asked][2:]
    assert warm_up not in prompts  # what is asked first must not be known already
    assert prompts == [("one",)] * 3 + [second] * 3
    assert [runs[way]["k"].n_same for way in ways] == [2, 2, 0]


def test_a_run(folder: Path, demo_path: Path, tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "out.jsonl"
    turns = {"story": ["Once upon a time"], "turns": ["It was", "Then he"]}
    tasks.write_text("".join(json.dumps({"task": k, "turns": v}) + "\n" for k, v in turns.items()))
    arguments = ["task-peers", str(folder), str(demo_path), "--tasks", str(tasks), "-t", "1"]
    arguments += ["-c", "256", "--tokens", "8", "--temp", "0", "--out", str(out)]
    ways = ["ngram-mod", "llama-lookup"]
    options = [word for way in ways for word in ("--way", way)]
    done = CliRunner().invoke(main, [*arguments, *options])
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    assert list(record["runs"]) == [PLAIN, *ways, "pyselfspec, plain", "pyselfspec"]
    assert record["command"].endswith("--way ngram-mod --way llama-lookup --temp 0")
    for way, speed, n_drafted in (
        (PLAIN, 500, 0),
        ("ngram-mod", 1000, 8),
        ("llama-lookup", 500, 6),
    ):
        run = record["runs"][way]["turns"]
        assert task_peers.tokens_per_second(run) == speed
        assert (run["n_drafted"], run["n_same"]) == (2 * n_drafted, 2)
    for kind, n in (("story", 1), ("turns", 2)):
        run = record["runs"]["pyselfspec"][kind]
        assert run["n_same"] == len(run["us"]) == n and min(run["us"]) > 0
    assert "| story | 500.0 | - / - |" in done.stdout


def test_a_folder_without_the_programs(demo_path: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"task": "story", "turns": ["Once upon a time"]}\n')
    arguments = ["task-peers", str(tmp_path), str(demo_path), "--tasks", str(tasks)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1 and "has no llama-server: build it with" in done.stderr


#
# figures
#


def run(us: int, **changes: int) -> dict[str, Any]:
    """Two answers, of 10 and 30 tokens."""
    counts = {"n_passes": 20, "n_drafted": 0, "n_accepted": 0, "n_same": 2} | changes
    return {"us": [us, us], "n_tokens": [10, 30], **counts}


NONE = {"us": [], "n_tokens": [], "n_passes": 0, "n_drafted": 0, "n_accepted": 0, "n_same": 0}


def test_rows() -> None:
    runs = {
        PLAIN: {"a": run(500_000), "b": run(500_000)},
        "ngram-mod": {"a": run(400_000, n_drafted=10, n_accepted=4), "b": run(1_000_000, n_same=1)},
        "ngram-mod-short": {"a": run(200_000), "b": NONE},
        "pyselfspec, plain": {"a": run(500_000), "b": run(500_000)},
        "pyselfspec": {"a": run(100_000), "b": run(250_000)},
    }
    a, b, overall, passes, acceptance, same = task_peers.cells(
        {"model": "m", "temp": 0.7, "runs": runs}
    )
    none = ["- / -"] * 3
    assert a[:4] == ["m", "0.7", "a", "40.0"]
    assert a[4:] == [
        *none,
        "50.0 / 100.0",
        "-",
        "- / -",
        "40.0",
        "200.0",
        "ngram-mod-short",
        "2.00",
    ]
    assert b[7] == "20.0 / -" and b[-2:] == ["plain", "2.00"]
    assert overall[2:4] == ["all", "40.0"] and overall[7] == "28.6 / 100.0"
    assert passes[2] == "all, tokens per pass" and passes[7] == "2.00 / 2.00"
    assert acceptance[7] == "0.40 / -"
    assert same[7] == "3 of 4 / 2 of 2"
