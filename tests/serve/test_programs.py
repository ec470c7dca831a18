"""Programs of others that speak to servers, through their own packages: the extra `clients`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving import Served

QUESTION = "Tell me a tale."
SMALL = {"kind": {"enum": ["cat", "dog"]}, "tame": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": SMALL, "required": ["kind", "tame"]}
TOOL = {"name": "buy", "description": "Buy an animal.", "input_schema": SCHEMA}
FUNCTION = {
    "type": "function",
    "function": {"name": "buy", "description": "Buy an animal.", "parameters": SCHEMA},
}


@pytest.fixture(scope="module")
def said(served: Served) -> str:
    """The answer that every program must get, greedily."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 20}
    answer = served.post("/v1/chat/completions", body | {"temperature": 0}).json()
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=str)
def test_llm(options: list[str], served: Served, said: str, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    entry = f"- model_id: local\n  model_name: demo\n  api_base: {served.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    limits = ["-o", "max_tokens", "20", "-o", "temperature", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "local", *options, *limits, QUESTION],
        env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == said.strip()


def chat_model(kind: str, served: Served, n: int = 20) -> Any:
    """Return LangChain's model of a protocol."""
    if kind == "messages":
        anthropic = pytest.importorskip("langchain_anthropic")
        return anthropic.ChatAnthropic(
            base_url=served.url, api_key="none", model="demo", max_tokens=n, temperature=0
        )
    openai = pytest.importorskip("langchain_openai")
    return openai.ChatOpenAI(
        base_url=f"{served.url}/v1",
        api_key="none",
        model="demo",
        max_tokens=n,
        temperature=0,
        use_responses_api=kind == "responses",
    )


def text_of(message: Any) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_langchain(kind: str, served: Served, said: str) -> None:
    model = chat_model(kind, served)
    message = model.invoke(QUESTION)
    assert text_of(message) == said
    assert message.usage_metadata["output_tokens"] > 0
    assert "".join(text_of(chunk) for chunk in model.stream(QUESTION)) == said


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_tools_of_langchain(kind: str, served: Served) -> None:
    model = chat_model(kind, served, 200).bind_tools(
        [TOOL if kind == "messages" else FUNCTION], tool_choice="buy"
    )
    [call] = model.invoke(QUESTION).tool_calls
    assert call["name"] == "buy" and call["args"]["kind"] in ("cat", "dog") and call["id"]
    streamed = None
    for chunk in model.stream(QUESTION):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert [each["name"] for each in streamed.tool_calls] == ["buy"]
    assert isinstance(streamed.tool_calls[0]["args"]["tame"], bool)
