"""Markers that are control tokens of a model, which add nothing to other texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import chat_models
import pytest
from serving import Served, running

from pyselfspec import Model
from pyselfspec.serve.settings import Capacity

MARKS = ("[THINK]", "[/THINK]", "<eot>")
SOURCE = (
    "{%- for m in messages %}{{ m.role + ': ' + m.content + '<eot>' }}{% endfor %}"
    "{{ 'assistant:' }}{% if thinks %}{{ '[THINK]' }}{% endif %}{# [/THINK] #}"
)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a tiny model whose thoughts stand between control tokens."""
    path = tmp_path_factory.mktemp("marks") / "marks.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chat_models.STYLES, "marks", (SOURCE, MARKS))
        patch.setattr(chat_models, "LAST_IS_EOS", {"marks"})
        chat_models.write(path, "marks", user_defined=(), space=False)
    with (
        Model(path) as model,
        running(model, capacity=Capacity(n_ctx=256, n_slots=1), template=None) as found,
    ):
        yield found


def answer(served: Served, token: str, **fields: Any) -> tuple[str | None, str]:
    """Return thoughts and text of an answer that consists of one token, again and again."""
    [found] = served.service.model.tokenize(token, add_special=False)
    body = CHAT | fields | {"logit_bias": {str(found): 1000}}
    message = served.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    return message.get("reasoning_content"), message["content"]


def test_control_tokens_separate_thoughts(served: Served) -> None:
    opens = served.service.model.tokenize("[THINK]", add_special=False)
    assert served.service.model.detokenize(opens) == "", "it is a control token"
    assert answer(served, "[THINK]") == ("[THINK]" * 3, "")


def test_thoughts_that_the_prompt_opens_end_with_a_control_token(served: Served) -> None:
    thinks = {"chat_template_kwargs": {"thinks": True}}
    assert answer(served, "[/THINK]", **thinks) == (None, "[/THINK]" * 3)
    [letter] = served.service.model.tokenize("a", add_special=False)
    assert served.service.model.detokenize([letter]) == "a"
    assert answer(served, "a", **thinks) == ("a" * 4, "")
    assert answer(served, "a") == (None, "a" * 4)


def test_thoughts_stay_in_the_text_if_asked(served: Served) -> None:
    assert answer(served, "a", reasoning_format="none") == (None, "a" * 4)


def test_variables_replace_nothing_of_a_request(served: Served) -> None:
    """A request has few variables, and none with the name of one of the template's own."""
    path, body = "/apply-template", CHAT | {"chat_template_kwargs": {"messages": "<eot>"}}
    assert served.post(path, body).json() == served.post(path, CHAT).json()
    many = {"chat_template_kwargs": {str(i): i for i in range(17)}}
    assert served.post(path, CHAT | many).status_code == 400
