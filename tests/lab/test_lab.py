"""Experiments: listed, loaded only when named, and working by their names."""

import re
from pathlib import Path

import pytest
import serving
from command_line import ONE_THREAD, run

from pyselfspec.lab.catalog import EXPERIMENTS
from pyselfspec.selection import strategies
from pyselfspec.serve.engine.jobs import MODEL
from pyselfspec.serve.settings import Capacity
from pyselfspec.speculate import controllers, drafters
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.testing.conformance import DrafterConformance
from pyselfspec.util import plugins

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
KINDS = {"drafters": drafters, "controllers": controllers, "strategies": strategies}


def registered(kind):
    """Names of the lab in a registry."""
    points = plugins.registered(f"pyselfspec.{kind}")
    return sorted(each.name for each in points if each.value.startswith("pyselfspec.lab."))


@pytest.mark.parametrize("kind", KINDS)
def test_the_list_has_every_experiment(kind):
    listed = [each.name for each in EXPERIMENTS if each.kind == kind]
    assert sorted(listed) == registered(kind)
    assert not {*listed} & {*KINDS[kind].names()}
    assert {*listed} | {*KINDS[kind].names()} == {*KINDS[kind].all_names()}


def test_the_command_prints_the_list():
    outcome = run("lab", "list")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert all(each.use in outcome.stdout for each in EXPERIMENTS)
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    found = run("lab", "list", "--json").json["experiments"]
    assert [each["name"] for each in found] == [each.name for each in EXPERIMENTS]


@pytest.mark.parametrize("name", ["jacobi", "lookahead", "partial-kv"])
def test_speeds_are_those_of_the_table(name):
    table = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    start = rf"^\| smollm2-135m-q8_0.gguf \| [^|]+ \| \d \| {name} \| 0 \| all \|"
    row = re.search(rf"{start} ([\d.]+) ", table, re.M)
    speed = next(each.speed for each in EXPERIMENTS if each.name == name)
    assert row is not None and speed == f"{float(row[1]):.2f} (SmolLM2 135M)"


@pytest.mark.parametrize(
    ("command", "option"),
    [("generate", "--draft"), ("bench", "--draft"), ("generate", "--controller"),
     ("layers search", "--strategy"), ("scan-layers", "--strategy")],
)  # fmt: skip
def test_help_lists_no_experiment(command, option):
    text = run(*command.split(), "--help-all").stdout
    values = re.search(rf"^  {option} (\S+)", text, re.M)
    assert values is not None
    assert not {*values[1].strip("[]").split("|")} & {each.name for each in EXPERIMENTS}


DRAFT = ("generate", "demo", "-p", "The old king", "-n", "8", "--temp", "0", *ONE_THREAD, "--json")


@pytest.mark.parametrize(
    "options",
    [
        *(("--draft", name) for name in registered("drafters") if name != "exit-map"),
        *(("--controller", name) for name in registered("controllers")),
    ],
    ids=" ".join,
)
def test_experiments_work_by_name_and_leave_the_text_as_it_is(options):
    plain = run(*DRAFT, "--draft", "off").json
    assert run(*DRAFT, *options).json["text"] == plain["text"]


def test_an_endless_strategy_is_refused_where_scans_end():
    outcome = run("scan-layers", "demo", "--strategy", "random", *ONE_THREAD)
    assert outcome.status == 2
    assert "--strategy random has no end; use it with layers search" in outcome.stderr


@pytest.mark.parametrize("args", [DRAFT, ("generate", "--help"), ("layers", "search", "--help")])
def test_experiments_are_loaded_only_when_named(args, run_python):
    code = (
        "import sys; from pyselfspec.cli import main\n"
        f"try: main({list(args)!r})\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('pyselfspec.lab')])"
    )
    assert run_python(code).stdout.endswith("\n[]\n")


def test_a_server_loads_no_experiment(demo_path, run_python):
    code = """
import sys
from pyselfspec import Model
from pyselfspec.serve import server
from pyselfspec.serve.settings import Capacity, Settings
from pyselfspec.speculate.config import DraftConfig
options = {"capacity": Capacity(n_ctx=192, n_slots=1), "drafting": DraftConfig()}
with Model(sys.argv[1]) as model:
    with server.open_service(model, Settings("demo"), **options) as service:
        service.props()
print([name for name in sys.modules if name.startswith('pyselfspec.lab')])
"""
    found = run_python(code, demo_path)
    assert found.stdout == "[]\n", found.stderr


def test_an_experiment_drafts_where_a_server_was_started_with_it(demo):
    drafting = DraftConfig(draft="ngram+jacobi")
    capacity = Capacity(n_ctx=192, n_slots=1)
    with serving.running(demo, capacity=capacity, drafting=drafting) as server:
        props = server.client.get(f"{server.url}/props").json()
        body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
        for name in registered("drafters"):
            answer = server.post("/v1/completions", body | {"pyselfspec": {"draft": name}})
            if name == "jacobi":
                break
            assert answer.status_code == 400
            message = answer.json()["error"]["message"]
            assert f"--draft {name}" in message and "; this server has auto, off, " in message
    assert answer.json()["usage"]["pyselfspec"]["draft"] == "jacobi"
    assert set(props["sources"]) & {*registered("drafters")} == {"jacobi"}
    listed = {each["name"]: each["works"] for each in props["drafters"]}
    assert {*listed} == {MODEL, "jacobi", *drafters.names()} and listed["jacobi"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_has_every_experiment(kind):
    page = (BENCHMARKS.parent / "docs" / "lab.md").read_text(encoding="utf-8")
    option = {"drafters": "draft", "controllers": "controller", "strategies": "strategy"}[kind]
    [table] = re.findall(rf"^\| `--{option}` \|.*\n\|-.*\n((?:\|.*\n)+)", page, re.M)
    named = re.findall(r"^\| `([\w-]+)", table, re.M)
    assert sorted(named) == registered(kind)


class TestEveryDrafter(DrafterConformance):
    """The conformance tests, for drafters that run on any scripted model."""

    @pytest.fixture(autouse=True, params=["jacobi", "lookahead"])
    def named(self, request):
        self.module = drafters.load(request.param)

    def make(self, context):
        return self.module.make(context, self.module.Options())
