"""The commands of the README run as printed, and its figures are the recorded ones."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pyselfspec.selection import objectives, strategies
from pyselfspec.speculate import controllers, drafters
from pyselfspec.util import plugins

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
MEASURED = DOCS["bench.md"]
SHELL = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_continuous_integration_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    install, run, test = SHELL[:3]
    assert install == "pip install ."
    assert install in script.splitlines()
    assert run == "pyselfspec demo --size 160M"
    install_tests, run_tests = test.split(" && ")
    assert install_tests in script.splitlines()
    assert script.splitlines()[-1] == run_tests


def test_the_first_command_comes_early():
    before, _, _ = README.partition("```sh\n")
    assert len([word for word in before.split() if word != "|"]) <= 120
    assert len(README.splitlines()) <= 110


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("pyselfspec ")])
def test_commands_run(line, tmp_path):
    command = [sys.executable, "-m", *shlex.split(line)]
    package = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": package}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=env
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


@pytest.mark.parametrize("code", PYTHON)
def test_python_runs(code):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


@pytest.mark.parametrize(
    ("page", "option", "folder"),
    [
        ("drafts.md", "--draft", drafters),
        ("drafts.md", "--controller", controllers),
        ("finding-layers.md", "--strategy", strategies),
        ("finding-layers.md", "--objective", objectives),
    ],
)
def test_tables_of_names_are_complete(page, option, folder):
    heading = rf"^\| `{option}` \|.*\n\|-.*\n((?:\|.*\n)+)"
    [table] = re.findall(heading, DOCS[page], re.MULTILINE)
    cells = re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
    named = {name.split(":")[0] for cell in cells for name in re.findall(r"`(.+?)`", cell)}
    assert named == set(plugins.names(folder.__path__))


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *ROOT.glob("docs/*.md")], ids=lambda p: Path(p).stem
)
def test_paths_that_a_page_names_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:pyselfspec|tools|tests|patches|benchmarks|docs)/[\w./-]*)`", text)
    linked = re.findall(r"\]\(([\w./-]+)\)", text)
    assert all((ROOT / name).exists() for name in named), named
    assert all((ROOT / page).parent.joinpath(name).exists() for name in linked), linked


def test_tables_are_made_from_the_results():
    program = [sys.executable, str(ROOT / "tools" / "bench.py"), "table"]
    table = subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()
    shown = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert f"<!-- table:begin -->\n\n{table}\n\n<!-- table:end -->" in shown


def test_the_first_table_shows_what_was_measured():
    """Rounded figures of the Q8_0 model."""
    shown = re.findall(r"^\| [^|]+ \| (0\.\d\d) \| (0\.\d\d) \|$", MEASURED, re.MULTILINE)
    rows = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [row.split("|") for row in rows if row.startswith("| r850q8.gguf | ")]
    measured = [(f"{float(c[3]):.2f}", f"{float(c[4]):.2f}") for c in cells if len(c) == 6]
    assert shown == measured[: len(shown)] and len(shown) == 4


def measured(model: str, second: str, table: str = "") -> list[str]:
    """The first row of benchmarks/README.md that begins with these cells, from the heading of a
    table on; later ones compare with something else in the same run."""
    shown = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    shown = shown[shown.index(f"### {table}") :]
    row, *_ = [r for r in shown.splitlines() if r.startswith(f"| {model} | {second} |")]
    return [cell.strip() for cell in row.split("|")[1:-1]]


@pytest.mark.parametrize("build", ["stock", "pyselfspec"])
def test_the_kernel_table_shows_what_was_measured(build: str):
    _, _, _, t1, t2, _, t4, _, _, t8, *_ = measured("r850q4.gguf", build)
    name = {"stock": "stock llama.cpp"}.get(build, build)
    assert f"| {name} | {t1} | {t2} | {t4} | {t8} |" in MEASURED


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K_M", "Q8_0", "F16"])
def test_the_speed_table_shows_what_was_measured(kind: str):
    rows = [measured(f"r600-{kind}-0.{late}.gguf", "auto") for late in ("45", "15", "06", "02")]
    speeds = " | ".join(f"{float(row[3]):.2f}" for row in rows)
    assert f"| {kind} | {speeds} |" in MEASURED


TASKS = "chat code-new story summary quote code-edit code-comment json turns all".split()


MODELS = {
    "SmolLM2 135M, Q4_0": "smollm2-135m-q4_0.gguf",
    "Gemma 3 270M, Q4_K_M": "gemma3-270m-q4_k_m.gguf",
    "SmolLM2 x 3, 1.1 B, Q4_K_M": "smolx3-Q4_K_M.gguf",
}


def of_tasks(model: str, temperature: str, task: str, processor: str) -> tuple[str, str]:
    """The speed over plain decoding, and that of nine in ten answers."""
    row = measured(model, f"{processor} | 2 | auto | {temperature} | {task}", "tasks")
    low, high = (f"{float(end):.2f}" for end in row[8].split(" to "))
    return f"{float(row[6]):.2f}", f"{low} to {high}"


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_tasks_shows_what_was_measured(name: str):
    speeds = " | ".join(of_tasks(MODELS[name], "0", task, "AMD EPYC")[0] for task in TASKS)
    assert f"| {name} | {speeds} |" in MEASURED


@pytest.mark.parametrize("processor", ["AMD EPYC", "AMD EPYC, AVX2"])
@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_temperatures_shows_what_was_measured(name: str, processor: str):
    both = (of_tasks(MODELS[name], temperature, "all", processor) for temperature in ("0", "0.7"))
    assert f"| {name} | {' | '.join(cell for cells in both for cell in cells)} |" in MEASURED


def test_the_pages_show_the_gain_over_llama_cpp():
    """Its plain decoding, its best way to copy, ours, and the ratio of the last two."""
    shown = re.findall(
        r"^\| (?:all|quotes|chat)[a-z ]* \| ([\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+) \|$",
        MEASURED,
        re.MULTILINE,
    )
    for row, task in zip(shown, ("all", "quote", "chat"), strict=True):
        cells = measured("smollm2-135m-q4_0.gguf", f"0 | {task}")
        copies = [float(x) for cell in cells[4:10] for x in cell.split(" / ")]
        assert row == f"{cells[3]} | {max(copies)} | {cells[11]} | {cells[13]}"
    plain, drafts, _, gain = measured("smollm2-135m-q4_0.gguf", "0 | all")[10:14]
    assert f"({drafts} over {plain} tokens per second)" in " ".join(MEASURED.split())
    assert f"on these tasks is {gain} on a Xeon" in " ".join(README.split())


def test_the_pages_show_the_speed_of_plain_decoding():
    """Model, threads, llama.cpp's tokens per second, ours, the ratio; then prompts and memory."""
    made = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in row.split("|")[2:-1]]
        for row in made.splitlines()
        if re.match(r"\| (Intel\(R\) Xeon\(R\) Processor|AMD EPYC)(, AVX2)? \| \S+\.gguf \|", row)
    ]
    short, long = (
        [row for row in rows if (int(row[6]) > 512) is is_long] for is_long in (False, True)
    )
    want = [" | ".join([*row[1:5], row[7], row[9]]) for row in short]
    got = re.findall(r"^\| [^|]+, (?:[IT]?Q|MXF|F)\w+ \| ([12] \| .*) \|$", MEASURED, re.MULTILINE)
    assert sorted(got) == sorted(want)
    prompts = re.findall(r"^\| [^|]+, Q\w+ \| ([\d,]+ \| [\d.]+) \|$", MEASURED, re.MULTILINE)
    assert sorted(prompts) == sorted(f"{int(row[6]):,} | {row[7]}" for row in long)
    pair = r"([\d.]+ \| [\d.]+ \| [\d.]+)"
    first = re.findall(rf"^\| [^|]+, Q\w+ \| {pair} \| {pair} \|$", README, re.MULTILINE)
    assert len(first) == 4
    assert {speed for both in first for speed in both} <= {
        " | ".join(row[2:5]) for row in rows if row[1] == "2"
    }


def test_the_readme_shows_the_gain_of_the_kernels():
    """A pass over one token, llama.cpp's time over ours: smallest and largest of each kind."""
    shown = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([^|]+) \| (stock|pyselfspec)(.*?) \| ([\d.]+) \| [\d.]+ \|", shown, re.MULTILINE
    )
    times = {(model, suffix, build): float(ms) for model, build, suffix, ms in rows}

    def gains(*, start: str, suffixes: tuple[str, ...], before: bool = False) -> list[str]:
        found = [
            ms / times[model, suffix, "pyselfspec"]
            for (model, suffix, build), ms in times.items()
            if build == "stock" and model.startswith(start) and suffix in suffixes
            if ("1024 tokens before" if before else "") in model
            if before or "before" not in model
        ]
        return [f"{min(found):.1f}", f"{max(found):.1f}"]

    text = " ".join(README.split())
    small = [gains(start=start, suffixes=("", ", AVX2")) for start in ("smollm2", "gemma3")]
    low, high = min(g[0] for g in small), max(g[1] for g in small)
    assert f"(135 to 270 M parameters) {low} to {high} times" in text
    after, _ = gains(start="smollm2", suffixes=("",), before=True)
    assert f"and {after} times after 1,024 tokens" in text


def test_the_readme_shows_the_gain_of_drafting():
    text = " ".join(README.split())
    cold, warm = (
        [of_tasks(model, temperature, "all", "AMD EPYC")[0] for model in MODELS.values()]
        for temperature in ("0", "0.7")
    )
    of_avx2 = [
        [of_tasks(model, temperature, "all", "AMD EPYC, AVX2")[0] for model in MODELS.values()]
        for temperature in ("0", "0.7")
    ]
    first, second = (f"{a}, {b} and {c} times" for a, b, c in of_avx2)
    assert f"with AVX2 only, {first} at temperature 0, and {second} at 0.7" in text
    assert f"drafting is {cold[0]} times as fast as our plain decoding with SmolLM2 135M" in text
    assert f"{cold[1]} times with Gemma 3 270M and {cold[2]} times with a 1.1 B model" in text
    assert f"At temperature 0.7 it is {warm[0]}, {warm[1]} and {warm[2]} times as fast" in text


def test_the_trained_model_does_what_was_measured():
    model = "demo-8x-Q4_0.gguf"
    auto, four = measured(model, "auto"), measured(model, "4")
    draft_model = measured(model, "llama-speculative-simple, first 3 blocks")
    by_default, of_four = (f"{float(row[3]):.2f}" for row in (auto, four))
    peers = (draft_model[3], measured(model, "llama-lookup")[3])
    text = " ".join(MEASURED.split())
    assert f"right {float(four[2]) * 100:.0f} times in 100" in text
    assert f"{by_default} by default, {of_four} with drafts of four" in text
    assert f"{peers[0]} with the first three blocks as a draft model" in text
    assert f"{peers[1]} with n-grams" in text
    assert f"runs {by_default} times as fast as with plain decoding" in " ".join(README.split())
    assert draft_model[6].startswith("+3")  # "a third more memory"
