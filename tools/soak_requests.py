"""Requests of a soak, for every door of the server, and what answers say, whole or as streams."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

WORDS = (
    "king queen daughter river mountain bread castle stranger horse garden winter promise".split()
)
N_JOBS = 96
OPENING = " ".join(random.Random(0).choices(WORDS, k=40))
GRAMMAR = 'root ::= ("yes" | "no" | "perhaps") ("," " " [a-z]+)? "."'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Anna", "Otto"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"name": "look_up", "description": "Finds a person.", "parameters": SCHEMA}

Json = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A request. can_stream: whether its answer may be a stream. is_bad: whether it is refused."""

    path: str
    body: Json
    can_stream: bool = True
    is_bad: bool = False


@dataclass
class Maker:
    """Makes jobs. model: its name among several, None where there is one."""

    rng: random.Random
    model: str | None = None
    n_made: int = field(default=0, init=False)

    def job(self) -> Job:
        door = DOORS[self.n_made % len(DOORS)]
        self.n_made += 1
        found = door(self)
        if self.model is None:
            return found
        return replace(found, body=found.body | {"model": self.model})

    def words(self) -> str:
        """Texts of all lengths, many with a common beginning."""
        opening = OPENING if self.rng.random() < 0.5 else ""
        return f"{opening} {' '.join(self.rng.choices(WORDS, k=self.rng.randint(1, 120)))}".strip()

    def sampling(self) -> Json:
        return {"temperature": self.rng.choice([0, 0.8]), "seed": self.rng.randrange(1000)}

    def drafts(self) -> Json:
        return {"pyselfspec": {"draft": self.rng.choice(["auto", "ngram", None])}}

    def n_tokens(self) -> int:
        return self.rng.randint(1, 60)

    def said(self) -> list[Json]:
        return [{"role": "user", "content": self.words()}]

    def completion(self) -> Job:
        body = {"prompt": self.words(), "max_tokens": self.n_tokens()} | self.sampling()
        more: list[Json] = [
            {}, {"logprobs": 3}, {"n": 3}, {"grammar": GRAMMAR}, {"best_of": 3}, {"echo": True},
            {"prompt": [self.words(), self.words()]}, {"stop": ["the", "\n"]},
            {"json_schema": SCHEMA}, {"repeat_penalty": 1.2, "top_k": 20, "min_p": 0.05},
        ]  # fmt: skip
        chosen = self.rng.choice(more)
        return Job("/v1/completions", body | self.drafts() | chosen, "best_of" not in chosen)

    def chat(self) -> Job:
        body = {"messages": self.said(), "max_tokens": self.n_tokens()} | self.sampling()
        tools = {"tools": [{"type": "function", "function": TOOL}], "max_tokens": 100}
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        more: list[Json] = [
            {}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"grammar": GRAMMAR},
            {"response_format": schema, "max_tokens": 100}, tools,
            tools | {"tool_choice": "required"},
        ]  # fmt: skip
        return Job("/v1/chat/completions", body | self.drafts() | self.rng.choice(more))

    def message(self) -> Job:
        body = {"messages": self.said(), "max_tokens": self.n_tokens()} | self.sampling()
        tool = {"name": "look_up", "input_schema": SCHEMA}
        forced = {"tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 100}
        style = {"format": {"type": "json_schema", "schema": SCHEMA}}
        more: list[Json] = [
            {}, {"stop_sequences": ["the"]}, forced, {"output_config": style, "max_tokens": 100},
        ]  # fmt: skip
        return Job("/v1/messages", body | self.drafts() | self.rng.choice(more))

    def response(self) -> Job:
        body = {"input": self.words(), "max_output_tokens": self.n_tokens()} | self.sampling()
        tools = [{"type": "function"} | TOOL]
        forced = {"tools": tools, "tool_choice": "required", "max_output_tokens": 100}
        style = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
        more: list[Json] = [{}, forced, {"text": style, "max_output_tokens": 100}]
        return Job("/v1/responses", body | self.drafts() | self.rng.choice(more))

    def ollama(self) -> Job:
        options = self.sampling() | {"num_predict": self.n_tokens()}
        if self.rng.random() < 0.5:
            body = {"messages": self.said(), "options": options, "stream": False}
            return Job("/api/chat", body | self.rng.choice([{}, {"format": SCHEMA}]))
        body = {"prompt": self.words(), "options": options, "stream": False}
        return Job("/api/generate", body | self.rng.choice([{}, {"raw": True}]))

    def plain(self) -> Job:
        body = {"prompt": self.words(), "n_predict": self.n_tokens()} | self.sampling()
        return Job("/completion", body | self.drafts() | self.rng.choice([{}, {"stop": ["the"]}]))

    def count(self) -> Job:
        """Requests without a text that is generated."""
        words, said = self.words(), self.said()
        more: list[tuple[str, Json]] = [
            ("/tokenize", {"content": words, "with_pieces": True}),
            ("/detokenize", {"tokens": [self.rng.randrange(3, 200) for _ in range(50)]}),
            ("/v1/messages/count_tokens", {"messages": said}),
            ("/v1/responses/input_tokens", {"input": words}),
            ("/v1/chat/completions/input_tokens", {"messages": said}),
            ("/apply-template", {"messages": said}),
        ]
        return Job(*self.rng.choice(more), can_stream=False)

    def fill(self) -> Job:
        """Which models that were not trained for it refuse."""
        body = {"input_prefix": self.words(), "input_suffix": self.words(), "n_predict": 20}
        return Job("/infill", body | self.sampling(), can_stream=False)

    def vectors(self) -> Job:
        """Which models of text refuse."""
        path = self.rng.choice(["/v1/embeddings", "/api/embed"])
        return Job(path, {"input": [self.words(), self.words()]}, can_stream=False)

    def bad(self) -> Job:
        more: list[tuple[str, Json]] = [
            ("/v1/completions", {"prompt": "x", "grammar": "root ::= ("}),
            ("/v1/completions", {"prompt": "x", "json_schema": {"type": "none"}}),
            ("/v1/completions", {"prompt": "king " * 3000}),
            ("/v1/chat/completions", {"messages": self.said(), "max_tokens": -5}),
            ("/v1/messages", {"messages": [], "max_tokens": 5}),
            ("/v1/responses", {"input": 3}),
            ("/api/chat", {"messages": [{"role": "nobody"}], "stream": False}),
        ]
        return Job(*self.rng.choice(more), can_stream=False, is_bad=True)

    def heavy(self) -> Job:
        """A large answer, which a slow reader holds up."""
        body = {"prompt": self.words(), "n": 4, "max_tokens": 100, "ignore_eos": True}
        more = {"logprobs": 20} if self.model is None else {"logprobs": 20, "model": self.model}
        return Job("/v1/completions", body | self.sampling() | self.drafts() | more)


DOORS: list[Callable[[Maker], Job]] = [
    Maker.completion, Maker.chat, Maker.message, Maker.response, Maker.ollama, Maker.plain,
    Maker.count, Maker.fill, Maker.vectors, Maker.bad,
]  # fmt: skip


def told(events: Iterable[Json]) -> dict[str, str]:
    """Return the texts, calls, log probabilities and ends of an answer, by place. events: of a
    stream, or one, the whole answer."""
    found: defaultdict[str, str] = defaultdict(str)
    for event in events:
        for place, text in _pieces(event):
            found[place] += text
    for place in found:
        if place.endswith("input") and found[place]:  # of a tool, which streams send as text
            found[place] = json.dumps(json.loads(found[place]))
    return {place: text for place, text in found.items() if text}


def _pieces(event: Json) -> Iterator[tuple[str, str]]:
    kind = str(event.get("type") or event.get("object") or "")
    if error := event.get("error") or (event if kind == "error" else None):
        yield "error", error if isinstance(error, str) else error["message"]
    elif "choices" in event:
        for choice in event["choices"]:
            yield from _of_choice(choice)
    elif kind.startswith("response") and kind != "response.input_tokens":
        yield from _of_response(kind, event)
    elif kind.startswith(("message", "content_block")):
        yield from _of_message(kind, event)
    elif "done" in event:
        message = event.get("message") or {"content": event.get("response")}
        yield "text", message["content"]
        yield "thinking", message.get("thinking") or ""
        yield "calls", json.dumps(message["tool_calls"]) if "tool_calls" in message else ""
        yield "end", event.get("done_reason") or ""
    elif "stop" in event:
        yield "text", event["content"]
        yield "end", f"{event.get('stop_type', '')}{event.get('stopping_word', '')}"
    elif kind != "ping":
        yield "whole", json.dumps({k: v for k, v in event.items() if "duration" not in k})


def _of_choice(choice: Json) -> Iterator[tuple[str, str]]:
    """OpenAI's completions and chats."""
    i = choice["index"]
    message = choice.get("message") or choice.get("delta") or {}
    yield f"{i} text", choice.get("text") or message.get("content") or ""
    for k, call in enumerate(message.get("tool_calls") or ()):
        place, function = f"{i} call {call.get('index', k)}", call["function"]
        yield place, (function.get("name") or "") + (function.get("arguments") or "")
    logprobs = choice.get("logprobs") or {}
    rows = logprobs.get("content") or zip(
        *(logprobs.get(name) or () for name in ("tokens", "token_logprobs", "top_logprobs")),
        strict=True,
    )
    for row in rows:
        yield f"{i} logprobs", json.dumps(row)
    yield f"{i} end", choice.get("finish_reason") or ""


def _of_response(kind: str, event: Json) -> Iterator[tuple[str, str]]:
    """OpenAI's responses."""
    if kind == "response":
        for i, item in enumerate(event["output"]):
            text = "".join(part["text"] for part in item.get("content") or ())
            yield f"{i} {item['type']}", text + item.get("arguments", "")
        yield "end", event["status"]
    elif kind.endswith(("output_text.delta", "arguments.delta")):
        name = "message" if "text" in kind else "function_call"
        yield f"{event['output_index']} {name}", event["delta"]
    elif kind == "response.failed":
        yield "error", json.dumps(event["response"]["error"])
    elif kind in ("response.completed", "response.incomplete"):
        yield "end", event["response"]["status"]


def _of_message(kind: str, event: Json) -> Iterator[tuple[str, str]]:
    """Anthropic's messages."""
    if kind == "message":
        for i, block in enumerate(event["content"]):
            yield f"{i} text", block.get("text") or block.get("name") or ""
            yield f"{i} input", json.dumps(block["input"]) if "input" in block else ""
        yield "end", event["stop_reason"]
    elif kind == "content_block_start":
        yield f"{event['index']} text", event["content_block"].get("name") or ""
    elif kind == "content_block_delta":
        delta, i = event["delta"], event["index"]
        yield f"{i} text", delta.get("text") or ""
        yield f"{i} input", delta.get("partial_json") or ""
    elif kind == "message_delta":
        yield "end", event["delta"]["stop_reason"]
