"""The Responses API: its translation without a model, and the server by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from serving import Served

from pyselfspec.answers.form import AnswerForm
from pyselfspec.answers.reader import AnswerReader
from pyselfspec.serve.endpoints.responses import ResponseApiWriter, response_head
from pyselfspec.serve.endpoints.responses_request import (
    ResponsesRequest,
    input_messages,
    to_chat,
)
from pyselfspec.serve.engine.jobs import Delta, Finished
from pyselfspec.serve.protocol.errors import ApiError
from pyselfspec.serve.protocol.schemas import ChatRequest
from pyselfspec.serve.protocol.writers import Answer
from pyselfspec.serve.store.response_store import ResponseStore, Stored
from pyselfspec.speculate.stats import GenerationStats

SMALL = {"kind": {"enum": ["cat", "dog"]}, "tame": {"type": "boolean"}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": SMALL, "required": ["kind", "tame"]}
TOOLS: list[Any] = [{"type": "function", "name": "buy", "parameters": SCHEMA, "strict": False}]
JSON = {"Content-Type": "application/json"}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
SO = {"type": "input_text", "text": "so"}


# without a model


def request(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.model_validate({"input": "Hello."} | fields)


def chat_of(*before: dict[str, Any], **fields: Any) -> ChatRequest:
    body = request(**fields)
    return to_chat(body, [*before, *body.items])


def test_a_conversation_of_items() -> None:
    said = input_messages(
        [
            {"role": "user", "content": "Buy."},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "?"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "I do."}]},
            {"type": "function_call", "call_id": "1", "name": "buy", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "+é"},
            {"type": "function_call_output", "call_id": "1", "output": "done"},
            {"type": "custom_tool_call_output", "call_id": "2", "output": [SO]},
            {"role": "assistant", "content": "Done."},
            {"role": "assistant", "content": "Really."},
        ]
    )  # fmt: skip
    calls = [
        {"id": "1", "function": {"name": "buy", "arguments": "{}"}},
        {"id": "2", "function": {"name": "patch", "arguments": '{"input": "+é"}'}},
    ]
    assert said == [
        {"role": "user", "content": "Buy."},
        {
            "role": "assistant",
            "reasoning_content": "?",
            "content": "I do.",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "so"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    ]


def test_settings_of_a_request() -> None:
    style = {"type": "json_schema", "name": "animal", "schema": SCHEMA}
    chat = chat_of(
        {"role": "user", "content": "Before."},
        instructions="Be brief.",
        max_output_tokens=9,
        temperature=0.5,
        reasoning={"effort": "low"},
        text={"format": style},
        tools=[*TOOLS, {"type": "web_search"}, PATCH],
        tool_choice={"type": "function", "name": "buy"},
    )
    assert [each["content"] for each in chat.messages] == ["Be brief.", "Before.", "Hello."]
    assert (chat.max_tokens, chat.temperature, chat.reasoning_effort) == (9, 0.5, "low")
    assert chat.response_format is not None and chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema_ == SCHEMA
    assert chat.tools is not None
    buy, patch = (tool.function for tool in chat.tools)
    assert (buy.name, patch.name) == ("buy", "patch")
    assert patch.description is not None and "(lark):\nstart: /.+/" in patch.description


def test_outputs_of_tools_keep_pictures_and_lose_what_is_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    file = {"type": "input_file", "file_data": "x"}
    [said] = input_messages(
        [{"type": "function_call_output", "call_id": "1", "output": [SO, picture, file]}]
    )
    url = {"url": "data:image/png;base64,AA=="}
    assert said["content"] == [
        {"type": "text", "text": "so"},
        {"type": "image_url", "image_url": url},
    ]
    assert "input[0].output[2] has the type 'input_file'" in caplog.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": []}, "input is empty"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, r"input\[0\] has the type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "only text"),
        ({"input": [{"role": "user", "content": 3}]}, "must be a string or a list"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "call_id|arguments"),
        ({"background": True}, "background is not supported"),
        ({"tools": [{"type": "function"}]}, "has no name"),
        ({"tool_choice": {"type": "web_search"}}, "names a function"),
        ({"text": {"format": {"type": "json_schema"}}}, "schema is missing"),
    ],
)
def test_what_a_request_cannot_have(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        chat_of(**fields)
    assert caught.value.status == 400


def finished(reason: str = "eog") -> Finished:
    return Finished(reason, GenerationStats(n_prompt=10, n_prompt_reused=4, n_generated=7), None)


def writer(**options: Any) -> ResponseApiWriter:
    reader = AnswerReader(AnswerForm.of("<think></think>"), {"buy": SCHEMA, "patch": {}})
    head = response_head(request(tools=[*TOOLS, PATCH]), "demo")
    return ResponseApiWriter(head, reader, 10, stream=True, **options)


TEXT = (
    '<think>Hm.</think>\n\nYes.<tool_call>{"name": "buy", "arguments": {"kind": "cat"}}</tool_call>'
)


def test_an_answer_as_items() -> None:
    kept: list[Any] = []
    answer = Answer()
    answer.observe(Delta(TEXT, (), (), 0))
    answer.observe(finished())
    response = writer(keep=kept.append).whole([answer])
    thought, text, call = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert text["content"][0]["text"] == "Yes." and text["status"] == "completed"
    assert (call["name"], json.loads(call["arguments"])) == ("buy", {"kind": "cat"})
    assert response["status"] == "completed" and response["usage"]["total_tokens"] == 17
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    assert kept == [response]
    [message] = input_messages(response["output"])
    assert message["content"] == "Yes." and message["reasoning_content"] == "Hm."
    assert message["tool_calls"][0]["id"] == call["call_id"]


@pytest.mark.parametrize("size", [1, 7, 200])
def test_a_stream_says_the_same_as_the_response_at_its_end(size: int) -> None:
    made = writer()
    events = made.first(1)
    for at in range(0, len(TEXT), size):
        events += made.chunks(0, Delta(TEXT[at : at + size], (), (), 0))
    events += made.chunks(0, finished("length"))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]
    assert last["type"] == "response.incomplete"
    response = last["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == response["output"]
    for kind, index in (("reasoning_text", 0), ("output_text", 1)):
        deltas = [e["delta"] for e in events if e["type"] == f"response.{kind}.delta"]
        assert "".join(deltas) == done[index]["content"][0]["text"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "+a\\n-b"}', "+a\n-b"), ('{"patch": "+a"}', '{"patch": "+a"}')],
)
def test_a_call_of_a_custom_tool(arguments: str, text: str) -> None:
    """Its text is what the model gave the function that stands for it."""
    made = writer()
    call = f'<tool_call>{{"name": "patch", "arguments": {arguments}}}</tool_call>'
    events = [*made.chunks(0, Delta(call, (), (), 0)), *made.chunks(0, finished())]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[1:3] == ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
    assert events[1]["delta"] == events[2]["input"] == text
    [item] = events[-1]["response"]["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", text)
    assert "arguments" not in item


def test_a_stream_that_fails() -> None:
    made = writer()
    made.first(1)
    [event] = made.error(ApiError(504, "too late"))
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": "server_error", "message": "too late"}


def test_the_oldest_responses_are_dropped() -> None:
    store = ResponseStore(n_stored=3, n_chars=100)

    def put(i: int, n_chars: int = 1, owner: str = "a") -> None:
        store.put(owner, Stored({"id": str(i), "output": [{"id": f"m{i}"}]}, (), n_chars))

    for i in range(4):
        put(i)
    assert [store.get("a", str(i)) is None for i in range(4)] == [True, False, False, False]
    assert store.get("b", "3") is None and store.pop("b", "3") is None
    assert store.outputs("a").keys() == {"m1", "m2", "m3"} and not store.outputs("b")
    put(4, n_chars=98)
    assert [store.get("a", str(i)) is None for i in range(5)] == [True, True, False, False, False]
    assert store.pop("a", "4") is not None and store.get("a", "4") is None
    put(5, n_chars=98)
    assert store.get("a", "2") is not None, "room that was given back"
    put(6, n_chars=1000)
    assert store.get("a", "6") is None, "larger than everything"


# by OpenAI's client


def client_of(served: Served, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{served.url}/v1", api_key=key, max_retries=0, _strict_response_validation=True
    )


def test_responses_stream_the_same(served: Served) -> None:
    client = client_of(served)
    options: dict[str, Any] = {"model": "demo", "input": "Tell me a tale.", "max_output_tokens": 30}
    options |= {"extra_body": {"seed": 5}, "instructions": "Be brief."}
    response = client.responses.create(**options)
    with client.responses.stream(**options) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert response.output_text == text and text
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tell me a tale."},
    ]
    body = {"messages": messages, "max_tokens": 30, "seed": 5}
    chat = served.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert chat["content"] == text


def test_a_tool_must_be_called(served: Served) -> None:
    client = client_of(served)
    options: dict[str, Any] = {"model": "demo", "input": "A pet?", "max_output_tokens": 200}
    options |= {"tools": TOOLS, "tool_choice": "required"}
    with client.responses.stream(**options) as stream:
        streamed = stream.get_final_response()
    for response in (client.responses.create(**options), streamed):
        [call] = response.output
        assert call.type == "function_call" and call.name == "buy"
        arguments = json.loads(call.arguments)
        assert arguments["kind"] in ("cat", "dog") and isinstance(arguments["tame"], bool)


def test_a_conversation_goes_on_from_a_response(served: Served) -> None:
    """The text is the one after the whole conversation, of which nothing is read again."""
    client, options = client_of(served), {"model": "demo", "max_output_tokens": 12}
    first = client.responses.create(input="Who are you?", extra_body={"seed": 1}, **options)  # type: ignore[call-overload]
    chained = client.responses.create(
        input="And then?", previous_response_id=first.id, extra_body={"seed": 2}, **options
    )  # type: ignore[call-overload]
    whole = client.responses.create(
        input=[
            {"role": "user", "content": "Who are you?"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And then?"},
        ],
        extra_body={"seed": 2},
        **options,
    )  # type: ignore[call-overload]
    assert chained.output_text == whole.output_text
    assert chained.usage.input_tokens == whole.usage.input_tokens
    assert chained.usage.input_tokens_details.cached_tokens > first.usage.input_tokens
    assert client.responses.retrieve(chained.id).output == chained.output
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="no response"):
        client.responses.create(input="So?", previous_response_id=first.id, **options)  # type: ignore[call-overload]


def test_nobody_goes_on_from_the_response_of_another_key(served: Served) -> None:
    options: dict[str, Any] = {"model": "demo", "max_output_tokens": 2}
    made = client_of(served, "mine").responses.create(input="A secret.", **options)
    other = client_of(served, "other")
    with pytest.raises(openai.BadRequestError, match="of this API key"):
        other.responses.create(input="Which?", previous_response_id=made.id, **options)
    named: Any = [{"type": "item_reference", "id": made.output[0].id}]
    with pytest.raises(openai.BadRequestError, match="no stored response of this API key"):
        other.responses.create(input=named, **options)
    with pytest.raises(openai.NotFoundError):
        other.responses.input_items.list(made.id)
    for call in (other.responses.retrieve, other.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    assert client_of(served, "mine").responses.retrieve(made.id).id == made.id


def test_items_of_earlier_answers_are_named_by_reference(served: Served) -> None:
    """The Vercel AI SDK sends these in its second turn."""
    client, options = client_of(served), {"model": "demo", "max_output_tokens": 12}
    first = client.responses.create(input="Who are you?", **options)  # type: ignore[call-overload]
    said = [{"role": "user", "content": "Who are you?"}, {"role": "user", "content": "And then?"}]
    answers = [
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "assistant", "content": first.output_text},
    ]
    made = [
        client.responses.create(input=[said[0], answer, said[1]], extra_body={"seed": 2}, **options)  # type: ignore[call-overload]
        for answer in answers
    ]
    assert made[0].output_text == made[1].output_text
    assert made[0].usage.input_tokens == made[1].usage.input_tokens


def test_the_items_that_a_response_answers(served: Served) -> None:
    """Pages of a list, of which the client reads all."""
    client, options = client_of(served), {"model": "demo", "max_output_tokens": 2}
    first = client.responses.create(input="Who are you?", **options)  # type: ignore[call-overload]
    second = client.responses.create(  # type: ignore[call-overload]
        input=[
            {"type": "function_call", "call_id": "1", "name": "buy", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "done"},
        ],
        previous_response_id=first.id,
        **options,
    )
    kinds = ["message", "message", "function_call", "function_call_output"]
    for order, wanted in (("asc", kinds), ("desc", kinds[::-1])):
        pages = client.responses.input_items.list(second.id, order=order, limit=3)  # type: ignore[arg-type]
        assert len(pages.data) == 3
        items = [each.to_dict() for each in pages]
        assert [each["type"] for each in items] == wanted
    texts = [each["content"][0]["text"] for each in items[::-1][:2]]  # type: ignore[index]
    assert texts == ["Who are you?", first.output_text]
    assert client.responses.input_items.list(first.id).data[0].id == items[-1]["id"]
    with pytest.raises(openai.BadRequestError, match="after is 'x'; give the id of an item"):
        client.responses.input_items.list(second.id, after="x")


def test_the_tokens_of_a_prompt_are_counted(served: Served) -> None:
    client = client_of(served)
    given: dict[str, Any] = {"model": "demo", "input": "Who?", "tools": [*TOOLS, PATCH]}
    counted = client.responses.input_tokens.count(**given)
    made = client.responses.create(**given, max_output_tokens=1)
    assert made.usage is not None and counted.input_tokens == made.usage.input_tokens
    chat = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 1}
    counted = served.post("/v1/chat/completions/input_tokens", chat).json()["input_tokens"]
    usage = served.post("/v1/chat/completions", chat).json()["usage"]
    assert counted == usage["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"role": "user", "content": "x", "more": float("nan")}]},
        {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"x": 1e999}}]},
    ],
)
def test_what_json_cannot_say_is_refused(fields: dict[str, Any], served: Served) -> None:
    """Python's reader of JSON takes it, but the response and the list of items repeat it."""
    found = served.client.post(
        f"{served.url}/v1/responses", content=json.dumps(fields), headers=JSON
    )
    assert found.status_code == 400 and "no NaN" in found.json()["error"]["message"]


def test_an_error_counts_the_items_of_its_own_request(served: Served) -> None:
    client, options = client_of(served), {"model": "demo", "max_output_tokens": 2}
    first = client.responses.create(input="Who are you?", **options)  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError, match=r"input\[0\] has the type 'computer_call'"):
        client.responses.create(  # type: ignore[call-overload]
            input=[{"type": "computer_call"}], previous_response_id=first.id, **options
        )


def test_a_response_that_is_not_stored(served: Served) -> None:
    client = client_of(served)
    made = client.responses.create(model="demo", input="x", max_output_tokens=2, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
