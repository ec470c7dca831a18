"""The rules of a GBNF grammar for the values that JSON schemas allow.

Rules are written one by one, from a list of schemas that are left, so that no depth of a schema or
chain of references needs a deep stack. Equal schemas share a rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ...errors import ArgumentError
from ...util.paths import on_one_line
from ..grammar import N_GRAMMAR
from .letters import ANY, complement, letters, one_letter, quoted, union, written
from .numbers import Bound, between
from .parts import ALLOWING, BOUNDS, merged
from .patterns import PatternError, pattern_to_gbnf

N_RULES = 1 << 15

# JSON itself. A number has few digits, so that a model cannot write them for ever.
JSON_RULES = {
    "space": r'"" | " " | "\n" [ \t]{0,20}',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" space (string ":" space value ("," space string ":" space value)* space)? "}"',
    "array": '"[" space (value ("," space value)* space)? "]"',
    "string": r'"\"" char* "\""',
    "char": 'plain | "\\\\" (["\\\\/bfnrt] | unicode)',
    "plain": r"[\x20\x21\x23-\x5B\x5D-\x7E\x80-\uD7FF\uE000-\U0010FFFF]",
    # an escape, or two, for one character: halves of characters are not let through alone
    "unicode": r'"u" ([0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex '
    r'| [dD] [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex)',
    "hex": "[0-9a-fA-F]",
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": 'integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9] [0-9]?)?',
    "boolean": '"true" | "false"',
    "null": '"null"',
}
FORMATS = {
    "date": '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])',
    "time": '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{3})? '
    '("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])',
    "uuid": 'hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}',
}
FORMATS["date-time"] = f'{FORMATS["date"]} "T" {FORMATS["time"]}'
TYPE_OF = {  # by keyword: the type of the values that a schema without a type means
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("pattern", "format", "minLength", "maxLength"), "string"),
    **dict.fromkeys(BOUNDS, "number"),
}


def unsupported(reason: str) -> ArgumentError:
    """Return the error for a schema that cannot become a grammar."""
    return ArgumentError(f"this JSON schema is not supported: {on_one_line(reason)}")


class SchemaRules:
    """Rules of one grammar; several schemas may add theirs.

    most: larger upper bounds of lengths and repetitions are left out.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._texts = dict(JSON_RULES)
        self._names: dict[str, str] = {}  # of rules, by their texts
        self._n_characters = 0

    def reserve(self) -> str:
        """Return the name of a rule that `define` will give a text."""
        if len(self._texts) > N_RULES:
            raise too_large()
        name = f"rule{len(self._texts)}"
        self._texts[name] = ""
        return name

    def define(self, name: str, text: str) -> None:
        """Give a rule its text."""
        self._n_characters += len(text)
        if self._n_characters > N_GRAMMAR:
            raise too_large()
        self._texts[name] = text

    def name(self, text: str) -> str:
        """Return the name of a rule with this text, which is added if there is none."""
        if text not in self._names:
            self._names[text] = self.reserve()
            self.define(self._names[text], text)
        return self._names[text]

    def gbnf(self, root: str) -> str:
        """Return the grammar of a text."""
        lines = (f"{name} ::= {text}\n" for name, text in self._texts.items())
        return f"root ::= {root}\n{''.join(lines)}"


def too_large() -> ArgumentError:
    """Return the error for a schema whose grammar would be too large."""
    return ArgumentError("this JSON schema is too large when its parts are written out")


class SchemaWriter:
    """Writes the rules of one schema.

    target: returns the part of it that a reference points to.
    """

    def __init__(self, rules: SchemaRules, target: Callable[[str], Mapping[str, Any]]) -> None:
        self._rules = rules
        self._target = target
        self._names: dict[str, str] = {}  # of rules, by the text of their schemas
        self._left: list[tuple[str, Mapping[str, Any]]] = []
        self._same: dict[str, list[str]] = {}  # by rule: others that one of its texts is a text of
        self._pointers: dict[str, str] = {}  # by rule that is a reference

    def write(self, schema: Mapping[str, Any]) -> str:
        """Write the rules of a schema and of all its parts; return the name of the first one."""
        first = self._rule(schema)
        while self._left:
            name, each = self._left.pop()
            self._rules.define(name, self._text(name, each))
        try:
            TopologicalSorter(self._same).prepare()
        except CycleError as error:
            pointer = next((self._pointers[n] for n in error.args[1] if n in self._pointers), "#")
            raise unsupported(f'the reference "{pointer}" leads back to itself') from None
        return first

    def _rule(self, schema: Any) -> str:
        """Return the name of the rule of a schema, which may be written later."""
        if schema is True or (isinstance(schema, Mapping) and schema.keys() <= ALLOWING):
            return "value"
        key = json.dumps(schema)
        if key not in self._names:
            self._names[key] = self._rules.reserve()
            self._left.append((self._names[key], schema))
        return self._names[key]

    def _text(self, name: str, schema: Mapping[str, Any]) -> str:
        """Return the text of the rule of a schema."""
        if "$ref" in schema and schema.keys() - ALLOWING == {"$ref"}:
            self._pointers[name] = schema["$ref"]
            return self._either(name, [self._target(schema["$ref"])])
        if "$ref" in schema or "allOf" in schema:
            return self._either(name, [merged(self._parts(schema), unsupported)])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                rest = {k: value for k, value in schema.items() if k != key and k not in ALLOWING}
                return self._either(name, self._joined(rest, schema[key]) if rest else schema[key])
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return " | ".join(map(literal, values))
        kind = schema.get("type") or next((TYPE_OF[k] for k in schema if k in TYPE_OF), None)
        if isinstance(kind, list):
            return self._either(name, [{**schema, "type": each} for each in kind])
        if kind is None:
            raise unsupported(
                "a part of it has no type, and nothing else that a grammar can be made from"
            )
        return self._typed(kind, schema)

    def _either(self, name: str, schemas: Sequence[Mapping[str, Any]]) -> str:
        self._same[name] = [self._rule(each) for each in schemas]
        return " | ".join(dict.fromkeys(self._same[name]))

    def _joined(
        self, schema: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Return each of several schemas, as far as it can hold together with another one."""
        found: list[Mapping[str, Any]] = []
        for each in choices:
            parts = list(self._parts({"allOf": [schema, each]}))
            try:
                found.append(merged(parts, unsupported))
            except ArgumentError as error:
                fault = error
        if not found:
            raise fault
        return found

    def _parts(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that all have to hold, without references and lists of these."""
        left, seen = [schema], set()
        while left:
            each = left.pop(0)
            pointer = each.get("$ref")
            if pointer is not None and pointer not in seen:
                seen.add(pointer)
                left.append(self._target(pointer))
            left += each.get("allOf", ())
            yield {key: value for key, value in each.items() if key not in ("$ref", "allOf")}

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> str:
        if kind == "string":
            return self._string(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "object":
            return self._object(schema)
        if kind in ("number", "integer") and not BOUNDS.isdisjoint(schema):
            return _number(schema, are_whole=kind == "integer")
        return kind

    def _counts(self, schema: Mapping[str, Any], what: str) -> tuple[int, int | None]:
        """Return the lower bound of a count, and the upper one or None."""
        low, high = int(schema.get(f"min{what}", 0)), schema.get(f"max{what}")
        if high is not None and high < low:
            raise unsupported(f"max{what} {high} is below min{what} {low}")
        return low, None if high is None or high > max(self._rules.most, low) else int(high)

    def _string(self, schema: Mapping[str, Any]) -> str:
        form = schema.get("format")
        if "pattern" in schema:
            try:
                inside = pattern_to_gbnf(schema["pattern"], self._rules.name, self._rules.most)
            except PatternError as error:
                raise unsupported(f"the pattern {schema['pattern'][:80]}: {error}") from None
        elif form in FORMATS:
            inside = FORMATS[form]
        else:
            low, high = self._counts(schema, "Length")
            if low == 0 and high is None:
                return "string"
            inside = self._rules.name(_repeated("char", low, high))
        return rf'"\"" ({inside}) "\""'

    def _array(self, schema: Mapping[str, Any]) -> str:
        items = schema.get("items", "prefixItems" not in schema)
        first = schema.get("prefixItems", ())
        if isinstance(items, list):  # as in older drafts
            items, first = False, items
        low, high = self._counts(schema, "Items")
        parts = [self._rule(each) for each in first[:high]]
        if "items" not in schema and low > len(parts):
            items = True
        if items is False or high == len(parts):
            if low > len(parts):
                raise unsupported(f"minItems {low} is above the {len(parts)} that are allowed")
            return f'"[" space {_listed([f"{each} space" for each in parts])} "]"'
        item = self._rule(items)
        if not parts:
            more = _repeated(f'("," space {item})', max(low - 1, 0), high and high - 1)
            return f'"[" space ({item} {more} space){"" if low else "?"} "]"'
        n = len(parts)
        more = _repeated(f'("," space {item})', max(low - n, 0), high and high - n)
        return f'"[" space {_listed(parts)} {more} space "]"'

    def _object(self, schema: Mapping[str, Any]) -> str:
        required = schema.get("required", ())
        named = dict(schema.get("properties", {}))
        for name in required:
            named.setdefault(name, True)
        others = schema.get("additionalProperties", "properties" not in schema)
        if not named and others is True:
            return "object"
        more = None
        if others is not False:
            key = self._other_names(list(named)) if named else "char*"
            more = rf'"\"" {key} "\"" ":" space {self._rule(others)}'
        members = {
            f'{quoted(written(name))} ":" space {self._rule(each)}': name in required
            for name, each in named.items()
        }
        return self._members(members, more and self._rules.name(more))

    def _members(self, members: Mapping[str, bool], more: str | None) -> str:
        """Return an object with these members in this order, each required or not, and any number
        of others."""
        add = self._rules.name
        # what may follow a member, and what may follow the opening brace
        after = add(f'("," space {more})* space') if more else "space"
        begin = f"({more} {after})?" if more else '""'
        for text, is_required in reversed(list(members.items())):
            member = add(text)
            begin = f"{member} {after}" + ("" if is_required else f" | {add(begin)}")
            after = add(f'("," space {member}){"" if is_required else "?"} {after}')
        return f'"{{" space ({begin}) "}}"'

    def _other_names(self, names: Sequence[str]) -> str:
        """Return a rule of the inside of all strings but these."""
        add = self._rules.name
        plain = add(letters(ANY)) + "*"  # without \u0061, another spelling of a name's letter
        ways: list[dict[str, int]] = [{}]  # by beginning of a name: those that are a letter longer
        ends = set()
        for name in names:
            at = 0
            for letter in name:
                at = ways[at].setdefault(letter, len(ways))
                if at == len(ways):
                    ways.append({})
            ends.add(at)
        known: dict[int, str] = {}
        for at in reversed(range(len(ways))):
            others = letters(complement(union((ord(each), ord(each)) for each in ways[at])))
            choices = [f"{one_letter(each)} {known[longer]}" for each, longer in ways[at].items()]
            choices += [f"({others}) {plain}"] + ([] if at in ends else ['""'])
            known[at] = add(" | ".join(choices))
        return known[0]


def literal(value: Any) -> str:
    """Return GBNF for a JSON value, with space where JSON allows it."""
    if isinstance(value, list):
        return f'"[" space {_listed([f"{literal(each)} space" for each in value])} "]"'
    if isinstance(value, Mapping):
        members = [f'{quoted(written(k))} ":" space {literal(v)} space' for k, v in value.items()]
        return f'"{{" space {_listed(members)} "}}"'
    return quoted(written(value))


def _listed(parts: Sequence[str]) -> str:
    return ' "," space '.join(parts)


def _repeated(item: str, low: int, high: int | None) -> str:
    return '""' if high == 0 else f"{item}{{{low},{'' if high is None else high}}}"


def _number(schema: Mapping[str, Any], *, are_whole: bool) -> str:
    lows: list[Bound] = []
    highs: list[Bound] = []
    for found, end, strict in (
        (lows, "minimum", "exclusiveMinimum"),
        (highs, "maximum", "exclusiveMaximum"),
    ):
        is_strict = schema.get(strict) is True  # as in older drafts
        if end in schema:
            found.append(Bound(Fraction(str(schema[end])), is_strict))
        if strict in schema and not isinstance(schema[strict], bool):
            found.append(Bound(Fraction(str(schema[strict])), True))
    low = max(lows, key=lambda each: (each.value, each.is_strict), default=None)
    high = min(highs, key=lambda each: (each.value, not each.is_strict), default=None)
    if low is None and high is None:
        return "integer" if are_whole else "number"
    text = between(low, high, are_whole=are_whole)
    if not text:
        raise unsupported("a part of it has bounds that no number is between")
    return text
