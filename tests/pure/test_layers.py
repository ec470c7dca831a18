"""Imports only point down, and every outside library has its one place."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "pyselfspec"
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
}
FFI = {name for name in TREES if name.startswith("runtime/ffi/")}
CLI = {name for name in TREES if name.startswith("cli/") or name == "__main__.py"}


def module(name: str) -> str:
    """drafters/off.py -> .drafters.off, drafters/__init__.py -> .drafters, __init__.py -> ''"""
    return "".join(f".{part}" for part in name.removesuffix(".py").split("/") if part != "__init__")


MODULES = {module(name) for name in TREES}


def source(name: str, node: ast.ImportFrom) -> str:
    """Return the module that a statement imports from: ".types" for ours, "numpy.typing" for
    others."""
    if not node.level:
        return str(node.module).removeprefix("pyselfspec")
    folders = name.split("/")[: -node.level]
    return "".join(f".{part}" for part in [*folders, node.module] if part)


def imports(name: str, *, at_load_time: bool = False) -> set[str]:
    """Modules a file imports: ".types" for ours, "numpy" for others.

    at_load_time: without those in functions and those for type checkers only.
    """
    found: set[str] = set()
    for node in TREES[name].body if at_load_time else ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (base := source(name, node)) in MODULES:
            found |= {f"{base}.{alias.name}" for alias in node.names} & MODULES or {base}
        elif isinstance(node, ast.ImportFrom):
            found.add(base.split(".")[0])
    return found


def ours(name: str) -> set[str]:
    return {found for found in imports(name) if found.startswith(".") or not found}


# The floors of the house, from the ground up: a module imports from its own floor or from those
# below. The longest name that fits counts. What generates never imports what searches.
FLOORS = (
    {".errors"},
    {".util"},
    {".gguf"},
    {".masks", ".hub"},
    {".runtime"},
    {".convert", ".costs", ".templates"},
    {".answers"},
    {".speculate.types", ".speculate.draft_names"},
    {".speculate.limits", ".speculate.stats"},
    {".speculate.verify", ".speculate.output", ".speculate.pass_requests"},
    {".speculate.branches", ".speculate.residual", ".speculate.context_state"},
    {".speculate.hit_rates"},
    {".speculate.drafters", ".speculate.controllers"},
    {".speculate"},
    {".chat"},
    {".selection", ".testing", ".llama", ".bench", ".tune"},
    {".serve.settings", ".serve.store", ".serve.static_files"},
    {".serve.engine", ".serve.model_card"},
    {".serve.drafter_labels", ".serve.embeddings.embedding_engine"},
    {".serve.protocol", ".serve.metrics"},
    {".serve.store.slot_files", ".serve.fim_prompt", ".serve.embeddings"},
    {".serve.service"},
    {".serve.protocol.writers", ".serve.chat_requests"},
    {".serve.endpoints"},
    {".serve"},
    {".lab"},
    {".plots"},
    {".cli"},
    {".__main__"},
)


def floor(name: str) -> int:
    """The floor of a module by its dotted name; the package itself is on top of all but cli."""
    fits = [
        (len(room), i)
        for i, rooms in enumerate(FLOORS)
        for room in rooms
        if f"{name}.".startswith(f"{room}.")
    ]
    assert fits or not name, f"{name} is on no floor: declare it in FLOORS"
    return max(fits)[1] if fits else len(FLOORS)


def climbs(name: str, found: set[str]) -> set[str]:
    """Imports of a file that run up, or sideways into another wing."""
    here = floor(module(name))
    return {
        other
        for other in found
        if other in MODULES and other and (floor(other) > here or _other_room(module(name), other))
    }


def _other_room(name: str, other: str) -> bool:
    """On one floor, rooms do not know each other."""
    rooms = FLOORS[floor(name)]
    return floor(name) == floor(other) and not any(
        f"{name}.".startswith(f"{room}.") and f"{other}.".startswith(f"{room}.") for room in rooms
    )


def test_imports_form_no_circle():
    graph = {module(name): imports(name, at_load_time=True) & MODULES for name in TREES}
    assert {".speculate.types", ".speculate.verify"} <= graph[".speculate.generation"], (
        "sees no imports"
    )
    list(TopologicalSorter(graph).static_order())


def test_the_server_knows_no_other_program():
    others = tuple(f"{room}." for rooms in FLOORS if ".bench" in rooms for room in rooms)
    found = {name: imports(name) for name in TREES if name.startswith("serve/")}
    assert [n for n, names in found.items() if any(f"{f}.".startswith(others) for f in names)] == []


def test_imports_only_go_down():
    found = {name: climbs(name, imports(name)) for name in TREES if name != "__init__.py"}
    assert len(found) > 300, "sees no modules"
    assert {name: up for name, up in found.items() if up} == {}


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("speculate/batching.py", ".selection.scorer"),
        ("runtime/context.py", ".speculate.types"),
        ("costs/table.py", ".convert.widen"),
        ("speculate/types.py", ".speculate.drafters.layer_skip"),
    ],
)
def test_a_planted_import_is_found(name, planted):
    assert climbs(name, imports(name) | {planted}) == {planted}


def test_the_top_of_the_package_has_few_rooms():
    rooms = {name.split("/")[0] for name in TREES if not name.startswith("__")}
    assert len(rooms) <= 21, sorted(rooms)


PURE = (
    "errors.py",
    "util/",
    "gguf/",
    "masks/",
    "hub/",
    "costs/table.py",
    "costs/chances.py",
    "costs/timed.py",
    "costs/by_bytes.py",
    "costs/speedup.py",
    "runtime/passes.py",
    "runtime/sequence_table.py",
    "runtime/kv_types.py",
    "runtime/pieces.py",
    "runtime/ffi/prototypes.py",
    *(f"answers/{name}.py" for name in ("call_forms", "form", "parts", "reader")),
    "chat/trimming.py",
    *(
        f"templates/{name}.py"
        for name in ("fallbacks", "messages", "rendering", "special_token_guard")
    ),
    "speculate/types.py",
    "speculate/limits.py",
    "speculate/stats.py",
    "speculate/config.py",
    "speculate/draft_names.py",
    "speculate/pass_requests.py",
    "speculate/residual.py",
    "lab/adapt/state.py",
    "speculate/verify.py",
    "speculate/output/",
    "speculate/controllers/",
    "selection/chunks.py",
    "selection/rounds.py",
    "selection/results.py",
    "selection/scorer.py",
    "selection/runner.py",
    "selection/cost_cap.py",
    "selection/report.py",
    "selection/tables.py",
    "selection/options.py",
    "selection/objectives/__init__.py",
    "selection/strategies/__init__.py",
    *(
        f"selection/strategies/{name}.py"
        for name in ("anti", "climb", "exit", "greedy", "rank", "single")
    ),
    *(
        f"bench/{name}.py"
        for name in ("figures", "file", "formats", "prompts", "report", "tables", "types")
    ),
    "plots/",
)


def test_pure_modules_import_without_the_library(run_python):
    """All in one process, which stops at the first that loads it."""
    names = ["pyselfspec" + module(name) for name in TREES if name.startswith(PURE)]
    code = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"  # others' libraries may be missing
        "        assert not error.name.startswith('pyselfspec'), error\n"
        "    loaded = {'llama_cpp', 'pyselfspec.runtime.ffi.load'} & set(sys.modules)\n"
        "    assert not loaded, f'{name} loads {loaded}'"
    )
    run = run_python(code)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", [n for n in TREES if n.startswith("speculate/controllers/")])
def test_controllers_know_costs_and_steps_and_nothing_else(name):
    known = (
        ".errors",
        ".util",
        ".costs.",
        ".masks.",
        ".runtime.pass_result",
        ".speculate.types",
        ".speculate.limits",
        ".speculate.controllers",
    )
    assert all(found.startswith(known) for found in ours(name))


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("ctypes", {*FFI, "runtime/processor.py"}),
        ("llama_cpp", {"llama/_upstream.py"}),
        ("platformdirs", {"util/paths.py"}),
        ("msgspec", {"util/records.py", "cli/_drafting.py"}),
        ("jinja2", {"templates/sandbox.py", "bench/report.py"}),
        ("prompt_toolkit", {"cli/_chat/terminal.py"}),
        ("fastapi", {name for name in TREES if name.startswith("serve/")}),
        ("uvicorn", {"serve/server.py", "serve/router/server.py"}),
        ("h11", {"serve/router/process.py"}),
        ("prometheus_client", {"serve/metrics.py"}),
        ("click", CLI),
        ("torch", {name for name in TREES if name.startswith("tune/")}),
        ("cloup", CLI),
        ("huggingface_hub", {"hub/huggingface.py"}),
        ("optuna", {"selection/strategies/optuna.py"}),
        ("matplotlib", {name for name in TREES if name.startswith("plots/")}),
    ],
)
def test_libraries_have_their_place(library, allowed):
    assert {name for name in TREES if library in imports(name)} <= allowed


@pytest.mark.parametrize(
    "name",
    ["generation", "pass_requests", "batching", "config", "context_state", "resolve", "completion"],
)
def test_what_generates_knows_no_concrete_drafter(name):
    found = imports(f"speculate/{name}.py")
    assert not any(re.match(r"\.speculate\.drafters\.[a-z]", other) for other in found)


def prints(name):
    calls = (node.func for node in ast.walk(TREES[name]) if isinstance(node, ast.Call))
    return any(isinstance(func, ast.Name) and func.id == "print" for func in calls)


def test_the_command_line_is_on_top():
    others = sorted(TREES.keys() - CLI)
    uses = {n: {f for f in imports(n) if f"{f}.".startswith(".cli.")} for n in others}
    assert {name: found for name, found in uses.items() if found} == {}
    assert any(f.startswith(".cli.") for name in CLI for f in imports(name)), "sees no imports"


def test_the_command_line_alone_prints():
    assert [name for name in sorted(TREES.keys() - CLI) if prints(name)] == []


def test_only_the_lab_knows_the_lab():
    """Without its folders nothing else of the package fails, nor a test outside of tests/lab."""
    named = re.compile(r"\blab\b(?=\.| import)|pyselfspec[./]lab\b")
    folders = (ROOT, ROOT.parent / "tests")
    own = ("pyselfspec/lab/", "pyselfspec/cli/lab/", "tests/lab/", "tests/pure/test_layers.py")
    files = (path for folder in folders for path in folder.rglob("*.py"))
    names = {path.relative_to(ROOT.parent).as_posix(): path.read_text("utf-8") for path in files}
    knowing = {name for name, text in names.items() if named.search(text)}
    assert {name for name in knowing if not name.startswith(own)} == set()
    assert "pyselfspec/cli/lab/generate.py" in knowing
