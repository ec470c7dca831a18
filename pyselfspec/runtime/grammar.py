"""Grammars made from JSON schemas, by llama-cpp-python's converter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ArgumentError
from . import _lib

N_SCHEMA = 1 << 16  # characters
N_GRAMMAR = 1 << 20  # characters of what comes out: repetitions are written out
N_REPEAT = 256  # most that a schema may count up to
COUNTS = {"minItems", "maxItems", "minLength", "maxLength"}
_REPEAT = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


def of_json_schema(schema: Mapping[str, Any]) -> str:
    """GBNF for the JSON values that a schema allows.

    Raises ArgumentError for a schema that is wrong, too large, or says what no grammar can.
    """
    text = json.dumps(schema)
    if len(text) > N_SCHEMA:
        raise ArgumentError(f"a JSON schema has at most {N_SCHEMA} characters, got {len(text)}")
    try:
        if (largest := max(_counts(schema), default=0)) > N_REPEAT:
            raise ArgumentError(f"a JSON schema counts up to {N_REPEAT}, got {largest}")
        grammar = _lib.json_schema_to_gbnf(text)
    except ArgumentError:
        raise
    except Exception as error:  # the converter asserts, and fails in any way on nonsense
        reason = str(error) or type(error).__name__
        raise ArgumentError(
            f"the JSON schema is not one that can be written by: {reason}"
        ) from None
    if len(grammar) > N_GRAMMAR:
        raise ArgumentError("the JSON schema is too large when its repetitions are written out")
    return grammar


def _counts(node: Any) -> Iterator[int]:
    """Every number of repetitions in a schema, those of patterns included."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in COUNTS and isinstance(value, int):
                yield value
            elif key == "pattern" and isinstance(value, str):
                yield from (int(n) for pair in _REPEAT.findall(value) for n in pair if n)
            else:
                yield from _counts(value)
    elif isinstance(node, list):
        for each in node:
            yield from _counts(each)
