"""Architectures and contexts out of the ordinary: exact, or refused with a sentence.

What could end the process runs in an interpreter of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_models import WRITERS

from pyselfspec import Context, LayerMask, Model
from pyselfspec.errors import UnsupportedError

ENTER = LayerMask.enter_at(4, 2)

OpenOdd = Callable[[str], Context]


@pytest.fixture(scope="module")
def odd_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("odd")

    def path(arch: str) -> Path:
        file = folder / f"{arch}.gguf"
        if not file.exists():
            WRITERS[arch](file)
        return file

    return path


@pytest.fixture
def odd(odd_path: Callable[[str], Path]) -> Iterator[OpenOdd]:
    with ExitStack() as stack:

        def context(arch: str) -> Context:
            model = stack.enter_context(Model(odd_path(arch)))
            return model.context(n_ctx=256, n_batch=64, n_threads=1)

        yield context


CODE = """
import sys
import numpy as np
from pyselfspec import *
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.runtime.ffi.load import llama
model = Model(sys.argv[1])
context = model.context(n_ctx=256, n_batch=64, n_threads=1)
"""


@pytest.fixture
def odd_error(odd_path: Callable[[str], Path], run_python: Any) -> Callable[[str, str], str]:
    def error(arch: str, code: str) -> str:
        run = run_python(CODE + code, odd_path(arch), GGML_NO_BACKTRACE="1")
        assert run.returncode == 1, f"exit status {run.returncode}: {run.stdout}{run.stderr}"
        return str(run.stderr.strip().splitlines()[-1].removeprefix("pyselfspec.errors."))

    return error


@pytest.mark.sanitized
def test_states_without_ids_where_blocks_read_ids(odd: OpenOdd) -> None:
    """The ids are read by an input without a name, and through the embedding of the batch."""
    context, tokens = odd("gemma4"), [7, 8, 9, 10]
    want = context.decode(tokens, hidden_at=2)
    got = context.decode(tokens, hidden=want.hidden, mask=ENTER, pos=0, in_place=True)
    hidden, logits = want.hidden, got.logits
    context.sequence().drop()
    np.testing.assert_array_equal(logits, context.decode(tokens).logits)
    with pytest.raises(UnsupportedError, match="give the token ids too"):
        context.decode(hidden=hidden, mask=ENTER, pos=0, in_place=True)


@pytest.mark.sanitized
def test_states_that_are_not_one_vector_per_token(odd_error: Callable[[str, str], str]) -> None:
    code = "context.decode([7, 8], hidden=np.zeros((2, 64)), mask=LayerMask.enter_at(4, 2))"
    assert odd_error("gemma3n", code).startswith("UnsupportedError: architecture gemma3n, block")
    error = odd_error("gemma3n", "context.decode([7, 8], hidden_at=2)")
    assert "not one vector per token" in error


@pytest.mark.sanitized
def test_best_token_of_a_model_without_logits(odd_error: Callable[[str, str], str]) -> None:
    error = odd_error("bert", "context.run(Rows.of(0, 0, [5, 6, 7]), Pass(head='best'))")
    assert error == "UnsupportedError: architecture bert keeps no K/V: it has logits only"


RAW = """
import sys
from pyselfspec.runtime.ffi import calls
from pyselfspec.runtime.ffi.load import native
from pyselfspec.runtime.ffi.load import llama
model = llama.llama_model_load_from_file(
    sys.argv[1].encode(), llama.llama_model_default_params()
)
params = llama.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 256, 64, 16, 4
params.n_threads = params.n_threads_batch = 1

def decode(n_tokens):
    calls.decode(
        session, tokens=range(5, 5 + n_tokens), seq_ids=[0] * n_tokens,
        pos=range(n_tokens), outputs=b"\\1" * n_tokens, hidden=None, mask=None, hidden_at=(),
        hidden_out=None, head="logits", in_place=False,
    )
"""
MADE = """
context = llama.llama_init_from_model(model, params)
session = native.selfspec_init(context)
"""


@pytest.fixture
def raw_error(run_python: Any) -> Callable[[Path, str], str]:
    """Return the error line of code on a context made with llama.cpp's own functions."""

    def error(path: Path, code: str) -> str:
        run = run_python(RAW + code, path, GGML_NO_BACKTRACE="1")
        assert run.returncode == 1, f"exit status {run.returncode}: {run.stdout}{run.stderr}"
        return str(run.stderr.strip().splitlines()[-1].removeprefix("pyselfspec.errors."))

    return error


@pytest.mark.sanitized
def test_encoders_whose_output_nobody_computes(
    odd_path: Callable[[str], Path], raw_error: Callable[[Path, str], str]
) -> None:
    error = raw_error(odd_path("t5"), "params.kv_unified = True" + MADE + "decode(3)")
    assert error.startswith("UnsupportedError: architecture t5 has an encoder")


@pytest.mark.sanitized
def test_more_outputs_than_a_context_has_room_for(
    tiny_path: Any, raw_error: Callable[[Path, str], str]
) -> None:
    """Here and below llama.cpp ends the process."""
    error = raw_error(tiny_path(), "params.n_outputs_max = 4" + MADE + "decode(40)")
    assert error == ("ArgumentError: 40 outputs and 4 sequences, allowed is n_outputs_max = 4")


@pytest.mark.sanitized
def test_more_tokens_than_fit_without_causal_attention(
    tiny_path: Any, raw_error: Callable[[Path, str], str]
) -> None:
    code = MADE + "llama.llama_set_causal_attn(context, False)\ndecode(40)"
    assert raw_error(tiny_path(), code).endswith("at most n_ubatch = 16")
