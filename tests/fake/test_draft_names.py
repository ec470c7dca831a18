"""Drafters with files behind their names: how they are split, and what does not go together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.speculate import drafters
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.draft_names import Named, split
from pyselfspec.speculate.drafters import ngram
from pyselfspec.speculate.resolve import resolve
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_drafter import FakeDrafter
from pyselfspec.testing.fake_model import FakeModel

KNOWN = ("ngram", "model", "head", "layer-skip")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ngram", [("ngram", None)]),
        ("ngram+layer-skip", [("ngram", None), ("layer-skip", None)]),
        ("model:a.gguf", [("model", "a.gguf")]),
        ("ngram+model:a.gguf", [("ngram", None), ("model", "a.gguf")]),
        ("model:a.gguf+ngram", [("model", "a.gguf"), ("ngram", None)]),
        ("model:a.gguf+head:b", [("model", "a.gguf"), ("head", "b")]),
        ("model:c++/a+b.gguf", [("model", "c++/a+b.gguf")]),
        ("model:a+ngrams.gguf", [("model", "a+ngrams.gguf")]),
        ("model:C:\\a:b+ngram", [("model", "C:\\a:b"), ("ngram", None)]),
        ("model:a+model", [("model", "a"), ("model", None)]),
        ("model:", [("model", "")]),
        ("model:+ngram", [("model", ""), ("ngram", None)]),
        ("ngram+nope", [("ngram", None), ("nope", None)]),  # behind a name, + always ends it
        ("nope:a+ngram", [("nope", "a"), ("ngram", None)]),
        ("ngram+", [("ngram", None), ("", None)]),
        ("", [("", None)]),
        (["ngram", "model:a+ngram"], [("ngram", None), ("model", "a+ngram")]),
        ([], []),
    ],
)
def test_names_and_files(text: str | list[str], wanted: list[tuple[str, str | None]]) -> None:
    assert split(text, KNOWN) == tuple(Named(*each) for each in wanted)


@dataclass(frozen=True, slots=True)
class WithFile:
    path: Path
    k: int = 3


@dataclass(frozen=True, slots=True)
class PerhapsWithFile:
    path: Path | None = None


@pytest.fixture(autouse=True)
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A drafter that needs a file, and one that may have one."""
    for name, options in (("reads", WithFile), ("may_read", PerhapsWithFile)):
        module = ModuleType(name)
        module.Options = options  # type: ignore[attr-defined]
        module.make = lambda context, _options: FakeDrafter(context.model)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    own_names, own_load = drafters.all_names, drafters.load
    monkeypatch.setattr(drafters, "all_names", lambda: (*own_names(), "reads", "may-read"))

    def load(name: str) -> object:
        inside = name in ("reads", "may-read")
        return sys.modules[name.replace("-", "_")] if inside else own_load(name)

    monkeypatch.setattr(drafters, "load", load)
    yield


def options_of(draft: str | list[str], **given: object) -> dict[str, object]:
    config = DraftConfig(draft, profile=False, **given)  # type: ignore[arg-type]
    found = resolve(FakeContext(FakeModel()), config)  # type: ignore[arg-type]
    assert found is not None
    return dict(found.options)


def test_a_file_is_the_first_field_of_the_options() -> None:
    assert options_of("reads:a+b.gguf") == {"reads": WithFile(Path("a+b.gguf"))}
    assert options_of("may-read:a") == {"may-read": PerhapsWithFile(Path("a"))}
    assert options_of("may-read") == {"may-read": PerhapsWithFile()}
    assert options_of("reads:~/a") == {"reads": WithFile(Path.home() / "a")}


@pytest.mark.parametrize("draft", ["ngram+reads:a", "reads:a+ngram", ["reads:a", "ngram"]])
def test_whoever_looks_up_comes_first(draft: str | list[str]) -> None:
    found = options_of(draft)
    assert found == {"ngram": ngram.Options(), "reads": WithFile(Path("a"))}
    assert list(found) == ["ngram", "reads"]


def test_a_file_goes_with_other_options() -> None:
    given = WithFile(Path("a"), k=7)
    assert options_of("reads:a", options=given) == {"reads": given}
    assert options_of("reads", options=given) == {"reads": given}
    assert options_of("may-read:a", options=PerhapsWithFile()) == {
        "may-read": PerhapsWithFile(Path("a"))
    }


@pytest.mark.parametrize(
    ("draft", "options", "message"),
    [
        ("reads", None, "the drafter reads needs a file: reads:FILE"),
        ("ngram+reads:", None, "the drafter reads needs a file: reads:FILE"),
        ("may-read:", None, "the drafter may-read needs a file: may-read:FILE"),
        ("ngram:a.json", None, "the drafter ngram takes no file, got ngram:a.json"),
        ("reads:a", WithFile(Path("b")), "the drafter reads is given two files, a and b"),
        ("reads:a+reads:b", None, r"reads\+reads names a drafter twice"),
        (["reads:a", "nope"], None, "there is no drafter 'nope'"),
        (["auto"], None, "there is no drafter 'auto'"),
        ([], None, "a list of drafters names at least one"),
    ],
)
def test_what_does_not_go_together(draft: str | list[str], options: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        options_of(draft, options=options)
