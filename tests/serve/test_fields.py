"""Fields of requests: what llama-server's and OpenAI's clients send is honoured or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import message_count_tokens_params as count_params
from anthropic.types import message_create_params as message_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params
from serving import Served, running

from pyselfspec import Model, SamplingParams
from pyselfspec.errors import ArgumentError
from pyselfspec.serve.endpoints.infill import InfillRequest
from pyselfspec.serve.endpoints.messages_request import MessagesRequest
from pyselfspec.serve.endpoints.ollama_request import ApiChatRequest, GenerateRequest, Options
from pyselfspec.serve.endpoints.responses_request import ResponsesRequest
from pyselfspec.serve.protocol.request_fields import (
    API_CHAT,
    API_GENERATE,
    API_OPTIONS,
    CHATS,
    MESSAGES,
    RESPONSES,
    RULES,
    SAMPLERS,
    Treatment,
)
from pyselfspec.serve.protocol.request_fields import COMPLETIONS as TEXTS
from pyselfspec.serve.protocol.schemas import ChatRequest, CompletionRequest
from pyselfspec.serve.settings import Capacity

PROMPT: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 12, "seed": 1}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
COMPLETIONS, CHATS_PATH = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=2)) as found:
        yield found


@pytest.fixture(scope="module")
def bound(demo: Model) -> Iterator[Served]:
    """A server with a grammar of its own."""
    sampling = SamplingParams(grammar='root ::= "yes" | "no"')
    with running(demo, capacity=Capacity(n_ctx=512, n_slots=1), sampling=sampling) as found:
        yield found


def text_of(served: Served, path: str, body: dict[str, Any]) -> str:
    response = served.post(path, body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, PROMPT), (CHATS_PATH, CHAT)])
def test_the_servers_grammar_holds_unless_the_request_has_one(
    path: str, body: dict[str, Any], bound: Served
) -> None:
    assert text_of(bound, path, body) in ("yes", "no")
    assert text_of(bound, path, body | {"grammar": None}) in ("yes", "no")
    assert text_of(bound, path, body | {"grammar": 'root ::= "perhaps"'}) == "perhaps"
    assert text_of(bound, path, body | {"grammar": ""}) not in ("yes", "no")


def test_a_format_replaces_the_servers_grammar(bound: Served) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"const": 5}}}
    assert text_of(bound, CHATS_PATH, CHAT | {"response_format": schema}) == "5"
    assert text_of(bound, CHATS_PATH, CHAT | {"response_format": {"type": "text"}}) in ("yes", "no")


def test_a_broken_grammar_of_the_server_is_refused_at_the_start(demo: Model) -> None:
    sampling = SamplingParams(grammar="root ::= (")
    with (
        pytest.raises(ArgumentError, match="GBNF"),
        running(demo, capacity=Capacity(n_ctx=256, n_slots=1), sampling=sampling),
    ):
        pass


def rules(kind: str, treatment: Treatment | None = None) -> set[str]:
    """Return the names of the fields of a kind of request, with one treatment or any."""
    return {
        name
        for rule in RULES
        if kind in rule.where and treatment in (None, rule.treatment)
        for name in rule.names
    }


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        (CHATS, ChatRequest),
        (TEXTS, CompletionRequest),
        (RESPONSES, ResponsesRequest),
        (MESSAGES, MessagesRequest),
        (API_CHAT, ApiChatRequest),
        (API_GENERATE, GenerateRequest),
        (API_OPTIONS, Options),
    ],
)
def test_the_list_is_what_requests_have(kind: str, model: Any) -> None:
    """Every field has one rule, and honoured ones are those that are read."""
    assert rules(kind, Treatment.HONOURED) == set(model.model_fields)
    names = [name for rule in RULES if kind in rule.where for name in rule.names]
    assert len(names) == len(set(names))


def test_the_list_has_all_of_openais_fields() -> None:
    assert rules(CHATS) >= set(chat_params.CompletionCreateParamsStreaming.__annotations__)
    assert rules(TEXTS) >= set(completion_params.CompletionCreateParamsStreaming.__annotations__)
    assert rules(RESPONSES) >= fields_of(response_params.ResponseCreateParamsStreaming)


def test_the_list_has_all_of_anthropics_fields() -> None:
    assert rules(MESSAGES) >= fields_of(message_params.MessageCreateParamsStreaming)
    assert rules(MESSAGES) >= fields_of(beta_params.MessageCreateParamsStreaming)
    assert rules(MESSAGES) >= fields_of(count_params.MessageCountTokensParams)


def test_the_list_has_all_of_ollamas_fields() -> None:
    client = pytest.importorskip("ollama")
    assert rules(API_CHAT) >= set(client._types.ChatRequest.model_fields)
    assert rules(API_GENERATE) >= set(client._types.GenerateRequest.model_fields)
    assert rules(API_OPTIONS) >= set(client.Options.model_fields)


def fields_of(params: Any) -> set[str]:
    """Return the fields of a request, also those of its base class."""
    return {*params.__required_keys__, *params.__optional_keys__}


REFUSED: list[tuple[str, Any, Any]] = [
    ("mirostat", 2, 0), ("adaptive_target", 0.5, -1), ("repetition_penalty", 1.1, 1),
    ("min_tokens", 5, 0), ("n_probs", 3, 0), ("stop_token_ids", [5], []),
    ("guided_json", {"type": "object"}, None), ("use_beam_search", True, False),
    ("n_cmpl", 2, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "acts", "rests"), REFUSED)
def test_what_would_act_is_refused_by_name(
    name: str, acts: Any, rests: Any, served: Served
) -> None:
    for path, body in ((COMPLETIONS, PROMPT), (CHATS_PATH, CHAT)):
        refused = served.post(path, body | {name: acts})
        error = refused.json()["error"]
        assert refused.status_code == 400 and error["param"] == name, error
        assert error["message"].startswith(f"{name} is not supported; leave it out, or give ")
        assert served.post(path, body | {name: rests, "max_tokens": 1}).status_code == 200


def test_samplers_that_a_list_leaves_out_are_off(served: Served) -> None:
    asked = PROMPT | {"temperature": 1.5}
    some = asked | {"samplers": ["top_k", "temperature", "infill"], "repeat_penalty": 3}
    same = asked | {"top_p": 1, "min_p": 0}
    assert text_of(served, COMPLETIONS, some) == text_of(served, COMPLETIONS, same)
    assert text_of(served, COMPLETIONS, same) != text_of(served, COMPLETIONS, asked)
    everything = asked | {"samplers": list(SAMPLERS)}
    assert text_of(served, COMPLETIONS, everything) == text_of(served, COMPLETIONS, asked)
    refused = served.post(COMPLETIONS, asked | {"samplers": ["top_p", "top_k"]})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "samplers"


def test_chats_refuse_more_by_name(served: Served) -> None:
    for name, acts in (
        ("functions", [{"name": "f"}]), ("modalities", ["text", "audio"]), ("best_of", 2),
        ("add_generation_prompt", False), ("web_search_options", {}),
    ):  # fmt: skip
        refused = served.post(CHATS_PATH, CHAT | {name: acts})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == name


@pytest.mark.parametrize(
    ("path", "name", "acts", "rests"),
    [
        ("responses", "background", True, False), ("responses", "conversation", "conv_1", None),
        ("responses", "prompt", {"id": "pmpt_1"}, {}), ("responses", "top_logprobs", 2, 0),
        ("responses", "include", ["message.output_text.logprobs"], ["reasoning.encrypted_content"]),
        ("messages", "container", "c1", None), ("messages", "mcp_servers", [{"name": "x"}], []),
        ("messages", "compaction", {"instructions": "x"}, None),
        ("messages", "thread", {"type": "create"}, None),
        ("messages/count_tokens", "thread", {"type": "create"}, None),
    ],
)  # fmt: skip
def test_responses_and_messages_refuse_by_name(
    path: str, name: str, acts: Any, rests: Any, served: Served
) -> None:
    body = CHAT | {"input": "Hello", "max_tokens": 1, "max_output_tokens": 1}
    refused = served.post(f"/v1/{path}", body | {name: acts})
    start = f"{name} is not supported; leave it out, or give "
    assert refused.status_code == 400 and refused.json()["error"]["message"].startswith(start)
    assert served.post(f"/v1/{path}", body | {name: rests}).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("completions", {"stop": ["x"] * 65}, "stop: at most 64 values"),
        ("completions", {"stop": ["x" * 2049]}, "stop.0: at most 2,048 characters"),
        ("completions", {"stop": [3]}, "stop.0: give a string"),
        ("completions", {"prompt": 3}, "prompt: give a string or a list"),
        ("completions", {"prompt": ["a", 3]}, "prompt.1: give a string or a list"),
        ("completions", {"n": 17}, "n: at most 16"),
        ("completions", {"n": "x"}, "n: give an integer"),
        ("completions", {"pyselfspec": {"x": 1}}, "pyselfspec.x: there is no such field; leave it"),
        ("completions", {"stream_options": {"include_usage": "x"}}, "stream_options.include_usage"),
        (
            "completions",
            {"logit_bias": {"5": True}},
            "logit_bias: a bias is a number, or false",
        ),
        ("chat/completions", {"messages": []}, "messages: at least 1 of them"),
        (
            "chat/completions",
            {"reasoning_format": "deepseek-legacy"},
            "reasoning_format: give 'none', 'auto' or 'deepseek', not 'deepseek-legacy'",
        ),
        (
            "chat/completions",
            {"tools": [{"function": {}}]},
            "tools.0.function.name: it is ",
        ),
        ("chat/completions", {"tool_choice": {}}, "tool_choice.function: it is required"),
        ("chat/completions", {"tool_choice": "any"}, "tool_choice: give 'none', 'auto' or 'requir"),
        ("messages", {"messages": [{"role": "x", "content": "x"}]}, "messages.0.role: give 'user'"),
        ("messages", {"messages": [{"role": "user"}]}, "messages.0.content: it is required"),
        ("messages", {"system": 3}, "system: give a string or a list"),
        ("responses", {"input": 3}, "input: give a string or a list"),
    ],
)
def test_errors_of_fields_are_plain_words(
    path: str, fields: dict[str, Any], message: str, served: Served
) -> None:
    body = CHAT | ({"input": "Hello"} if path == "responses" else {"prompt": "Hello"})
    refused = served.post(f"/v1/{path}", body | fields)
    assert refused.status_code == 400 and refused.json()["error"]["message"].startswith(message)


FURTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"dry_multiplier": 9.0, "dry_allowed_length": 0}, {"dry_multiplier": -1}),
    ({"top_n_sigma": 0.01}, {"top_n_sigma": -1}),
    ({"typical_p": 0.01, "top_k": 0}, {"typical_p": 1.5}),
    ({"xtc_probability": 1, "xtc_threshold": 0.01}, {"xtc_probability": -1}),
    ({"dynatemp_range": 2, "dynatemp_exponent": 0}, {"dynatemp_range": -1}),
]


@pytest.mark.parametrize(("acts", "rests"), FURTHER)
def test_further_samplers_reach_the_text(
    acts: dict[str, Any], rests: dict[str, Any], served: Served, demo: Model
) -> None:
    body = PROMPT | {"seed": 5, "max_tokens": 24}
    usual = text_of(served, COMPLETIONS, body)
    assert text_of(served, COMPLETIONS, body | rests) == usual
    drafted = text_of(served, COMPLETIONS, body | acts)
    assert drafted != usual
    plain = body | acts | {"pyselfspec": {"draft": None}}
    assert text_of(served, COMPLETIONS, plain) == drafted


def test_breakers_of_dry_that_it_cannot_take(served: Served) -> None:
    body = PROMPT | {"dry_multiplier": 1, "dry_sequence_breakers": ["x" * 41]}
    refused = served.post(COMPLETIONS, body)
    assert refused.status_code == 400
    assert "texts of 1 to 40 bytes" in refused.json()["error"]["message"]


def test_null_is_no_field(served: Served) -> None:
    names = ("n", "stream", "echo", "temperature", "stop", "ignore_eos", "pyselfspec", "mirostat")
    nulls = dict.fromkeys(names) | {"stream_options": {"include_usage": None}}
    want = text_of(served, COMPLETIONS, PROMPT)
    assert text_of(served, COMPLETIONS, PROMPT | nulls) == want
    assert served.post(CHATS_PATH, CHAT | nulls).status_code == 200
    message = CHAT | {"stream": None, "top_k": None}
    assert served.post("/v1/messages", message).status_code == 200


def test_minus_one_means_what_it_does_in_llama_server(served: Served) -> None:
    share = served.service.requests.n_share
    body = {"prompt": PROMPT["prompt"], "max_tokens": -1, "ignore_eos": True, "temperature": -1}
    found = served.post(COMPLETIONS, body | {"top_k": -1, "repeat_last_n": -1}).json()
    usage = found["usage"]
    assert usage["total_tokens"] == share and found["choices"][0]["finish_reason"] == "length"
    greedy = text_of(served, COMPLETIONS, PROMPT | {"temperature": 0})
    assert found["choices"][0]["text"].startswith(greedy)
    assert text_of(served, COMPLETIONS, PROMPT | {"temperature": -1}) == greedy
    drawn = {text_of(served, COMPLETIONS, PROMPT | {"seed": -1}) for _ in range(4)}
    assert len(drawn) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_only_read_the_prompt(stream: bool, served: Served) -> None:
    body = PROMPT | {"max_tokens": 0, "prompt": "The queen had a daughter.", "stream": stream}
    response = served.post(COMPLETIONS, body | {"stream_options": {"include_usage": True}})
    assert response.status_code == 200
    if not stream:
        found = response.json()
        assert found["choices"][0]["text"] == "" and found["usage"]["completion_tokens"] == 0
        assert found["choices"][0]["finish_reason"] == "length"
    else:
        assert '"completion_tokens":0' in response.text
    again = served.post(COMPLETIONS, body | {"max_tokens": 1, "stream": False}).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1
    echoed = served.post(COMPLETIONS, body | {"echo": True, "stream": False}).json()
    assert echoed["choices"][0]["text"] == body["prompt"]


def test_every_name_of_the_limit(served: Served) -> None:
    body: dict[str, Any] = {"prompt": PROMPT["prompt"], "ignore_eos": True}
    for fields, n in (({"n_predict": 3}, 3), ({"n_predict": 3, "max_tokens": 5}, 3)):
        usage = served.post(COMPLETIONS, body | fields).json()["usage"]
        assert usage["completion_tokens"] == n
    chat = {"messages": CHAT["messages"], "ignore_eos": True}
    for fields, n in (
        ({"n_predict": 3}, 3), ({"max_completion_tokens": 4, "max_tokens": 9}, 4),
        ({"max_completion_tokens": 0, "max_tokens": 9}, 0),
    ):  # fmt: skip
        usage = served.post(CHATS_PATH, chat | fields).json()["usage"]
        assert usage["completion_tokens"] == n, fields


def test_stops_may_be_many_long_or_empty(served: Served) -> None:
    want = text_of(served, COMPLETIONS, PROMPT)
    for stop in ("", [], [""], ["x" * 300], [f"{i}!" for i in range(64)]):
        assert text_of(served, COMPLETIONS, PROMPT | {"stop": stop}) == want
    assert text_of(served, COMPLETIONS, PROMPT | {"stop": ["", want[3:6]]}) == want[:3]


OBJECT = {"type": "object", "properties": {"zz": {"const": 1}}, "required": ["zz"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": OBJECT}},
        {"response_format": {"type": "json_schema", "schema": OBJECT}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": OBJECT}}},
        {"json_schema": OBJECT},
        {"json_schema": OBJECT, "grammar": ""},
    ],
)
def test_a_schema_acts_wherever_it_is_given(fields: dict[str, Any], served: Served) -> None:
    body = CHAT | {"max_tokens": 40, "logit_bias": {" ": False, "\n": False}}
    assert json.loads(text_of(served, CHATS_PATH, body | fields)) == {"zz": 1}
    if "json_schema" in fields:
        body = PROMPT | {"max_tokens": 40, "logit_bias": {" ": False, "\n": False}}
        assert json.loads(text_of(served, COMPLETIONS, body | fields)) == {"zz": 1}


def test_a_schema_that_is_not_supported_names_its_field(served: Served) -> None:
    refused = served.post(COMPLETIONS, PROMPT | {"json_schema": {"enum": []}})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "json_schema"
    both = {"json_schema": OBJECT, "grammar": 'root ::= "a"'}
    assert "not both" in served.post(CHATS_PATH, CHAT | both).json()["error"]["message"]


def test_biases_as_lists_texts_and_false(served: Served, demo: Model) -> None:
    greedy = PROMPT | {"temperature": 0, "max_tokens": 8}
    first = text_of(served, COMPLETIONS, greedy | {"max_tokens": 1})
    (token,) = demo.tokenize(first, add_special=False)[-1:]
    want = text_of(served, COMPLETIONS, greedy | {"logit_bias": {str(token): -1000}})
    assert not want.startswith(first)
    for bias in ({str(token): False}, [[token, False]], [[token, -1000]], [[str(token), -1000]]):
        assert text_of(served, COMPLETIONS, greedy | {"logit_bias": bias}) == want
    wanted = demo.tokenize("king", add_special=False)
    biased = text_of(served, COMPLETIONS, greedy | {"logit_bias": {"king": 1000}})
    tokens = demo.tokenize(biased, add_special=False)
    assert set(tokens) & set(wanted)
    for wrong in ({"5": True}, [[5]], [[-5, 1]], {"x" * 300: 1}):
        assert served.post(COMPLETIONS, greedy | {"logit_bias": wrong}).status_code == 400


def test_names_and_numbers_of_tools(served: Served) -> None:
    def tools(n: int, size: int) -> list[Any]:
        names = (str(i).rjust(size, "m") for i in range(n))
        return [{"type": "function", "function": {"name": name}} for name in names]

    rendered = CHAT | {"tools": tools(1, 128)}
    assert served.post("/apply-template", rendered).status_code == 200
    assert served.post("/apply-template", CHAT | {"tools": tools(256, 4)}).status_code == 200
    for wrong in (tools(1, 129), tools(257, 4)):
        assert served.post("/apply-template", CHAT | {"tools": wrong}).status_code == 400
    body = CHAT | {"tools": [{"name": "m" * 128, "input_schema": {"type": "object"}}]}
    assert served.post("/v1/messages/count_tokens", body).status_code == 200


def test_infill_reads_the_same_fields() -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "stop": "", "n_predict": -1, "top_k": -1}
    assert InfillRequest.model_validate(body).stops == ()
