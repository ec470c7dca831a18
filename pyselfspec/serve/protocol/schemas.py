"""Schemas of requests, in the format of OpenAI's API. Unknown fields are ignored, as by other
servers; known fields that are not supported are refused, see request_fields.py."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from ...errors import MaskError
from ...masks.layer_mask import LayerMask
from ...runtime.sampling import FLOAT_MAX
from ...runtime.sequence_breakers import N_BREAKERS
from ...speculate.output.line_limits import LineLimits
from ...templates.messages import ASSISTANT
from .errors import unsupported
from .request_fields import CHATS, COMPLETIONS, require_harmless

N_CHOICES = 16  # completions of one request
N_STOPS = 64
N_STOP = 2048  # characters
N_TOP = 20
N_TOOLS = 256
N_FUNCTION = 128  # characters of a function's name
N_BIASES = 1024
N_DRAFT = 256  # characters
N_VARIABLES = 16  # of chat templates
N_ADAPTERS = 64
N_SAMPLERS = 64

Finite = Annotated[float, Field(allow_inf_nan=False)]


def _bias(value: Any) -> Any:
    """Return a bias as a number; false stands for never."""
    if isinstance(value, bool):
        if value:
            raise ValueError("a bias is a number, or false for a token that must not come")
        return -FLOAT_MAX
    return value


def _stops(given: Any) -> Any:
    """Return stop strings as a list, without empty ones, which stop nothing."""
    given = [given] if isinstance(given, str) else given
    return [each for each in given if each != ""] if isinstance(given, list) else given


Bias = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_bias)]
Biases = Annotated[
    list[tuple[int | str, Bias]],
    Field(max_length=N_BIASES),
    BeforeValidator(lambda given: list(given.items()) if isinstance(given, dict) else given),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]
Stops = Annotated[
    list[Annotated[str, Field(max_length=N_STOP)]],
    Field(max_length=N_STOPS),
    BeforeValidator(_stops),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class AdapterScale(BaseModel):
    """A LoRA adapter and its scale, as in llama-server's API. id: its place on the command line."""

    id: int = Field(ge=0)
    scale: float = Field(allow_inf_nan=False)


class Nullable(BaseModel):
    """A request, or a part of one, in which null is the same as no field."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class MaskSettings(BaseModel):
    """The sublayers that drafts skip: lists of block indices, or all blocks from exit_layer on."""

    model_config = ConfigDict(extra="forbid")

    skip_attn: list[int] = Field(default=[], max_length=4096)
    skip_ffn: list[int] = Field(default=[], max_length=4096)
    exit_layer: int | None = None
    n_layer: int | None = None

    def to_mask(self, n_layer: int) -> LayerMask:
        """Return the mask, for a model with n_layer blocks. Raises MaskError."""
        if self.n_layer not in (None, n_layer):
            raise MaskError(f"the mask is for {self.n_layer} blocks, the model has {n_layer}")
        if self.exit_layer is not None:
            if self.skip_attn or self.skip_ffn:
                raise MaskError("give exit_layer, or skip_attn and skip_ffn, not both")
            return LayerMask.early_exit(n_layer, self.exit_layer)
        return LayerMask(n_layer, frozenset(self.skip_attn), frozenset(self.skip_ffn))


class DraftSettings(BaseModel):
    """The field "pyselfspec". draft: "auto", names of drafters joined by +, or null for plain
    decoding; default: the server's. corpus: a folder to copy from, within the one that the server
    was started with. show: list the tokens of every chunk with their sources.
    continue: continue the answer that the last message begins, see ChatRequest.continues."""

    model_config = ConfigDict(extra="forbid")

    draft: str | None = Field(None, max_length=N_DRAFT)
    mask: MaskSettings | None = None
    corpus: str | None = Field(None, min_length=1, max_length=1024)
    show: bool = False
    continues: bool | None = Field(None, alias="continue")


class StreamOptions(Nullable):
    include_usage: bool = False


class RuledRequest(Nullable):
    """A request whose fields have rules, see request_fields.py. KIND: of request."""

    KIND: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _require_harmless(cls, given: Any) -> Any:
        if isinstance(given, dict):
            require_harmless(cls.KIND, given)
        return given


class SampledRequest(RuledRequest):
    """Fields of sampling that all requests for text of llama-server and Ollama have."""

    temperature: Finite | None = None
    top_p: Finite | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: Finite | None = Field(None, ge=0, le=1)
    typical_p: Finite | None = Field(None, ge=0)
    repeat_penalty: Finite | None = Field(None, gt=0)
    repeat_last_n: int | None = Field(None, ge=-1)
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stops | None = None


class TextRequest(SampledRequest):
    """Fields that completions and chats share. Sampling fields left out have the server's defaults,
    see SamplingParams. A number of -1 means what it means in llama-server."""

    KIND: ClassVar[str] = COMPLETIONS
    SAMPLING: ClassVar[tuple[str, ...]] = (
        "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "repeat_last_n",
        "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base",
        "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "top_n_sigma",
        "typical_p", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent",
    )  # fmt: skip

    model: str | None = None
    n: int = Field(1, ge=1, le=N_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_progress: bool = False
    max_tokens: int | None = Field(None, ge=-1)
    n_predict: int | None = Field(None, ge=-1)
    n_indent: int = Field(0, ge=0)
    t_max_predict_ms: int = -1
    grammar: str | None = Field(None, max_length=1 << 16)
    json_schema: dict[str, Any] | None = None
    ignore_eos: bool = False
    dry_multiplier: Finite | None = None
    dry_base: Finite | None = Field(None, ge=1)
    dry_allowed_length: int | None = Field(None, ge=0, lt=2**31)
    dry_penalty_last_n: int | None = Field(None, ge=-1)
    dry_sequence_breakers: Annotated[list[str], Field(max_length=N_BREAKERS)] | None = None
    top_n_sigma: Finite | None = None
    xtc_probability: Finite | None = Field(None, le=1)
    xtc_threshold: Finite | None = Field(None, ge=0, le=1)
    dynatemp_range: Finite | None = None
    dynatemp_exponent: Finite | None = Field(None, ge=0)
    samplers: Annotated[list[str], Field(max_length=N_SAMPLERS)] | None = None
    logit_bias: Biases | None = None
    lora: Annotated[list[AdapterScale], Field(max_length=N_ADAPTERS)] | None = None
    pyselfspec: DraftSettings | None = None

    @property
    def most_tokens(self) -> int | None:
        """The most tokens to generate, -1 for no limit, None for the default one."""
        return self.max_tokens if self.n_predict is None else self.n_predict

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(self.stop or ())

    @property
    def line_limits(self) -> LineLimits | None:
        seconds = self.t_max_predict_ms / 1000 if self.t_max_predict_ms > 0 else math.inf
        limits = LineLimits(self.n_indent, seconds)
        return None if limits == LineLimits() else limits

    @property
    def shows_tokens(self) -> bool:
        return self.pyselfspec is not None and self.pyselfspec.show

    @property
    def shows_progress(self) -> bool:
        return self.stream and self.return_progress

    def require_one_form(self) -> None:
        """Raise ApiError for a grammar beside a schema."""
        if self.grammar and self.json_schema is not None:
            raise unsupported("json_schema", "give grammar or json_schema, not both")

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(TextRequest):
    """POST /v1/completions. prompt: text or token ids, or a list of either. suffix: what follows
    the completion. best_of: completions to choose from, by their log probability per token."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=N_TOP)
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = Field(None, ge=1, le=N_CHOICES)

    @property
    def n_generated(self) -> int:
        """The number of completions to generate for each prompt."""
        return max(self.n, self.best_of or self.n)

    def require_supported(self) -> None:
        """Raise ApiError for options that this server does not support, or that contradict."""
        self.require_one_form()
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
    """The form of an answer. schema: where llama-server's clients give one; OpenAI's give
    json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")

    @classmethod
    def of(cls, schema: dict[str, Any]) -> Self:
        """Return the form of an answer that keeps to a schema."""
        return cls(type="json_schema", json_schema=JsonSchema(schema=schema))

    @property
    def wanted(self) -> dict[str, Any] | None:
        """The schema of an answer that must be JSON, None where none is given."""
        if self.schema_ is not None:
            return self.schema_
        if self.json_schema is not None and self.type == "json_schema":
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


class Function(BaseModel):
    """A function. strict: whether the arguments of calls must keep to the schema."""

    name: str = Field(min_length=1, max_length=N_FUNCTION)
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

    reasoning_format: "none" leaves the reasoning in the text, with its markers.
    reasoning_budget_tokens: most tokens of reasoning, -1 for no limit. chat_template_kwargs:
    variables of the chat template, such as enable_thinking.
    """

    KIND: ClassVar[str] = CHATS

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=-1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=N_TOP)
    tools: list[Tool] | None = Field(None, max_length=N_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = Field(None, max_length=32)
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None
    reasoning_budget_tokens: int | None = Field(None, ge=-1)
    thinking_budget_tokens: int | None = Field(None, ge=-1)
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=N_VARIABLES)] | None = None

    @property
    def most_tokens(self) -> int | None:
        """The most tokens to generate, -1 for no limit, None for the default one."""
        given = (self.n_predict, self.max_completion_tokens, self.max_tokens)
        return next((each for each in given if each is not None), None)

    @property
    def reasoning_budget(self) -> int | None:
        """The most tokens of reasoning, under either of llama-server's names."""
        given = self.reasoning_budget_tokens
        return self.thinking_budget_tokens if given is None else given

    @property
    def continues(self) -> bool:
        """Whether to continue the answer that the last message begins. Without a wish of the
        request's own, an answer that is only a text is continued, as by llama-server."""
        if self.pyselfspec is not None and self.pyselfspec.continues is not None:
            return self.pyselfspec.continues
        last = {key: value for key, value in self.messages[-1].items() if value}
        is_text = isinstance(last.get("content"), str)
        is_more = bool(last.keys() & {"tool_calls", "reasoning_content"})
        is_first = len(self.messages) == 1
        return last.get("role") == ASSISTANT and is_text and not is_more and not is_first

    def require_supported(self) -> None:
        """Raise ApiError for options that this server does not support, or that contradict."""
        self.require_one_form()
        if self.top_logprobs is not None and not self.logprobs:
            raise unsupported("top_logprobs", "top_logprobs needs logprobs to be true")
        for name in ("grammar", "json_schema"):
            if getattr(self, name) and self.response_format is not None:
                raise unsupported(name, f"give {name} or response_format, not both")
