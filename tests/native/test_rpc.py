"""Models on devices of other machines: two servers on loopback."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_head
import tiny_nextn
from command_line import ONE_THREAD, PROGRAM, TIMEOUT, environment, run, run_alone
from fixture_types import TinyPath
from gguf import GGUFReader
from replayed import IDS, both
from rpc_servers import free_port, serving

from pyselfspec import GREEDY, Completion, Context, Fixed, LayerMask, Model
from pyselfspec.errors import ArgumentError, DecodeError, UnsupportedError
from pyselfspec.runtime import offload, rpc
from pyselfspec.runtime.context_handle import ContextHandle
from pyselfspec.runtime.context_options import ContextOptions
from pyselfspec.runtime.ffi import devices
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.runtime.short_list import ShortList
from pyselfspec.runtime.width_check import same_at_widths
from pyselfspec.speculate import drafters
from pyselfspec.util.sizes import size_text
from tools.bench.rpc import counted

PROMPT = "The old woman opened the door, and the old woman said"
N = 24


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    with serving(2) as servers:
        yield servers


def written(model: Model, **options: Any) -> Completion:
    with model.context(n_ctx=256, n_threads=1) as context:
        made = Completion(context, PROMPT, n_predict=N, sampling=GREEDY, **options)
        "".join(made)
    return made


def ways(n_layer: int) -> dict[str, dict[str, Any]]:
    fixed = Fixed(4, p_min=0.0)
    skip = LayerMask.skipping(n_layer, attn=[5, 6], ffn=[6, 7])
    early = LayerMask.early_exit(n_layer, 4)
    return {
        "plain": {"draft": None},
        "copies": {"draft": "ngram", "controller": fixed},
        "mask": {"draft": "layer-skip", "mask": skip, "controller": fixed},
        # verified in place, behind the blocks that both passes share
        "exit": {"draft": "layer-skip", "mask": early, "controller": fixed},
        "auto": {"draft": "auto"},
    }


def test_texts_are_those_of_one_machine(demo_path: Path, demo: Model, servers: list[str]) -> None:
    """The servers run the same kernels, so that not even a near-tie falls otherwise."""
    wanted = written(demo, draft=None).tokens
    assert len(wanted) == N
    with Model(demo_path, rpc=servers) as model:
        assert model.n_gpu_layers == model.n_layer + 1
        made = {name: written(model, **options) for name, options in ways(model.n_layer).items()}
        with (
            model.context(n_ctx=256, n_threads=1) as there,
            demo.context(n_ctx=256, n_threads=1) as here,
        ):
            assert same_at_widths(there) == same_at_widths(here)
            assert there.mask_support == here.mask_support
    for name, completion in made.items():
        assert completion.tokens == wanted, name
    for name in ("mask", "exit"):
        assert made[name].stats.n_accepted > N // 4, name


def test_every_way_to_draft(
    demo_path: Path, tiny_path: Any, servers: list[str], tmp_path: Path
) -> None:
    """With the same guesses as on one machine; other models and heads in files stay here."""
    target = tiny_path(late_scale=0.25, late_from=0)
    tensors = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(target).tensors}
    weights = tiny_head.knowing_weights(tensors)
    head = tiny_head.write(tmp_path / "head.gguf", weights, n_head_kv=2)
    own_head = tiny_nextn.write(tmp_path / "own.gguf", tiny_nextn.weights())
    others = [*drafters.names()]
    for path, names in (
        (target, [f"head:{head}", f"ngram+head:{head}"]),
        (own_head, ["head"]),
        (demo_path, [f"universal:{target}"]),
    ):
        with Model(path) as here, Model(path, rpc=servers) as there:
            for name in names:
                made = [guessed(model, name) for model in (here, there)]
                assert made[0] == made[1] and made[0][1] > 0, name
                others = [other for other in others if not name.startswith(other)]
    assert others == ["layer-skip", "model", "twin"]  # above; like universal


def guessed(model: Model, draft: str) -> tuple[list[int], int, int]:
    """Tokens of a text, how many were drafted and how many of those were right."""
    ids = [5 + i % 9 for i in range(40)]
    with model.context(n_ctx=512, n_threads=1) as context:
        made = Completion(
            *(context, PROMPT if draft.startswith("universal") else ids),
            n_predict=N,
            sampling=GREEDY,
            draft=draft,
            controller=Fixed(8, p_min=0.0),
        )
        for _ in made:
            pass
    return list(made.tokens), made.stats.n_drafted, made.stats.n_accepted


def test_some_blocks_here_and_some_there(demo_path: Path, demo: Model, servers: list[str]) -> None:
    """The number of bytes sent to a server is the size of its blocks."""
    with counted(servers[0]) as (name, traffic):
        with Model(demo_path, rpc=[name], n_gpu_layers=5) as model:
            assert model.n_gpu_layers == 5
            made = written(model, **ways(model.n_layer)["exit"])
            n_remote = model.file.head_bytes + sum(block.total for block in model.file.blocks[-4:])
            n_all = model.file.n_bytes
    assert made.tokens == written(demo, draft=None).tokens
    assert n_remote < traffic.n_sent < n_all


@pytest.mark.parametrize("n_gpu_layers", range(13))
def test_any_number_of_layers_may_be_there(
    n_gpu_layers: int, demo_path: Path, demo: Model, servers: list[str]
) -> None:
    """With one, the head is there alone: a pass without outputs has only empty tensors there."""
    wanted = written(demo, draft=None).tokens
    with Model(demo_path, rpc=servers[:1], n_gpu_layers=n_gpu_layers) as model:
        assert model.n_gpu_layers == n_gpu_layers <= model.n_layer == 12
        with model.context(n_ctx=256, n_threads=1) as context:
            context.decode([5, 6, 7], outputs="none")
            one_by_one = context.decode([8]).logits
        for name, options in ways(model.n_layer).items():
            assert written(model, **options).tokens == wanted, name
    with demo.context(n_ctx=256, n_threads=1) as context:
        context.decode([5, 6, 7], outputs="none")
        np.testing.assert_array_equal(one_by_one, context.decode([8]).logits)


def test_texts_are_those_of_their_replays(demo_path: Path, servers: list[str]) -> None:
    """The passes are the same, so nothing depends on what kernels do."""
    with Model(demo_path, rpc=servers[:1]) as model:
        for name, options in ways(model.n_layer).items():
            if name not in ("plain", "auto"):
                made, again = both(model, IDS, GREEDY, **options)
                assert made.tokens == again and made.stats.n_drafted, name


def test_as_many_layers_as_fit(
    demo_path: Path, servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With "auto", the free memory that a driver states decides; here the test states it."""
    with Model(demo_path, rpc=servers[:1], n_gpu_layers="auto") as model:
        assert model.n_gpu_layers == model.n_layer + 1  # this machine's memory
        file = model.file
    for n in (0, 1, 5):
        free = offload.needed_bytes(file, n)
        monkeypatch.setattr(devices, "free_bytes", lambda *_, free=free: free)
        with Model(demo_path, rpc=servers[:1], n_gpu_layers="auto") as model:
            assert model.n_gpu_layers == n
            assert len(written(model, draft=None).tokens) == N
    free = offload.needed_bytes(file, 5)
    monkeypatch.setattr(devices, "free_bytes", lambda *_: free)
    long = offload.ContextSize(2**20)
    for size in (offload.ContextSize(256), offload.ContextSize(0), long):
        with Model(demo_path, rpc=servers[:1], n_gpu_layers="auto", context_size=size) as model:
            n_ctx = size.n_ctx or file.context_length
            assert model.n_gpu_layers == offload.fitting(file, free, offload.ContextSize(n_ctx))
    assert model.n_gpu_layers < 5
    monkeypatch.setattr(llama, "llama_init_from_model", lambda *_: None)
    with (
        Model(demo_path, rpc=servers[:1]) as model,
        pytest.raises(DecodeError) as error,
        model.context(n_ctx=4096),
    ):
        pass
    assert f"need about {size_text(offload.needed_bytes(file, 13))} of" in str(error.value)
    assert 'enough for 5: give n_gpu_layers="auto"' in str(error.value)


def test_servers_are_free_again_when_the_model_is_closed(
    tiny_path: Any, servers: list[str], token_ids: Any
) -> None:
    def logits(*models: Model) -> list[Any]:
        found = []
        for model in models:
            with model.context(n_ctx=256, n_threads=1) as context:
                found.append(context.decode(token_ids(5)).logits)
        return found

    with Model(tiny_path()) as model:
        [wanted] = logits(model)
    for _ in range(2):
        with (
            Model(tiny_path(), rpc=servers[:1]) as one,
            Model(tiny_path(), rpc=servers) as two,  # one server has two models of a process
        ):
            for found in logits(one, two):
                np.testing.assert_allclose(found, wanted, atol=1e-4)
    outcome = run_alone(
        *("generate", tiny_path(), "-p", "hi", "-n", "3", "--json", "--rpc", ",".join(servers)),
        *ONE_THREAD,
    )
    assert outcome.json["n_generated"] == 3


#
# servers that cannot be used
#


def test_the_version_is_that_of_the_library(servers: list[str]) -> None:
    assert rpc.version(servers[0]) == rpc.PROTOCOL


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server that says this to whoever comes first; None for one that takes nobody in."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer or b"")

        thread = threading.Thread(target=answer_once)
        if answer is not None:
            thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        if answer is not None:
            thread.join()


def hello(major: int, minor: int) -> bytes:
    return struct.pack("<QBBBB24x", 28, major, minor, 0, 0)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (hello(6, 0), "speaks version 6.0 of the protocol, not 7.0"),
        (hello(7, 1), "speaks version 7.1 of the protocol"),
        (hello(7, 0)[:9], "cannot be used: "),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the reply is not that of an RPC server"),
        (b"", "the reply is not that of an RPC server"),
        (None, "does not reply; it serves one program at a time"),
    ],
)
def test_a_server_that_cannot_be_used(
    answer: bytes | None, says: str, tiny_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:
        monkeypatch.setattr(rpc, "REPLY_S", 0.1)
    with answering(answer) as server, pytest.raises(UnsupportedError, match=says):
        Model(tiny_path(), rpc=[server])


def test_one_line_when_a_server_goes_away(demo_path: Path) -> None:
    with serving(1) as [server]:
        args = ["-p", "hi", "-n", "-1", "-c", "4096", "--rpc", server, *ONE_THREAD]
        process = subprocess.Popen(
            [*PROGRAM, "generate", str(demo_path), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        process.stdout.read(1)  # it writes
    _, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert error.decode().splitlines()[-1].startswith("Error: lost connection to an RPC server")


def test_one_line_where_nobody_listens(tiny_path: Any) -> None:
    server = f"127.0.0.1:{free_port()}"
    outcome = run("generate", tiny_path(), "-p", "hi", "--rpc", server)
    assert (outcome.status, outcome.stdout) == (1, "")
    assert f"the server {server} cannot be used" in outcome.stderr
    assert outcome.stderr.count("\n") == 1 and "pyselfspec rpc-serve" in outcome.stderr


def test_what_is_no_list_of_servers(tiny_path: Any) -> None:
    for text in ("here", "here:", "here:0", "here:65536", "a:1,b", "[::1]:5", "a b:5"):
        outcome = run("models", "info", tiny_path(), "--rpc", text)
        assert outcome.status == 2 and "HOST:PORT" in outcome.stderr, text
    with pytest.raises(ArgumentError, match="each named once"):
        Model(tiny_path(), rpc=["a:1", "a:1"])


#
# serving devices
#


def test_whoever_listens_beyond_loopback_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(rpc, "serve", lambda *args: asked.append(args))
    for host, warned in (("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)):
        outcome = run("rpc-serve", "--host", host, "--port", "5555", "-t", "1")
        assert ("listen only on networks that you trust" in outcome.stderr) == warned
        assert asked[-1] == (socket.gethostbyname(host), 5555, 1, None)
    assert run("rpc-serve").status == 0 and asked[-1][:2] == ("127.0.0.1", rpc.PORT)


def test_a_port_that_is_taken(servers: list[str]) -> None:
    port = servers[0].partition(":")[2]
    outcome = run_alone("rpc-serve", "--port", port)
    assert outcome.status == 1 and "Traceback" not in outcome.stderr
    assert f"cannot listen on 127.0.0.1:{port}" in outcome.stderr.splitlines()[-1]


def test_gpus_are_not_servers() -> None:
    """llama.cpp says that it can use GPUs wherever RPC was built."""
    assert len(devices.offered_devices()) >= 1
    assert not any("RPC" in name for name in devices.gpus())


def adopted(model: Model, address: int) -> Context:
    options = ContextOptions(n_batch=64, n_threads=1, n_seq_max=1, flash_attn=True)
    return Context(model, ContextHandle(address, is_owned=False), options)


def test_a_device_that_may_help_ends_the_promise(tiny_path: TinyPath, servers: list[str]) -> None:
    """Weights that are here are multiplied here; where llama.cpp may hand them to another device,
    nothing is promised, and lists of tokens are refused."""
    with Model(tiny_path(qtype="Q8_0"), rpc=servers[:1], n_gpu_layers=0) as model:
        with model.context(n_ctx=256, n_threads=1) as context:
            alone = context.abilities.exact_width
            assert context.can_shorten == bool(alone)
        params = llama.llama_context_default_params()
        params.n_ctx, params.kv_unified, params.op_offload = 256, True, True
        handle = llama.llama_init_from_model(model.handle, params)
        try:
            with adopted(model, handle) as context:
                assert context.abilities.exact_width == 0 and not context.can_shorten
                short = Pass(head="best", among=ShortList(4, model.n_vocab))
                with pytest.raises(UnsupportedError, match="another device than the CPU may"):
                    context.run(Rows.of(0, 0, [7]), short)
        finally:
            llama.llama_free(handle)
    with Model(tiny_path(qtype="Q8_0")) as model, model.context(n_ctx=256) as context:
        assert context.abilities.exact_width == alone
