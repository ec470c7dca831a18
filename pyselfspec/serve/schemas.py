"""Schemas of requests, in the format of OpenAI's API. Unknown fields are ignored, as by other
servers; known fields that are not supported are refused, unless they ask for the default."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from .adapters import N_ADAPTERS, AdapterScale
from .errors import unsupported

N_CHOICES = 16  # texts of one request
N_STOPS = 16
N_TOP = 20
N_TOOLS = 128
N_BIASES = 1024
N_DRAFT = 256  # characters
N_VARIABLES = 16  # of chat templates

Finite = Annotated[float, Field(allow_inf_nan=False)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]


class MaskSettings(BaseModel):
    """The sublayers that drafts skip: lists of block indices, or all blocks from exit_layer on."""

    model_config = ConfigDict(extra="forbid")

    skip_attn: list[int] = Field(default=[], max_length=4096)
    skip_ffn: list[int] = Field(default=[], max_length=4096)
    exit_layer: int | None = None
    n_layer: int | None = None


class DraftSettings(BaseModel):
    """The field "pyselfspec". draft: "auto", names of drafters joined by +, or null for plain
    decoding; default: the server's. corpus: a folder to copy from, within the one that the server
    was started with. show: list the tokens of every chunk with their sources.
    continue: continue the answer that the last message begins."""

    model_config = ConfigDict(extra="forbid")

    draft: str | None = Field(None, max_length=N_DRAFT)
    mask: MaskSettings | None = None
    corpus: str | None = Field(None, min_length=1, max_length=1024)
    show: bool = False
    continues: bool = Field(False, alias="continue")


class StreamOptions(BaseModel):
    include_usage: bool = False


class TextRequest(BaseModel):
    """Fields that completions and chats share. Sampling fields left out have the server's defaults,
    see SamplingParams."""

    SAMPLING: ClassVar[tuple[str, ...]] = (
        "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "repeat_last_n",
        "presence_penalty", "frequency_penalty",
    )  # fmt: skip

    model: str | None = None
    n: int = Field(1, ge=1, le=N_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: Finite | None = Field(None, ge=0)
    top_p: Finite | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    min_p: Finite | None = Field(None, ge=0, le=1)
    repeat_penalty: Finite | None = Field(None, gt=0)
    repeat_last_n: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=N_STOPS)] | None = None
    grammar: str | None = Field(None, max_length=1 << 16)
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    logit_bias: Annotated[dict[str, Finite], Field(max_length=N_BIASES)] | None = None
    lora: Annotated[list[AdapterScale], Field(max_length=N_ADAPTERS)] | None = None
    pyselfspec: DraftSettings | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def shows(self) -> bool:
        return self.pyselfspec is not None and self.pyselfspec.show

    @property
    def continues(self) -> bool:
        return self.pyselfspec is not None and self.pyselfspec.continues

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(TextRequest):
    """POST /v1/completions. prompt: a text or token ids, or a list of either. suffix: text after
    the answer. best_of: answers to choose from, by their log probability per token."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=N_TOP)
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = Field(None, ge=1, le=N_CHOICES)

    @property
    def n_generated(self) -> int:
        """The number of answers to generate for each prompt."""
        return max(self.n, self.best_of or self.n)

    def require_supported(self) -> None:
        """Raise ApiError for options that this server does not support, or that contradict."""
        if self.echo and self.logprobs is not None:
            raise unsupported(
                "echo", "echo has no logprobs of the prompt here; leave out echo or logprobs"
            )
        if self.echo and self.suffix:
            raise unsupported("echo", "give echo or suffix, not both")
        if self.best_of is not None and self.best_of < self.n:
            raise unsupported("best_of", f"best_of is {self.best_of}, less than n, {self.n}")
        if self.n_generated > self.n and self.stream:
            raise unsupported("best_of", "best_of cannot be streamed; leave out stream")


class JsonSchema(BaseModel):
    name: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Function(BaseModel):
    """A function. strict: whether the arguments of calls must keep to the schema."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(default=None, exclude=True)  # not for chat templates


class Tool(BaseModel):
    type: Literal["function"] = "function"
    function: Function


class NamedFunction(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class ChatRequest(TextRequest):
    """POST /v1/chat/completions; requests of other protocols become one of these.

    reasoning_format: "none" leaves thoughts in the text, with their markers.
    reasoning_budget_tokens: most tokens of thoughts, -1 for no limit. chat_template_kwargs:
    variables of the chat template, such as enable_thinking.
    """

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=N_TOP)
    tools: list[Tool] | None = Field(None, max_length=N_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = Field(None, max_length=32)
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None
    reasoning_budget_tokens: int | None = Field(None, ge=-1)
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=N_VARIABLES)] | None = None
    modalities: list[str] | None = None
    functions: list[Any] | None = None
    function_call: Any = None

    def require_supported(self) -> None:
        """Raise ApiError for options that this server does not support, or that contradict."""
        if self.functions or self.function_call not in (None, "none", "auto"):
            raise unsupported("functions", "functions is not supported; use tools")
        if set(self.modalities or ()) - {"text"}:
            raise unsupported("modalities", "this server generates text only; leave out modalities")
        if self.top_logprobs is not None and not self.logprobs:
            raise unsupported("top_logprobs", "top_logprobs needs logprobs to be true")
        if self.grammar and self.response_format is not None:
            raise unsupported("grammar", "give grammar or response_format, not both")
