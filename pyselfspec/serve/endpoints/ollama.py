"""Ollama's API: chats, prompts and embeddings, and descriptions of the models."""

from __future__ import annotations

import hashlib
import json
import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ... import __version__
from ...answers.form import AnswerForm
from ...answers.parts import Called, Part, Reasoning, Said
from ...answers.reader import AnswerReader
from ...runtime.vocabulary import fill_tokens
from ..chat_requests.chats import open_chat
from ..engine.jobs import Delta, Finished
from ..model_card import FileCard
from ..protocol.errors import json_response
from ..protocol.response_fields import finish_reason, utc_text
from ..protocol.writers import NDJSON, Answer, Json, ResponseWriter, respond
from ..service import Service
from .completions import open_completions
from .embeddings import vectors
from .ollama_request import (
    FORM,
    ApiChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    ModelRequest,
    OllamaError,
    prompt_to_chat,
    served_name,
    to_chat,
    to_completion,
)
from .routers import Embedding, Serving, Writing, aside, errors, router

WRITING, EMBEDDING, ROUTER = router(), router(), router()

VERSION = "0.12.0"  # of Ollama, whose API this is: clients refuse servers of earlier versions
ALWAYS_LOADED = timedelta(days=36525)  # in place of the time when a model is unloaded
_ERRORS = errors(OllamaError)
_LINES = _ERRORS | {200: {"content": {NDJSON: {}}}}


def entry(name: str, file: FileCard) -> Json:
    """Return the entry of a model in the list of models."""
    changed = datetime.fromtimestamp(file.changed_at, UTC)
    identity = f"{name} {file.n_bytes} {file.changed_at}"
    return {
        "name": name,
        "model": name,
        "modified_at": utc_text(changed),
        "size": file.n_bytes,
        "digest": hashlib.sha256(identity.encode(errors="replace")).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": file.architecture,
            "families": [file.architecture],
            "parameter_size": file.params_text,
            "quantization_level": file.file_type,
        },
        "capabilities": file.capabilities,
    }


def loaded_entry(name: str, file: FileCard, left_s: float | None) -> Json:
    """Return the entry of a model in the list of loaded models. left_s: seconds until it is
    unloaded, None for never."""
    left = ALWAYS_LOADED if left_s is None else timedelta(seconds=max(0.0, left_s))
    return entry(name, file) | {
        "expires_at": utc_text(datetime.now(UTC) + min(left, ALWAYS_LOADED)),
        "size_vram": 0,
    }


def version() -> Json:
    """Return the version of this API, and of this program."""
    return {"version": VERSION, "pyselfspec": __version__}


@ROUTER.get("/api/version")
async def get_version(service: Serving) -> Response:
    """Return the version of Ollama whose API this is."""
    return json_response(version())


@ROUTER.get("/api/tags")
async def get_tags(service: Serving) -> Response:
    """Return the list of models."""
    return json_response({"models": [entry(service.settings.name, service.file_card())]})


@ROUTER.get("/api/ps")
async def get_ps(service: Serving) -> Response:
    """Return the list of loaded models."""
    listed = loaded_entry(service.settings.name, service.file_card(), None)
    return json_response({"models": [listed]})


@ROUTER.post("/api/show", responses=_ERRORS)
async def post_show(service: Serving, body: ModelRequest) -> Response:
    """Return a description of a model."""
    name = served_name(body.model, [service.settings.name])
    file = service.model.file
    kind = file.architecture
    template = service.template if isinstance(service, Service) else None
    listed = entry(name, service.file_card())
    return json_response(
        {
            "license": file.licence,
            "modelfile": "",
            "parameters": "",
            "template": "" if template is None else template.source,
            "details": listed["details"],
            "model_info": {
                "general.architecture": kind,
                "general.basename": file.name,
                "general.parameter_count": file.n_params,
                f"{kind}.block_count": file.n_layer,
                f"{kind}.context_length": file.context_length,
                f"{kind}.embedding_length": file.n_embd,
                f"{kind}.attention.head_count": file.n_head,
                f"{kind}.vocab_size": file.n_vocab,
            },
            "capabilities": await aside(_capabilities, service),
            "modified_at": listed["modified_at"],
        }
    )


def _capabilities(service: Serving) -> list[str]:
    found = list(service.file_card().capabilities)
    if not isinstance(service, Service):
        return found
    if service.template is not None:
        found.append("tools")
        if AnswerForm.of(service.template.all_sources).think:
            found.append("thinking")
    if service.projector is not None:
        found.append("vision")
    if service.model.has_vocab and fill_tokens(service.model) is not None:
        found.append("insert")
    return found


@WRITING.post("/api/chat", responses=_LINES)
async def post_chat(service: Writing, body: ApiChatRequest, request: Request) -> Response:
    """Answer a chat."""
    name = served_name(body.model, [service.settings.name])
    if not body.messages:
        return json_response(ChatWriter(name, _plain_reader(), 0, stream=False).loaded())
    chat = await open_chat(service, to_chat(body))
    writer = ChatWriter(name, chat.reader(), chat.n_prompt, stream=body.stream)
    return await respond(service, request, chat.jobs, writer)


@WRITING.post("/api/generate", responses=_LINES)
async def post_generate(service: Writing, body: GenerateRequest, request: Request) -> Response:
    """Answer a prompt; without a chat template, or around a gap, continue it."""
    name = served_name(body.model, [service.settings.name])
    if body.is_empty:
        return json_response(PromptWriter(name, _plain_reader(), 0, stream=False).loaded())
    if body.raw or body.suffix or service.template is None:
        [prompt], jobs = await open_completions(service, to_completion(body), None)
        writer = PromptWriter(name, _plain_reader(), len(prompt), stream=body.stream)
        return await respond(service, request, jobs, writer)
    chat = await open_chat(service, prompt_to_chat(body))
    writer = PromptWriter(name, chat.reader(), chat.n_prompt, stream=body.stream)
    return await respond(service, request, chat.jobs, writer)


@EMBEDDING.post("/api/embed", responses=_ERRORS)
async def post_embed(service: Embedding, body: EmbedRequest, request: Request) -> Response:
    """Return the vectors of texts."""
    name, start = served_name(body.model, [service.settings.name]), time.monotonic_ns()
    rows, n_tokens = await vectors(service, request, body.input, body.dimensions)
    return json_response(
        {
            "model": name,
            "embeddings": [row.tolist() for row in rows],
            "total_duration": time.monotonic_ns() - start,
            "load_duration": 0,
            "prompt_eval_count": n_tokens,
        }
    )


@EMBEDDING.post("/api/embeddings", responses=_ERRORS)
async def post_embeddings(
    service: Embedding, body: EmbeddingsRequest, request: Request
) -> Response:
    """Return the vector of a text."""
    served_name(body.model, [service.settings.name])
    [row], _ = await vectors(service, request, body.prompt, None)
    return json_response({"embedding": row.tolist()})


class _AnswerWriter(ResponseWriter):
    """Writes an answer. name: of the model. n_prompt: tokens of the prompt."""

    FORM = FORM

    def __init__(self, name: str, reader: AnswerReader, n_prompt: int, *, stream: bool) -> None:
        super().__init__(stream=stream)
        self._name = name
        self._reader = reader
        self._n_prompt = n_prompt
        self._start_ns = time.monotonic_ns()

    def whole(self, answers: Sequence[Answer]) -> Json:
        [answer] = answers
        parts = [*self._reader.push(answer.text), *self._reader.finish()]
        return self._line(parts) | self._end(answer.finished)

    def delta(self, i: int, delta: Delta) -> list[Json]:
        return [self._line([part]) for part in self._reader.push(delta.text)]

    def end(self, i: int, finished: Finished) -> list[Json]:
        rest = [self._line([part]) for part in self._reader.finish()]
        return [*rest, self._line([]) | self._end(finished)]

    def loaded(self) -> Json:
        """Return the response to a request that only loads the model."""
        return self._line([]) | {"done": True, "done_reason": "load"}

    def _line(self, parts: Sequence[Part]) -> Json:
        head = {"model": self._name, "created_at": utc_text(datetime.now(UTC))}
        return head | self._fields(parts) | {"done": False}

    @abstractmethod
    def _fields(self, parts: Sequence[Part]) -> Json: ...

    def _end(self, finished: Finished) -> Json:
        """Return the fields at the end of an answer. Times are in nanoseconds."""
        stats = finished.stats
        return {
            "done": True,
            "done_reason": finish_reason(finished),
            "total_duration": time.monotonic_ns() - self._start_ns,
            "load_duration": 0,
            "prompt_eval_count": self._n_prompt,
            "prompt_eval_duration": 1000 * stats.prefill_us,
            "eval_count": stats.n_generated,
            "eval_duration": 1000 * max(0, stats.total_us - stats.prefill_us),
        }


class ChatWriter(_AnswerWriter):
    """Writes the answer to a chat."""

    def _fields(self, parts: Sequence[Part]) -> Json:
        message = {"role": "assistant"} | _texts(parts, "content")
        calls = [
            {
                "id": part.call.id,
                "function": {"name": part.call.name, "arguments": json.loads(part.call.arguments)},
            }
            for part in parts
            if isinstance(part, Called)
        ]
        return {"message": message | ({"tool_calls": calls} if calls else {})}


class PromptWriter(_AnswerWriter):
    """Writes the answer to a prompt."""

    def _fields(self, parts: Sequence[Part]) -> Json:
        return _texts(parts, "response")


def _plain_reader() -> AnswerReader:
    """Return a reader of texts that have neither reasoning nor calls."""
    return AnswerReader(AnswerForm(calls=()), {})


def _texts(parts: Sequence[Part], name: str) -> dict[str, Any]:
    """Return the text of an answer in a field of this name, and its reasoning if there is any."""
    text = "".join(part.text for part in parts if isinstance(part, Said))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return {name: text} | ({"thinking": reasoning} if reasoning else {})
