"""Calls of tools as the families of models write them: the markers around a call, and a function
that reads what stands between them. Pure.

A new family is one more entry of CALL_FORMS.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..templates.messages import ToolCall

Functions = Mapping[str, Mapping[str, Any]]  # JSON schemas of the arguments, by function
Pair = tuple[str, Any]  # the name of a function, and its arguments
HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_INVOKE = re.compile(r"\s*<invoke name=\"([^\"]+)\">(.*?)</invoke>\s*", re.DOTALL)
_INVOKE_PARAMETER = re.compile(
    r"<parameter name=\"([^\"]+)\"[^>]*>\n?(.*?)\n?</parameter>", re.DOTALL
)
_DEEPSEEK = re.compile(
    r"(?:function<｜tool▁sep｜>)?\s*([\w.-]{1,64})(?:<｜tool▁sep｜>|\s*\n)(.*)", re.DOTALL
)
_KIMI = re.compile(
    r"\s*(?:functions\.)?([\w.-]{1,64}?)(?::\d+)?\s*<\|tool_call_argument_begin\|>(.*)", re.DOTALL
)
_MISTRAL = re.compile(r"\s*([\w.-]{1,64})\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\](.*)", re.DOTALL)
_HARMONY = re.compile(r"([\w.-]{1,64})(?:(?!<\|message\|>).)*<\|message\|>(.*)", re.DOTALL)
_GEMMA = re.compile(r"\s*([\w.-]{1,64})(\{.*\})\s*", re.DOTALL)
_GEMMA_KEY = re.compile(r"([{,]\s*)([\w.$-]+)(\s*:)")


_LITERALS = {"True": "true", "False": "false", "None": "null"}  # as Jinja writes them


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a family writes a call. open, close: markers; close is None if calls end the answer.
    pairs: yields the calls between them; raises ValueError for anything else."""

    open: str
    close: str | None
    pairs: Callable[[str, Functions], Iterator[Pair]]


def read_calls(form: CallForm, body: str, functions: Functions) -> list[ToolCall] | None:
    """Return the calls between two markers; None unless it consists of calls of these functions."""
    calls = []
    try:
        for name, arguments in form.pairs(body, functions):
            if isinstance(arguments, str):  # JSON in JSON, as some templates render it
                arguments = json.loads(arguments)
            if name not in functions or not isinstance(arguments, dict):
                return None
            written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            calls.append(ToolCall(f"call_{secrets.token_hex(12)}", name, written))
    except (ValueError, RecursionError, SyntaxError, MemoryError):
        return None
    return calls or None


def bare_calls(text: str, functions: Functions) -> list[ToolCall] | None:
    """Return the calls that an answer without markers consists of, as JSON; None if it is text."""
    text = text.strip().removeprefix(HERMES_OPEN).removesuffix(HERMES_CLOSE)
    return read_calls(CallForm("", None, _json_pairs), text, functions)


def _json_pairs(text: str, _functions: Functions) -> Iterator[Pair]:
    """Yield calls that are JSON objects, or a list of them."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while rest:
        found, end = decoder.raw_decode(rest)
        for each in found if isinstance(found, list) else [found]:
            name = each.get("name", each.get("tool_name")) if isinstance(each, dict) else None
            if not isinstance(name, str):
                raise ValueError("not a call")
            yield name, each.get("arguments", each.get("parameters", {}))
        rest = rest[end:].lstrip(" \n\r\t,;")


def _tagged_pairs(text: str, functions: Functions) -> Iterator[Pair]:
    """Yield calls between Hermes' markers: JSON, or the tags of Qwen 3 Coder or of GLM."""
    start = text.lstrip()
    if start.startswith("<function="):
        yield from _function_pairs(text, functions)
    elif start.startswith("{") or start.startswith("["):
        yield from _json_pairs(text, functions)
    else:
        name, has_arguments, _ = start.partition("<arg_key>")
        name = name.strip()
        rest = start[start.find("<arg_key>") :] if has_arguments else ""
        yield name, _values(name, _all_of(_ARGUMENT, rest), functions)


def _function_pairs(text: str, functions: Functions) -> Iterator[Pair]:
    return _elements(text, _FUNCTION, _PARAMETER, functions)


def _elements(
    text: str, call: re.Pattern[str], parameter: re.Pattern[str], functions: Functions
) -> Iterator[Pair]:
    """Yield calls written as elements of a markup, with one element per argument."""
    at = 0
    while at < len(text.rstrip()):
        found = call.match(text, at)
        if found is None or found.end() == at:
            raise ValueError("not a call")
        name = found[1].strip()
        yield name, _values(name, _all_of(parameter, found[2]), functions)
        at = found.end()


def _all_of(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """Return the groups of all matches. Raises ValueError for a text with anything else."""
    if pattern.sub("", text).strip():
        raise ValueError("not arguments")
    return pattern.findall(text)


def _values(name: str, found: list[tuple[str, str]], functions: Functions) -> dict[str, Any]:
    """Return arguments that were written without quotes: strings, by the schema, as they are, and
    others as JSON where they are JSON."""
    properties = functions.get(name, {}).get("properties")
    values: dict[str, Any] = {}
    for key, text in found:
        schema = properties.get(key.strip()) if isinstance(properties, dict) else None
        values[key.strip()] = text
        if not (isinstance(schema, dict) and schema.get("type") == "string"):
            with suppress(ValueError):
                values[key.strip()] = json.loads(_LITERALS.get(text.strip(), text))
    return values


def _invoke_pairs(text: str, functions: Functions) -> Iterator[Pair]:
    return _elements(text.replace("｜DSML｜", ""), _INVOKE, _INVOKE_PARAMETER, functions)


def _named(pattern: re.Pattern[str]) -> Callable[[str, Functions], Iterator[Pair]]:
    """Return a function that yields one call: a pattern's groups are its name and arguments."""

    def pairs(text: str, _functions: Functions) -> Iterator[Pair]:
        found = pattern.fullmatch(text)
        if found is None:
            raise ValueError("not a call")
        arguments = found[2].strip().removeprefix("```json").removesuffix("```").strip()
        yield found[1], json.loads(arguments or "{}")

    return pairs


def _mistral_pairs(text: str, functions: Functions) -> Iterator[Pair]:
    """Yield the calls up to the end of an answer: a JSON list, or a name and arguments each."""
    if text.lstrip().startswith("["):
        yield from _json_pairs(text, functions)
        return
    for each in text.split("[TOOL_CALLS]"):
        yield from _named(_MISTRAL)(each, functions)


def _gemma_pairs(text: str, _functions: Functions) -> Iterator[Pair]:
    """Yield a call with keys without quotes, and with a token of its own around strings."""
    found = _GEMMA.fullmatch(text)
    if found is None:
        raise ValueError("not a call")
    pieces = re.split(r'<\|"\|>|<escape>', found[2])
    for i, piece in enumerate(pieces):
        is_string = i % 2 == 1
        pieces[i] = json.dumps(piece) if is_string else _GEMMA_KEY.sub(r'\1"\2"\3', piece)
    yield found[1], json.loads("".join(pieces))


def _python_pairs(text: str, functions: Functions) -> Iterator[Pair]:
    """Yield calls written as a Python list of calls with keyword arguments."""
    if text.lstrip().startswith(("{", "[{")):
        yield from _json_pairs(text, functions)
        return
    body = ast.parse(text.strip(), mode="eval").body
    for each in body.elts if isinstance(body, ast.List) else [body]:
        if not isinstance(each, ast.Call) or each.args or not isinstance(each.func, ast.Name):
            raise ValueError("not a call")
        yield each.func.id, {word.arg: _literal(word.value) for word in each.keywords if word.arg}


def _literal(node: ast.expr) -> Any:
    """Return the value of a Python or JSON literal."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    return ast.literal_eval(node)


HERMES = CallForm(HERMES_OPEN, HERMES_CLOSE, _tagged_pairs)
CALL_FORMS = (
    HERMES,  # also Qwen, GLM, Granite, SmolLM3
    CallForm("<|python_tag|>", None, _json_pairs),  # Llama 3
    CallForm("[TOOL_CALLS]", None, _mistral_pairs),
    CallForm("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", _named(_DEEPSEEK)),
    CallForm("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", _invoke_pairs),
    CallForm("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", _invoke_pairs),
    CallForm("<|tool_call>call:", "<tool_call|>", _gemma_pairs),
    CallForm("<start_function_call>call:", "<end_function_call>", _gemma_pairs),
    CallForm("<|tool_call_begin|>", "<|tool_call_end|>", _named(_KIMI)),
    CallForm("<|tool_call_start|>", "<|tool_call_end|>", _python_pairs),  # LFM2
    CallForm("<minimax:tool_call>", "</minimax:tool_call>", _invoke_pairs),
    CallForm("<seed:tool_call>", "</seed:tool_call>", _function_pairs),
    CallForm("<TOOLCALL>", "</TOOLCALL>", _json_pairs),  # Nemotron
    CallForm("<tool_calls>", "</tool_calls>", _json_pairs),  # Apriel, MiniMax M1
    CallForm("<|START_ACTION|>", "<|END_ACTION|>", _json_pairs),  # Command R
    CallForm("<|function_call|>", None, _json_pairs),  # GigaChat
    CallForm("to=functions.", "<|call|>", _named(_HARMONY)),  # gpt-oss
)


def reads_json(form: CallForm) -> bool:
    """Return whether calls in a form may be JSON objects with a name and arguments."""
    return form.pairs in (_json_pairs, _tagged_pairs, _mistral_pairs)
