"""The Messages API: its translation without a model, and the server by Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from serving import Served, running

from pyselfspec import Model
from pyselfspec.answers.form import AnswerForm
from pyselfspec.answers.reader import AnswerReader
from pyselfspec.serve.endpoints.messages import MessageWriter
from pyselfspec.serve.endpoints.messages_request import MessagesRequest, to_chat
from pyselfspec.serve.engine.jobs import Delta, Finished
from pyselfspec.serve.protocol.errors import ApiError
from pyselfspec.serve.protocol.writers import Answer, Json
from pyselfspec.serve.settings import Capacity
from pyselfspec.speculate.stats import GenerationStats
from pyselfspec.templates.template import ChatTemplate

KEY = "open sesame"
SMALL = {"kind": {"enum": ["cat", "dog"]}, "tame": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": SMALL, "required": ["kind", "tame"]}
TOOLS: list[Any] = [{"name": "buy", "description": "Buy an animal.", "input_schema": SCHEMA}]
FOUND = {
    "type": "search_result",
    "source": "https://example.org/ships",
    "title": "Ships",
    "content": [
        {"type": "text", "text": "The first sank."},
        {"type": "text", "text": "The second did not."},
    ],
}
HELLO: list[Any] = [{"role": "user", "content": "Tell me a tale."}]
THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "assistant: {% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def served(demo: Model) -> Iterator[Served]:
    capacity = Capacity(n_ctx=1024, n_slots=2)
    with running(demo, capacity=capacity, keys=(KEY,), n_bytes=40_000) as found:
        found.client.headers["x-api-key"] = KEY
        yield found


# without a model


def chat_of(**fields: Any) -> Any:
    body = {"messages": HELLO, "max_tokens": 9} | fields
    return to_chat(MessagesRequest.model_validate(body))


def test_a_conversation_with_tools_and_thoughts() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "buy", "input": {"kind": "cat"}}
    chat = chat_of(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Buy."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "A cat?", "signature": ""},
                    {"type": "text", "text": "I do."},
                    call,
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "bought"},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
        tools=TOOLS,
        tool_choice={"type": "tool", "name": "buy"},
    )
    function = {"name": "buy", "arguments": '{"kind": "cat"}'}
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Buy."}]},
        {
            "role": "assistant",
            "content": "I do.",
            "reasoning_content": "A cat?",
            "tool_calls": [{"id": "t1", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "bought"},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ]
    assert chat.tools[0].function.parameters == SCHEMA
    assert chat.tool_choice.function.name == "buy"


def test_unknown_blocks_are_left_out_of_answers_and_of_results(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "base64", "data": "AA=="}},
        {"type": "tool_reference", "tool_name": "buy"},
    ]
    call = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    _, answer, said = chat_of(
        messages=[
            *HELLO,
            {"role": "assistant", "content": [call, {"type": "text", "text": "I look."}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": result}],
            },
        ]
    ).messages
    assert answer == {"role": "assistant", "content": "I look."}
    url = {"url": "data:image;base64,AA=="}
    assert said["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": url},
    ]
    assert "messages[1].content[0] has the type 'server_tool_use'" in caplog.text
    assert "messages[2].content[0].content[2] has the type 'tool_reference'" in caplog.text


def test_what_a_search_found_is_text() -> None:
    said = chat_of(messages=[{"role": "user", "content": [FOUND]}]).messages[0]
    text = "Ships\nhttps://example.org/ships\nThe first sank.\nThe second did not."
    assert said["content"] == [{"type": "text", "text": text}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [FOUND]}
    said = chat_of(messages=[{"role": "user", "content": [result]}]).messages[0]
    assert said["role"] == "tool" and said["content"] == [{"type": "text", "text": text}]


def test_settings_of_a_request() -> None:
    chat = chat_of(stop_sequences=["x"], temperature=0.5, top_k=3, thinking={"type": "disabled"})
    assert chat.max_tokens == 9 and chat.stops == ("x",)
    assert (chat.temperature, chat.top_k, chat.top_p) == (0.5, 3, None)
    assert chat.chat_template_kwargs == {"enable_thinking": False}
    schema = {"type": "json_schema", "schema": SCHEMA}
    assert chat_of(output_config={"format": schema}).response_format.json_schema.schema_ == SCHEMA


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            r"messages\[0\]\.content\[0\]\.source has the type base64 here",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "no tools of its own"),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "needs a name"),
        ({"messages": [{"role": "user", "content": []}]}, "is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]},
            "only text is supported here",
        ),
        (
            {"messages": [{"role": "user", "content": [{**FOUND, "content": [7]}]}]},
            r"content\[0\]\.content must be a string or a list",
        ),
        (
            {"messages": [{"role": "user", "content": [{**FOUND, "content": 0}]}]},
            r"content\[0\]\.content must be a string or a list",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "tool_use_id must be a string",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]},
            "thinking must be a string",
        ),
    ],
)
def test_what_a_request_cannot_have(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        chat_of(**fields)
    assert caught.value.status == 400


def writer(stops: tuple[str, ...] = ()) -> MessageWriter:
    reader = AnswerReader(AnswerForm.of("<think></think>"), {"buy": SCHEMA})
    return MessageWriter({"id": "msg_1", "model": "demo"}, reader, 10, stops, stream=True)


def finished(reason: str = "eog", stopped_by: str | None = None) -> Finished:
    stats = GenerationStats(n_prompt=10, n_prompt_reused=4, n_generated=7)
    return Finished(reason, stats, None, stopped_by=stopped_by)


def whole(text: str, end: Finished, stops: tuple[str, ...] = ()) -> Json:
    answer = Answer()
    answer.observe(Delta(text, (), (), 0))
    answer.observe(end)
    return writer(stops).whole([answer])


TEXT = (
    '<think>Hm.</think>\n\nYes.<tool_call>{"name": "buy", "arguments": {"kind": "cat"}}</tool_call>'
)


def test_an_answer_as_blocks() -> None:
    message = whole(TEXT, finished())
    thought, text, call = message["content"]
    assert thought == {"type": "thinking", "thinking": "Hm.", "signature": ""}
    assert text == {"type": "text", "text": "Yes."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "buy", {"kind": "cat"})
    assert message["stop_reason"] == "tool_use"
    usage = message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (6, 4)
    assert usage["output_tokens"] == 7


@pytest.mark.parametrize(
    ("end", "reason", "stop"),
    [
        (finished(), "end_turn", None),
        (finished("length"), "max_tokens", None),
        (finished("stop", "END"), "stop_sequence", "END"),
        (finished("stop", "\nUser:"), "end_turn", None),  # the template's
    ],
)
def test_reasons_to_stop(end: Finished, reason: str, stop: str | None) -> None:
    message = whole("Yes.", end, ("END",))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)


def test_a_stream_of_blocks() -> None:
    made = writer()
    events = made.first(1)
    for piece in (TEXT[:9], TEXT[9:25], TEXT[25:]):
        events += made.chunks(0, Delta(piece, (), (), 0))
    events += [*made.chunks(0, finished()), *made.last([finished()])]
    kinds = [event["type"].removeprefix("content_block_") for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    blocks = [event["content_block"]["type"] for event in events if "content_block" in event]
    assert blocks == ["thinking", "text", "tool_use"]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [
        0,
        1,
        2,
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(each.get("thinking", "") for each in deltas) == "Hm."
    assert json.loads("".join(each.get("partial_json", "") for each in deltas)) == {"kind": "cat"}
    assert made.FORM.encode(events[0]).startswith(b"event: message_start\ndata: {")
    assert made.error(ApiError(503, "over"))[0]["error"]["type"] == "overloaded_error"


# by Anthropic's client


def test_messages_stream_the_same(served: Served) -> None:
    client = served.anthropic(KEY)
    options: dict[str, Any] = {"model": "demo", "max_tokens": 30, "messages": HELLO}
    options["extra_body"] = {"seed": 5}
    message = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    [block] = message.content
    assert block.type == "text" and block.text == text
    assert streamed.stop_reason == message.stop_reason
    assert streamed.usage.output_tokens == message.usage.output_tokens > 0
    body = {"messages": HELLO, "max_tokens": 30, "seed": 5}
    chat = served.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert chat["content"] == text


def test_the_tokens_of_a_prompt_are_counted(served: Served) -> None:
    client = served.anthropic(KEY)
    given: dict[str, Any] = {"model": "demo", "messages": HELLO, "system": "Be brief."}
    counted = client.messages.count_tokens(**given).input_tokens
    usage = client.messages.create(**given, max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_tool_must_be_used(served: Served) -> None:
    client = served.anthropic(KEY)
    options: dict[str, Any] = {"model": "demo", "max_tokens": 200, "messages": HELLO}
    options |= {"tools": TOOLS, "tool_choice": {"type": "any"}}
    with client.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    for message in (client.messages.create(**options), streamed):
        [block] = message.content
        assert message.stop_reason == "tool_use" and block.type == "tool_use"
        assert block.name == "buy" and block.id
        arguments: Any = block.input
        assert arguments["kind"] in ("cat", "dog") and isinstance(arguments["tame"], bool)


def test_thoughts_are_blocks_of_their_own(served: Served, demo: Model) -> None:
    """The prompt opens them; a request can switch them off."""
    own, served.service.template = served.service.template, ChatTemplate.of(demo, THINKING)
    options: dict[str, Any] = {"model": "demo", "max_tokens": 12, "messages": HELLO}
    try:
        client = served.anthropic(KEY)
        enabled = client.messages.create(
            **options, thinking={"type": "enabled", "budget_tokens": 1024}
        )
        disabled = client.messages.create(**options, thinking={"type": "disabled"})
        body = {"messages": HELLO, "max_tokens": 12, "stream": True}
        chunks = served.post("/v1/chat/completions", body).text
    finally:
        served.service.template = own
    assert [block.type for block in enabled.content] == ["thinking"]
    assert [block.type for block in disabled.content] == ["text"]
    assert '"reasoning_content":"' in chunks


def test_an_answer_that_has_begun_goes_on(served: Served) -> None:
    """The last message is its beginning, which is not repeated."""
    begun = [*HELLO, {"role": "assistant", "content": "The king"}]
    body = {"messages": begun, "max_tokens": 12, "seed": 3}
    got = served.post("/v1/messages", body).json()
    same = body | {"pyselfspec": {"continue": True}}
    want = served.post("/v1/chat/completions", same).json()
    assert got["content"][0]["text"] == want["choices"][0]["message"]["content"]
    counted = served.post("/v1/messages/count_tokens", {"messages": begun}).json()
    assert counted["input_tokens"] == want["usage"]["prompt_tokens"]
    assert chat_of(messages=begun).continues
    call = {"type": "tool_use", "id": "t1", "name": "buy", "input": {}}
    text = {"type": "text", "text": "Wait."}
    assert not chat_of(messages=[*HELLO, {"role": "assistant", "content": [text, call]}]).continues


def test_models(served: Served) -> None:
    client = served.anthropic(KEY)
    assert [each.id for each in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").display_name == "demo"
    with pytest.raises(anthropic.NotFoundError, match="one model"):
        client.models.retrieve("other")


def test_errors_have_the_shape_of_the_protocol(served: Served) -> None:
    client = served.anthropic(KEY)
    with pytest.raises(anthropic.BadRequestError, match="base64") as bad:
        client.messages.create(
            model="demo",
            max_tokens=5,
            messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}],  # type: ignore[list-item,typeddict-item]
        )
    assert bad.value.body["type"] == "error"  # type: ignore[index,call-overload]
    with pytest.raises(anthropic.AuthenticationError, match="API key"):
        served.anthropic("wrong").messages.create(model="demo", max_tokens=5, messages=HELLO)
    for body, status, kind in (
        ({"messages": HELLO}, 400, "invalid_request_error"),  # no max_tokens
        ({"messages": HELLO, "max_tokens": 1, "system": "x" * 50_000}, 413, "request_too_large"),
        (
            {"messages": [{"role": "user", "content": "x " * 9_000}], "max_tokens": 1},
            400,
            "invalid_request_error",
        ),
    ):
        response = served.post("/v1/messages", body)
        error = response.json()
        assert response.status_code == status, error
        assert error["type"] == "error" and error["error"]["type"] == kind
        assert "\n" not in error["error"]["message"]
    response = served.client.get(f"{served.url}/v1/messages")
    assert response.status_code == 405 and response.json()["type"] == "error"
