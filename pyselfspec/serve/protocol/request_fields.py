"""Rules for each field of OpenAI's, Anthropic's, Ollama's and llama-server's requests for text.

The table in docs/serving.md lists these rules, and requests are checked by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .errors import unsupported

CHATS, COMPLETIONS, RESPONSES, MESSAGES = "chats", "completions", "responses", "messages"
API_CHAT, API_GENERATE, API_OPTIONS = "`/api/chat`", "`/api/generate`", "Ollama's `options`"
BOTH = (CHATS, COMPLETIONS)
SAMPLED = (*BOTH, API_OPTIONS)

# In the order in which they act, with the fields and values that turn each off.
SAMPLERS: dict[str, dict[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}


class Treatment(Enum):
    """HONOURED: it acts. HARMLESS: the text is the same without it. REFUSED: status 400, unless its
    value asks for what happens anyway."""

    HONOURED = "honoured"
    HARMLESS = "no effect on the text"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FieldRule:
    """A rule for some fields. where: kinds of requests that have them. note: of fields that are
    refused, the values that are not. asks_nothing: whether a value is one of these."""

    names: tuple[str, ...]
    treatment: Treatment
    where: tuple[str, ...] = BOTH
    note: str = ""
    asks_nothing: Callable[[Any], bool] = bool


def _honoured(names: str, *where: str, note: str = "") -> FieldRule:
    return FieldRule(tuple(names.split()), Treatment.HONOURED, where or BOTH, note)


def _harmless(names: str, *where: str) -> FieldRule:
    return FieldRule(tuple(names.split()), Treatment.HARMLESS, where or BOTH)


def _refused(names: str, note: str, asks_nothing: Callable[[Any], bool], *where: str) -> FieldRule:
    return FieldRule(tuple(names.split()), Treatment.REFUSED, where or BOTH, note, asks_nothing)


def _is_number(test: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and test(value)
    )


def _is_false(value: Any) -> bool:
    return value is False


def _is_empty(value: Any) -> bool:
    return value in ([], {}, "")


_is_zero = _is_number(lambda x: x == 0)
_is_one = _is_number(lambda x: x == 1)
_is_not_positive = _is_number(lambda x: x <= 0)

RULES = (
    _honoured(
        "model n stream stream_options seed stop top_p logit_bias ignore_eos lora pyselfspec"
    ),
    _honoured("return_progress", note="in streams"),
    _honoured("max_tokens n_predict", note="-1: the rest of a slot's share of the context"),
    _honoured("temperature", *SAMPLED, note="less than 0 is 0"),
    _honoured("top_k", *SAMPLED, MESSAGES, note="-1: all tokens, like 0"),
    _honoured("min_p repeat_penalty presence_penalty frequency_penalty", *SAMPLED),
    _honoured("repeat_last_n dry_penalty_last_n", note="-1: the whole context"),
    _honoured(
        "dry_multiplier top_n_sigma xtc_probability dynatemp_range", note="0 or less: it is off"
    ),
    _honoured("typical_p", *SAMPLED, note="1 or more: it is off"),
    _honoured("dry_base dry_allowed_length dry_sequence_breakers xtc_threshold dynatemp_exponent"),
    _honoured("n_indent", note="the text ends before a later line with fewer blanks"),
    _honoured(
        "t_max_predict_ms",
        note="the text ends at the first line break after so long; 0 or less: no limit",
    ),
    _honoured("grammar json_schema", note='one of them; `""`: no grammar'),
    _honoured("prompt logprobs echo suffix best_of", COMPLETIONS),
    _honoured("messages max_completion_tokens logprobs top_logprobs", CHATS),
    _honoured("tools tool_choice parallel_tool_calls response_format", CHATS),
    _honoured("reasoning_effort chat_template_kwargs", CHATS),
    _honoured("reasoning_format", CHATS, note="`none`, `auto` or `deepseek`"),
    _honoured("reasoning_budget_tokens thinking_budget_tokens", CHATS),
    _honoured(
        "samplers",
        note=f"in the order {', '.join(f'`{each}`' for each in SAMPLERS)}; those that are missing "
        "are off, and other names do nothing",
    ),
    _refused("mirostat", "0", _is_not_positive, *SAMPLED),
    _refused("adaptive_target", "less than 0", _is_number(lambda x: x < 0)),
    _refused("repetition_penalty", "1; use `repeat_penalty`", _is_one),
    _refused("length_penalty", "1", _is_one),
    _refused("n_cmpl", "1; use `n`", _is_one),
    _refused("min_keep min_tokens penalty_alpha", "0", _is_zero),
    _refused("n_probs", "0; use `logprobs`", _is_not_positive),
    _refused("post_sampling_probs grammar_lazy use_beam_search", "false", _is_false),
    _refused("stop_token_ids grammar_triggers", "an empty list; use `stop`", _is_empty),
    _refused(
        "guided_json guided_regex guided_choice guided_grammar structured_outputs",
        "null; use `response_format` or `grammar`",
        _is_empty,
    ),
    _refused(
        "response_format",
        '`{"type": "text"}`; use `json_schema`',
        lambda value: value == {"type": "text"},
        COMPLETIONS,
    ),
    _refused("functions", "an empty list; use `tools`", _is_empty, CHATS),
    _refused(
        "function_call", "none or auto; use `tools`", lambda value: value in ("none", "auto"), CHATS
    ),
    _refused("modalities", '`["text"]`', lambda value: value in ([], ["text"]), CHATS),
    _refused("audio web_search_options", "null", lambda _: False, CHATS),
    _refused("reasoning_budget_message", "an empty text", _is_empty, CHATS),
    _refused("add_generation_prompt parse_tool_calls", "true", lambda value: value is True, CHATS),
    _refused("best_of", "1; use `n`", _is_one, CHATS),
    _harmless("user mirostat_tau mirostat_eta adaptive_decay"),
    _harmless(
        "cache_prompt id_slot n_keep n_discard n_cache_reuse t_max_prompt_ms backend_sampling "
        "speculative.n_max speculative.n_min speculative.p_min speculative.type "
        "speculative.ngram_size_n speculative.ngram_size_m speculative.ngram_m_hits"
    ),
    _harmless("timings_per_token return_tokens response_fields keep_alive"),
    _harmless("preserved_tokens"),
    _harmless(
        "metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options "
        "prompt_cache_retention prediction moderation verbosity",
        CHATS,
    ),
    _harmless(
        "chat_format chat_parser thinking_forced_open reasoning_budget_start_tag "
        "reasoning_budget_end_tag reasoning_budget_arm_immediately",
        CHATS,
    ),
    _honoured("model stream temperature top_p seed tool_choice pyselfspec", RESPONSES, MESSAGES),
    _honoured("input instructions previous_response_id store metadata reasoning text", RESPONSES),
    _honoured("max_output_tokens parallel_tool_calls", RESPONSES),
    _honoured(
        "tools",
        RESPONSES,
        note="functions and custom tools; others, which OpenAI runs, are left out",
    ),
    _refused("background", "false", _is_false, RESPONSES),
    _refused("conversation", "null; use `previous_response_id`", _is_empty, RESPONSES),
    _refused("prompt", "null; use `input`", _is_empty, RESPONSES),
    _refused("top_logprobs", "0; use chat completions", _is_zero, RESPONSES),
    _refused(
        "include",
        "a list without `message.output_text.logprobs`; use chat completions",
        lambda value: isinstance(value, list) and "message.output_text.logprobs" not in value,
        RESPONSES,
    ),
    _harmless(
        "access_programs background_options context_management image max_tool_calls moderation "
        "prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier "
        "service_tier stream_options truncation user",
        RESPONSES,
    ),
    _honoured("messages max_tokens system stop_sequences thinking output_config tools", MESSAGES),
    _refused("container compaction thread", "null", lambda _: False, MESSAGES),
    _refused("mcp_servers", "an empty list; use `tools`", _is_empty, MESSAGES),
    _harmless(
        "betas billing_policy cache_control context_management diagnostics fallback_credit_token "
        "fallbacks inference_geo metadata service_tier speed user_profile_id workspace_id",
        MESSAGES,
    ),
    _honoured("model stream format options think", API_CHAT, API_GENERATE),
    _honoured("messages tools", API_CHAT),
    _honoured("prompt suffix system images raw", API_GENERATE),
    _refused("template", "an empty text; use `--chat-template`", _is_empty, API_GENERATE),
    _refused("context", "an empty list; use `/api/chat`", _is_empty, API_GENERATE),
    _refused("logprobs", "false; use `/v1/chat/completions`", _is_false, API_CHAT, API_GENERATE),
    _refused("top_logprobs", "0; use `/v1/chat/completions`", _is_zero, API_CHAT, API_GENERATE),
    _harmless("keep_alive truncate shift", API_CHAT, API_GENERATE),
    _harmless("width height steps", API_GENERATE),
    _honoured("num_predict", API_OPTIONS, note="less than 0: the rest of a slot's share"),
    _honoured("repeat_last_n", API_OPTIONS, note="-1: the whole context"),
    _honoured("top_p seed stop", API_OPTIONS),
    _refused("tfs_z", "1 or more", _is_number(lambda x: x >= 1), API_OPTIONS),
    _refused("penalize_newline", "true", lambda value: value is True, API_OPTIONS),
    _harmless(
        "num_ctx num_batch num_gpu num_thread num_keep main_gpu numa low_vram f16_kv use_mmap "
        "use_mlock vocab_only logits_all embedding_only mirostat_tau mirostat_eta",
        API_OPTIONS,
    ),
)


def require_harmless(kind: str, given: Mapping[str, Any]) -> None:
    """Raise ApiError for a field that would act, had this server the option. kind: of request.
    Null is the same as no field."""
    for rule in RULES:
        if rule.treatment is not Treatment.REFUSED or kind not in rule.where:
            continue
        for name in rule.names:
            value = given.get(name)
            if value is not None and not rule.asks_nothing(value):
                allowed, _, hint = rule.note.replace("`", "").partition("; ")
                advice = f"; {hint}" if hint else ""
                raise unsupported(
                    name, f"{name} is not supported; leave it out, or give {allowed}{advice}"
                )
