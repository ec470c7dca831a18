"""How many layers fit on devices, counted by hand on tiny models."""

from __future__ import annotations

import pytest
from fixture_types import TinyPath

from pyselfspec import Model
from pyselfspec.gguf import file as gguf_file
from pyselfspec.gguf.file import GgufFile
from pyselfspec.runtime import offload

N_CTX = 512
SIZE = offload.ContextSize(N_CTX)


@pytest.fixture(scope="module")
def file(tiny_path: TinyPath) -> GgufFile:
    return gguf_file.check(tiny_path())


def bytes_by_hand(file: GgufFile, n_layers: int) -> int:
    """Bytes of the head and of the last blocks: weights by the names of tensors, K and V of half
    precision, and 512 rows of logits."""
    total = offload.SPARE_BYTES
    if n_layers:
        total += file.head_bytes + 512 * 4 * file.n_vocab
    for il in range(file.n_layer - n_layers + 1, file.n_layer):
        total += sum(t.n_bytes for t in file.tensors if t.name.startswith(f"blk.{il}."))
        total += sum(file.kv_values) * 2 * N_CTX // file.n_layer
    return total


def test_needed_bytes_are_those_of_the_last_layers(file: GgufFile) -> None:
    for n in range(file.n_layer + 2):
        assert offload.needed_bytes(file, n, SIZE) == bytes_by_hand(file, n)


def test_as_many_layers_fit_as_their_bytes(file: GgufFile) -> None:
    for n in range(file.n_layer + 2):
        needed = bytes_by_hand(file, n)
        assert offload.fitting(file, needed, SIZE) == n
        assert offload.fitting(file, needed - 1, SIZE) == max(0, n - 1)


def test_a_shortage_says_what_fits(file: GgufFile) -> None:
    n_all = file.n_layer + 1
    text = offload.shortage(file, n_all, bytes_by_hand(file, 2), SIZE)
    assert text.startswith(f"{n_all} layers with {N_CTX} tokens of context need about ")
    assert text.endswith("are free, enough for 2")
    assert offload.shortage(file, n_all, bytes_by_hand(file, n_all), SIZE) == ""
    assert offload.shortage(file, 0, 0, SIZE) == ""


def test_a_longer_context_leaves_room_for_fewer_layers(file: GgufFile) -> None:
    n_free = bytes_by_hand(file, file.n_layer + 1)
    sizes = [offload.ContextSize(n_ctx) for n_ctx in (1, N_CTX, 2**20)]
    fits = [offload.fitting(file, n_free, size) for size in sizes]
    assert fits == sorted(fits, reverse=True) and fits[0] > fits[-1]


def test_smaller_types_leave_room_for_more_layers(file: GgufFile) -> None:
    half, quarter = (offload.ContextSize(2**20, kind, kind) for kind in ("f16", "q4_0"))
    n_free = offload.needed_bytes(file, file.n_layer, quarter)
    assert offload.fitting(file, n_free, quarter) == file.n_layer
    assert offload.fitting(file, n_free, half) < file.n_layer


def test_memory_is_counted_only_where_a_context_fails(
    tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("counted for a context that can be made")

    monkeypatch.setattr(offload, "shortage", fail)
    with Model(tiny_path(), n_gpu_layers=0) as model:
        model.context(n_ctx=256).close()
