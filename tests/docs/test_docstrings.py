"""Every docstring is a sentence that is true without the name above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPENINGS = ("Of", "The same", "As", "Those", "What", "Who", "Where", "Nothing", "None of")
OPENING = re.compile(rf"({'|'.join(OPENINGS)})\b")
NOT_OURS = ("vendor/llama.cpp", "vendor/work", "vendor/cache", "pyselfspec/converter")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def files() -> list[Path]:
    folders = ("pyselfspec", "tools", "vendor", "tests")
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [path for path in found if not _is_foreign(path)]


def _is_foreign(path: Path) -> bool:
    return path.relative_to(ROOT).as_posix().startswith(NOT_OURS)


def openings(source: str) -> list[tuple[int, str]]:
    """Return line and docstring of each that begins with a word that needs the name above."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    found = ((getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in nodes)
    return [(line, text) for line, text in found if OPENING.match(text)]


def test_docstrings_are_sentences_of_their_own() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in files()
        for line, text in openings(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_an_opening_is_a_whole_word() -> None:
    planted = ("The same text.", "What is here.", "Of it.", "Whatever.", "Ask.", "Nonesuch.")
    source = "".join(f'def f():\n    """{text}"""\n' for text in planted)
    assert [text for _, text in openings(source)] == list(planted[:3])
