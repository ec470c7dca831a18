"""The grammar of answers that may be text or calls, in which calls keep to their schemas. Pure.

Text is anything without an opening marker of a call. An automaton searches for all markers at once
(Aho and Corasick, Communications of the ACM 18(6), 1975), with one rule of the grammar for each of
its states.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...answers.call_forms import HERMES, Functions, reads_json
from ...answers.form import AnswerForm
from ...runtime import json_schema

_NOT_JSON = ("<function=", "<arg_key>", "[ARGS]")  # calls in Hermes' or Mistral's marks, in tags
_ROOT = re.compile(r"^root ::=", re.MULTILINE)


def answers_to_gbnf(
    form: AnswerForm,
    source: str,
    functions: Functions,
    is_strict: Mapping[str, bool],
    n_calls: int | None,
) -> str | None:
    """Return GBNF of an answer with text and calls; None for a form of calls that is not JSON.

    source: of the chat template. functions: schemas of the arguments. is_strict: by function,
    whether its arguments keep to the schema. n_calls: 1 for at most one call; after it the answer
    ends. In grammars, control tokens have a text, so markers need no other rules.

    Raises ArgumentError for an unsupported schema.
    """
    forms = [each for each in form.calls if reads_json(each)]
    if len(forms) < len(form.calls) or any(sign in source for sign in _NOT_JSON):
        return None
    schemas: dict[str, Any] = {
        name: schema if is_strict.get(name) else {"type": "object"}
        for name, schema in functions.items()
    }
    calls = _ROOT.sub("strict-call ::=", json_schema.calls_to_gbnf(schemas))
    rules = [calls.strip(), "strict-gap ::= [ \\t\\n\\r]? [ \\t\\n\\r]?", _LIST]
    after = "strict-gap" if n_calls == 1 else "strict-text-0"
    for i, each in enumerate(forms):
        body = "strict-gap strict-calls"
        if each.close is not None:
            which = "strict-call" if each is HERMES else "strict-calls"
            body = f"strict-gap {which} strict-gap {json.dumps(each.close)}"
        rules.append(f"strict-form-{i} ::= {body} {after}")
    rules += _text_rules({each.open: f"strict-form-{i}" for i, each in enumerate(forms)})
    return "\n".join(rules) + "\n"


_LIST = (
    'strict-calls ::= strict-call | "[" strict-gap strict-call '
    '(strict-gap "," strict-gap strict-call)* strict-gap "]"'
)


def _text_rules(markers: Mapping[str, str]) -> list[str]:
    """Return the rules of text up to a marker, with the rule that follows each marker. An answer
    that begins with a brace is a call."""
    prefixes = sorted({mark[:n] for mark in markers for n in range(len(mark))}, key=len)
    states = {prefix: i for i, prefix in enumerate(prefixes)}
    letters = sorted({letter for mark in markers for letter in mark})

    def target(text: str) -> str:
        if (found := next((mark for mark in markers if text.endswith(mark)), None)) is not None:
            return markers[found]
        longest = next(text[i:] for i in range(len(text) + 1) if text[i:] in states)
        return f"strict-text-{states[longest]}"

    rules = []
    for prefix, i in states.items():
        parts: dict[str, list[str]] = {}
        for letter in letters:
            parts.setdefault(target(prefix + letter), []).append(letter)
        choices = [f"[{_class(each)}] {rule}" for rule, each in parts.items()]
        others = f"[^{_class(letters)}] strict-text-0"
        rules.append(f'strict-text-{i} ::= "" | {" | ".join([*choices, others])}')
    first = _class([*letters, "{", " ", "\t", "\n", "\r"])
    begins = [
        f"[{_class([letter])}] {target(letter)}" for letter in letters if letter not in "{ \t\n\r"
    ]
    rules.append(
        f'root ::= "" | [ \\t\\n\\r] root | strict-call strict-gap | '
        f"{' | '.join([*begins, f'[^{first}] strict-text-0'])}"
    )
    return rules


def _class(letters: Sequence[str]) -> str:
    """Return the inside of a character class."""
    return "".join(
        f"\\x{ord(each):02X}" if ord(each) < 128 else each for each in dict.fromkeys(letters)
    )
