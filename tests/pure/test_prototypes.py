"""The prototypes that Python calls C by are those of the header. Needs no compiled library."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from pyselfspec.runtime.ffi.prototypes import PROTOTYPES, DecodeArgs, PictureRowsArgs

NATIVE = Path(__file__).parents[2] / "pyselfspec" / "native"
HEADERS = "\n".join(path.read_text(encoding="utf-8") for path in sorted(NATIVE.rglob("*.h")))

POINTER = "pointer"
KINDS = {
    "void": "void",
    "bool": "bool",
    "float": "float 32",
    "double": "float 64",
    "int32_t": "int 32",
    "int64_t": "int 64",
    "size_t": f"unsigned {8 * ctypes.sizeof(ctypes.c_size_t)}",
}
DECLARATION = re.compile(
    r"^SELFSPEC_API\s+(?P<result>[^;(]*?)(?P<name>\w+)\((?P<parameters>[^)]*)\)"
)


def kind_in_c(declaration: str) -> str:
    """Return the kind of a type, with or without the name of a parameter."""
    if "*" in declaration:
        return POINTER
    words = [word for word in declaration.split() if word not in ("const", "struct")]
    return KINDS[words[0]]


def in_headers(text: str) -> dict[str, tuple[str, ...]]:
    """Return the kinds of result and parameters of every function of the C interface, by name."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#(\\\n|[^\n])*", "", text, flags=re.MULTILINE)
    found = {}
    for start in re.finditer("^SELFSPEC_API", text, flags=re.MULTILINE):
        match = DECLARATION.match(text[start.start() :])
        assert match, text[start.start() : start.start() + 80]
        parameters = match["parameters"].strip()
        kinds = [] if parameters in ("", "void") else map(kind_in_c, parameters.split(","))
        found[match["name"]] = (kind_in_c(match["result"]), *kinds)
    return found


def kind_in_python(kind: Any) -> str:
    """Return the kind of a ctypes type; None stands for void."""
    if kind is None:
        return "void"
    code = getattr(kind, "_type_", None)
    if not isinstance(code, str) or code in "PzZ":
        return POINTER
    if code in "?fd":
        return {"?": "bool", "f": "float 32", "d": "float 64"}[code]
    sign = "unsigned" if code.isupper() else "int"
    return f"{sign} {8 * ctypes.sizeof(kind)}"


def differences(header: str, prototypes: dict[str, tuple[Any, ...]]) -> list[str]:
    """Return what the header and the prototypes of selfspec_ functions do not agree on."""
    declared = in_headers(header)
    bound = {
        name: tuple(map(kind_in_python, types))
        for name, types in prototypes.items()
        if name.startswith("selfspec_")
    }
    return [
        f"{name}: {declared.get(name)} in C, {bound.get(name)} in Python"
        for name in sorted(declared.keys() | bound.keys())
        if declared.get(name) != bound.get(name)
    ]


def test_the_prototypes_are_those_of_the_header() -> None:
    assert len(in_headers(HEADERS)) == HEADERS.count("\nSELFSPEC_API") > 30
    assert differences(HEADERS, PROTOTYPES) == []


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("selfspec_can_enter", (ctypes.c_int32, ctypes.c_void_p)),  # too few
        ("selfspec_n_moves", (ctypes.c_int32, ctypes.c_void_p)),  # too narrow
        ("selfspec_graph_bytes", (ctypes.c_int64, ctypes.c_void_p)),  # signed
        ("selfspec_log_show", (ctypes.c_int32, ctypes.c_bool)),  # a result where there is none
        ("selfspec_error", (ctypes.c_int32, ctypes.c_void_p)),  # half a pointer
        ("selfspec_stop_passes", (None, ctypes.c_void_p, ctypes.c_int32)),
        ("selfspec_gone", (None,)),
    ],
)
def test_a_planted_difference_is_found(name: str, planted: tuple[Any, ...]) -> None:
    [found] = differences(HEADERS, PROTOTYPES | {name: planted})
    assert found.startswith(f"{name}: ")


def test_a_changed_header_is_found() -> None:
    changed = HEADERS.replace("int32_t row, float * p);", "int32_t row, float p);")
    assert changed != HEADERS
    [found] = differences(changed, PROTOTYPES)
    assert found.startswith("selfspec_argmax: ")


def fields_in_header(header: str, name: str) -> list[tuple[str, str]]:
    """Return the names and kinds of the fields of a struct, in order."""
    [_, body] = header.split(f"\nstruct {name} {{\n")
    body = re.sub(r"//[^\n]*", "", body.split("\n};\n")[0])
    declared = (text.strip() for text in body.split(";"))
    return [(text.split()[-1], kind_in_c(text)) for text in declared if text]


@pytest.mark.parametrize(
    ("name", "struct", "field"),
    [
        ("selfspec_decode_args", DecodeArgs, "    bool in_place;\n"),
        ("selfspec_picture_rows", PictureRowsArgs, "    bool            is_causal; "),
    ],
)
def test_structs_are_those_of_the_header(name: str, struct: Any, field: str) -> None:
    bound = [(each, kind_in_python(kind)) for each, kind in struct._fields_]
    assert fields_in_header(HEADERS, name) == bound
    changed = HEADERS.replace(field, "")
    assert changed != HEADERS and fields_in_header(changed, name) != bound


def rows_of(readme: str) -> list[str]:
    """Return the functions of the table of requirements, in order; a row without a name continues
    the one above it."""
    [_, section] = readme.split("\n## What each function requires\n")
    section = section.split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


README = (NATIVE / "README.md").read_text(encoding="utf-8")


def test_every_function_has_one_row_of_what_it_requires() -> None:
    assert sorted(rows_of(README)) == sorted(in_headers(HEADERS))
