"""Imports only point down, and every outside library has its one place."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "pyselfspec"
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
}
CLI = {name for name in TREES if name.startswith("cli/") or name == "__main__.py"}


def module(name: str) -> str:
    """drafters/off.py -> .drafters.off, drafters/__init__.py -> .drafters, __init__.py -> ''"""
    return "".join(f".{part}" for part in name.removesuffix(".py").split("/") if part != "__init__")


MODULES = {module(name) for name in TREES}


def source(name: str, node: ast.ImportFrom) -> str:
    """What a statement in this file imports from: ".types" for ours, "numpy.typing" for others."""
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


def test_imports_form_no_circle():
    graph = {module(name): imports(name, at_load_time=True) & MODULES for name in TREES}
    assert {".types", ".verify", ".drafters"} <= graph[".loop"], "the test sees no imports"
    list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("errors.py", set()),
        ("by_name.py", {".errors"}),
        ("types.py", {".errors"}),
        ("verify.py", {".errors", ".types"}),
        ("text.py", {".errors", ".types"}),
        ("costs.py", {".gguf_file", ".types"}),
    ],
)
def test_pure_modules_stay_pure(name, allowed):
    assert ours(name) <= allowed


@pytest.mark.parametrize("name", [name for name in TREES if name.startswith("controllers/")])
def test_controllers_know_costs_and_steps_and_nothing_else(name):
    known = {".costs", ".errors", ".types", ".controllers._acceptance"}
    assert ours(name) <= known | ({".by_name"} if name.endswith("__init__.py") else set())


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("ctypes", {"_lib.py"}),
        ("llama_cpp", {"_lib.py"}),
        ("click", CLI),
        ("optuna", {"search/optuna.py"}),
        ("matplotlib", {name for name in TREES if name.startswith("plots/")}),
    ],
)
def test_libraries_have_their_place(library, allowed):
    assert {name for name in TREES if library in imports(name)} <= allowed


def test_the_loop_knows_no_concrete_drafter_and_drafters_do_not_know_the_loop():
    assert not any(found.startswith(".drafters.") for found in imports("loop.py"))
    for name in TREES:
        if name.startswith("drafters/"):
            assert not {"", ".loop", ".completion"} & ours(name), name


@pytest.mark.parametrize("name", sorted(TREES.keys() - CLI))
def test_the_command_line_is_on_top_and_alone_prints(name):
    assert not any(f"{found}.".startswith(".cli.") for found in imports(name))
    calls = (node.func for node in ast.walk(TREES[name]) if isinstance(node, ast.Call))
    assert not any(isinstance(func, ast.Name) and func.id == "print" for func in calls)
