"""Single products of the library's CPU backend, as graphs of one node."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyselfspec import Model
from pyselfspec.util.build import LIB_DIR

F32, F16, BF16 = 0, 1, 30  # ggml types
PREC_F32, PREC_BF16, PREC_F16, PREC_Q8 = 10, 15, 20, 30
I64 = ctypes.c_int64
POINTER = ctypes.c_void_p


class Memory(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("at", POINTER), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """The few functions that a graph of one product takes."""

    def __init__(self) -> None:
        base, *_ = sorted(LIB_DIR.glob("*ggml-base*"))
        cpu, *_ = sorted(LIB_DIR.glob("*ggml-cpu*"))
        self.base, self.cpu = ctypes.CDLL(str(base)), ctypes.CDLL(str(cpu))
        for name in ("init", "new_tensor_2d", "mul_mat", "new_graph", "get_data"):
            getattr(self.base, f"ggml_{name}").restype = POINTER

    def product(
        self, weights: NDArray[np.float32], weight_type: int, x: NDArray[np.float32], prec: int
    ) -> NDArray[np.float32]:
        """x times the weights, both [n, k]; prec: how far activations may be rounded, 0: unsaid."""
        ggml = self.base
        context = POINTER(ggml.ggml_init(Memory(1 << 24, None, False)))
        try:
            w, a = (
                POINTER(ggml.ggml_new_tensor_2d(context, t, I64(of.shape[1]), I64(of.shape[0])))
                for t, of in ((weight_type, weights), (F32, x))
            )
            ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
            ggml.ggml_quantize_chunk(
                *(weight_type, weights.ctypes.data_as(POINTER), POINTER(ggml.ggml_get_data(w))),
                *(I64(0), I64(weights.shape[0]), I64(weights.shape[1]), None),
            )
            ctypes.memmove(ggml.ggml_get_data(a), x.ctypes.data, x.nbytes)
            result = POINTER(ggml.ggml_mul_mat(context, w, a))
            if prec:
                ggml.ggml_prec_set_src.restype = ctypes.c_bool
                assert ggml.ggml_prec_set_src(result, prec, 1)
            graph = POINTER(ggml.ggml_new_graph(context))
            ggml.ggml_build_forward_expand(graph, result)
            assert self.cpu.ggml_graph_compute_with_ctx(context, graph, 1) == 0
            out = np.empty((x.shape[0], weights.shape[0]), np.float32)
            ctypes.memmove(out.ctypes.data, ggml.ggml_get_data(result), out.nbytes)
            return out
        finally:
            ggml.ggml_free(context)


@pytest.fixture(scope="module")
def ggml(demo_path: Path) -> Ggml:
    with Model(demo_path) as model, model.context(n_ctx=64) as context:
        if not context.abilities.exact_width:
            pytest.skip("our kernels do not compute here")
    return Ggml()


@pytest.mark.parametrize("n_tokens", [1, 40])
@pytest.mark.parametrize(
    ("weight_type", "prec"), [(F16, PREC_F32), (F16, PREC_BF16), (BF16, PREC_F32)]
)
def test_activations_keep_the_precision_that_a_graph_asks_for(
    ggml: Ggml, weight_type: int, prec: int, n_tokens: int
) -> None:
    """They may be larger than any half, and finer than what rounding to bfloat16 leaves."""
    rng = np.random.default_rng(1)
    weights = rng.integers(-1, 2, (5, 70))
    x = rng.integers(100_000, 100_100, (n_tokens, 70))  # whole numbers, whose sums are exact
    got = ggml.product(weights.astype(np.float32), weight_type, x.astype(np.float32), prec)
    np.testing.assert_array_equal(got, x @ weights.T)


def test_half_precision_is_enough_where_nothing_else_is_asked_for(ggml: Ggml) -> None:
    weights, x = np.ones((5, 70), np.float32), np.full((1, 70), 1e6, np.float32)
    for prec in (0, PREC_F16, PREC_Q8):
        assert np.isinf(ggml.product(weights, F16, x, prec)).all()
