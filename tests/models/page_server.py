"""A server as the page knows it, without a model: what it answers is written here, by the last
message. It keeps what it was asked, and notices clients that go away.

Sources of tokens are given in the answers: "n:word " is a token that was copied, "s:word " one that
a part of the model drafted, anything else the model's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from pyselfspec.serve.drafter_labels import describe_sources
from pyselfspec.serve.static_files import Page

KEY = "open sesame"
OWN = "full"
SSE = "text/event-stream"
PATHS = ("chat/completions", "completions")
US = {True: 10_000, False: 16_000}  # per token, with drafts and without
SOURCES = {"n:": "ngram", "s:": "layer-skip"}
EVIL = (
    "<img src=x onerror=\"document.title='broken in'\"> <script>document.title='broken in'</script>"
    " [click](javascript:alert(1)) **<b>bold</b>**\n\n```html\n<script>alert(1)</script>\n```\n"
)
MARKDOWN = (
    "## Merging\n\nUse *two* n:**indices** and n:`while`:\n\n```python\ndef s:merge(a, b):\n"
    "    n:return sorted(a + b)\n```\n\nn:- one\n- two\n\n- [x] n:bought\n- [ ] read\n\n1. first\n"
    "2. second\n\n> quoted\n\n" + "a_long_name_without_any_room_to_break_" * 4
)
TABLE = (
    "Rivers:\n\n| River | Length | n:`a\\|b` |\n|:--|--:|---|\n| n:Rhine | 1233 | **long** |\n"
    "| <b>Elbe</b> | 1094 |\n\n```py\n# a note\ndef n:f(x):\n    return 'one' + 2  # end\n```\n"
)
FORMULAS = (
    "So \\(x^2\\) and\n\n$$E = mc^2$$\n\nand n:$a_1$ and\n\\[\nb\n\\]\n"
    "from $5 to $10, $HOME and $\\foo$.\n"
)
MASK = {"n_layer": 12, "skip_attn": [6, 7, 8, 9], "skip_ffn": [8, 9]}


@dataclass
class PageServer:
    """The settings of a test, and the requests that the server received."""

    needs_key: bool = False
    chat_template: bool = True
    plain_differs: bool = False
    reads_pictures: bool = False
    slow_props: bool = False  # they wait for more, too
    breaks_off: bool = False  # after the first step of an answer
    works: tuple[str, ...] = ("ngram", "layer-skip")  # drafters
    models: tuple[str, ...] = ("toy-12b",)
    encoders: tuple[str, ...] = ()  # models of embeddings, listed before the others
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)  # bodies, oldest first
    left: threading.Event = field(default_factory=threading.Event)  # a client went away
    more: threading.Event = field(default_factory=threading.Event)  # "wait" may go on

    def reset(self) -> None:
        """Restore the initial state, for the next test."""
        self.needs_key = self.plain_differs = self.slow_props = self.breaks_off = False
        self.works, self.models = ("ngram", "layer-skip"), ("toy-12b",)
        self.encoders = ()
        self.chat_template, self.reads_pictures = True, False
        self.asked.clear()
        self.left.clear()
        self.more.clear()

    def app(self) -> Starlette:
        answers = [Route(f"/v1/{p}", self.answer, methods=["POST"]) for p in PATHS]
        known = [Route("/props", self.props), Route("/v1/models", self.list)]
        return Starlette(routes=[*known, *answers, Mount("/", Page())])

    async def list(self, request: Request) -> Response:
        data = [{"id": name, "capabilities": ["embedding"]} for name in self.encoders]
        data += [{"id": name, "capabilities": ["completion"]} for name in self.models]
        return self.refused(request) or JSONResponse({"data": data})

    def refused(self, request: Request) -> Response | None:
        if not self.needs_key or request.headers.get("authorization") == f"Bearer {KEY}":
            return None
        return error(401, "missing or wrong API key")

    async def props(self, request: Request) -> Response:
        if self.slow_props:
            await self.until_more(request)
        return self.refused(request) or JSONResponse(
            {
                "model": request.query_params.get("model", "toy-12b"),
                "n_layer": 12,
                "n_ctx": 2048,
                "n_share": 512,
                "default_generation_settings": {"params": {"temperature": 0.35}},
                "n_params": 134_515_008,
                "n_bytes": 98_362_432,
                "type": "Q4_1",
                "drafters": describe_sources(self.works),
                "chat_template": self.chat_template,
                "modalities": {"vision": self.reads_pictures},
            }
        )

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        is_chat = request.url.path.endswith("chat/completions")
        said = said_last(body["messages"]) if is_chat else body["prompt"]
        if refused := self.refused(request):
            return refused
        if said == "busy":
            return error(503, "all slots are taken")
        if said == "too long":
            return error(
                400,
                "the prompt has 4096 tokens, the context 2048; "
                "give a larger n_ctx (-c) or a shorter prompt",
            )
        return StreamingResponse(self.chunks(body, said, is_chat, request), media_type=SSE)

    async def chunks(
        self, body: dict[str, Any], said: str, is_chat: bool, request: Request
    ) -> AsyncIterator[str]:
        """Yield the answer step by step: draft tokens, then the model's own."""
        if said == "slow prompt":
            read = {"total": 300, "cache": 100, "processed": 184}
            yield event({"choices": [{"index": 0, "delta": {}}], "prompt_progress": read})
            await self.until_more(request)
        drafts = body["pyselfspec"]["draft"] is not None and bool(self.works)
        step: list[list[str]] = []
        n, limit = 0, body.get("max_tokens", 1000)
        for token, source in self.tokens_after(body, said, drafts)[:limit]:
            n += 1
            step.append([token, source if drafts else OWN])
            if step[-1][1] == OWN:
                yield chunk(is_chat, step, len(step) * US[drafts])
                step = []
                if self.breaks_off:
                    return
            if said == "wait" and n == 5:
                yield chunk(is_chat, step, len(step) * US[drafts])
                step = []
                await self.until_more(request)
        if step:
            yield chunk(is_chat, step, len(step) * US[drafts])
        if said == "break":
            return
        if said == "fail":
            yield event({"error": {"message": "the model is out of memory"}})
            return
        yield chunk(is_chat, [], 0, "length" if n == limit else "stop")
        yield event({"choices": [], "usage": {"pyselfspec": statistics(n, drafts, self.works)}})
        yield "data: [DONE]\n\n"

    def tokens_after(self, body: dict[str, Any], said: str, drafts: bool) -> list[tuple[str, str]]:
        """Return the tokens of the answer with their sources, or the rest of a continued answer."""
        found = tokens(self.text(said, drafts))
        n_chars = 0
        if body["pyselfspec"].get("continue"):
            n_chars = len(body["messages"][-1]["content"])
        while n_chars > 0:
            n_chars -= len(found.pop(0)[0])
        return found

    def text(self, said: str, drafts: bool) -> str:
        other = " otherwise" if self.plain_differs and not drafts else ""
        return {
            "html": EVIL,
            "markdown": MARKDOWN,
            "table": TABLE,
            "formulas": FORMULAS,
            "think": "<think>\nThe n:user wants *that*.\n</think>\n\nHere it is.",
            "long": "A line of many.\n\n" * 60,
        }.get(said, f"The n:old n:king s:had s:two sons{other}.")

    async def until_more(self, request: Request) -> None:
        try:
            while not self.more.is_set():
                if await request.is_disconnected():
                    raise asyncio.CancelledError
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.left.set()
            raise

    @contextlib.contextmanager
    def running(self) -> Iterator[PageServer]:
        """On a free port of the loopback."""
        config = uvicorn.Config(self.app(), log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            try:
                yield self
            finally:
                server.should_exit = True
                thread.join()


def said_last(messages: list[dict[str, Any]]) -> str:
    """Return the text of the last user message, "" for one of pictures only."""
    said = [each["content"] for each in messages if each["role"] == "user"][-1]
    if isinstance(said, str):
        return said
    return "".join(each.get("text", "") for each in said)


def tokens(text: str) -> list[tuple[str, str]]:
    """Return words with the white space after them, and their sources."""
    words = re.findall(r"\S+\s*", text)
    return [(word[2:], SOURCES[word[:2]]) if word[:2] in SOURCES else (word, OWN) for word in words]


def statistics(n: int, drafts: bool, works: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of GenerationStats.to_dict that the page reads."""
    us = n * US[drafts]
    found: dict[str, Any] = {"n_generated": n, "n_steps": n, "tokens_per_second": 1e6 / US[drafts]}
    found |= {"prefill_us": 0, "total_us": us, "draft_us": 0, "verify_us": us}
    found |= {"estimated_speedup": None, "mask": None, "n_drafted": 0, "n_accepted": 0}
    if not drafts:
        return found | {"n_drafted_at": [], "n_accepted_at": [], "sources": {}}
    found["mask"] = MASK if "layer-skip" in works else None
    skipped = [1, 1] if n >= 6 else []  # by position, all of which were right
    return found | {
        "n_steps": n / 2,
        "estimated_speedup": 1.42,
        "n_drafted": 4 + sum(skipped),
        "n_accepted": 2 + sum(skipped),
        "n_drafted_at": [2, 2, *skipped],
        "n_accepted_at": [1, 1, *skipped],
        "sources": {
            "ngram": {"n_drafted_at": [2, 2], "n_accepted_at": [1, 1]},
            "layer-skip": {"n_drafted_at": [0, 0, *skipped], "n_accepted_at": [0, 0, *skipped]},
        },
    }


def chunk(is_chat: bool, step: list[list[str]], us: int, finish: str | None = None) -> str:
    """One of OpenAI's, and the tokens that it adds."""
    text = "".join(token for token, _source in step)
    choice = {"delta": {"content": text}} if is_chat else {"text": text}
    choices = [{"index": 0, "finish_reason": finish, **choice}]
    return event({"choices": choices, "pyselfspec": {"tokens": step, "us": us}})


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "error"}}, status)
