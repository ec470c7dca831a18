"""Passes that fail or are stopped: none of their rows stays in the memory, and the next pass gives
the bits of a context in which nothing has failed."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_head
from fixture_types import NewContext, RunPython, TinyModel, TinyPath
from preloads import preload, shared_library
from tiny_mamba import write_mamba

from pyselfspec import GREEDY, Context, Model
from pyselfspec.errors import ArgumentError, DecodeError
from pyselfspec.runtime.ffi.load import native
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.serve.engine.engine import Engine
from pyselfspec.serve.engine.jobs import Event, Failed, Job, Started, Ticket
from pyselfspec.speculate.config import DraftConfig

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="puts functions before the library's")


# --- memory ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def no_memory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """For LD_PRELOAD."""
    source = Path(__file__).with_name("no_memory.cpp")
    return preload(shared_library(source, tmp_path_factory.mktemp("memory")))


WITHOUT_MEMORY = """
import ctypes, sys
import numpy as np
from pyselfspec import Model
from pyselfspec.errors import DecodeError
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.passes import Pass, Rows
process = ctypes.CDLL(None)

def without(run):
    process.no_memory(True)
    try:
        return run()
    finally:
        process.no_memory(False)
        assert process.n_without_memory(), "no allocation has failed"

model = Model(sys.argv[1])
context = model.context(n_ctx=256, n_batch=64, n_threads=1)
tokens = list(range(10, 27))
"""

OF_A_HEAD = """
from pathlib import Path
head = DraftHead(context, Path(sys.argv[2]))
states = np.ones((17, model.n_embd), np.float32)

def once():
    head.sequence(0).drop()
    left = head.decode(Rows.of(0, 0, tokens, "last"), states)
    return left.tobytes(), head.argmax(16)

context.decode(tokens)
head.decode(Rows.of(1, 0, [*tokens, 9], "all"), np.ones((18, model.n_embd), np.float32))
assert without(once) == once() == once()
"""

SHARED_ROWS = """
def once():
    for seq_id in (0, 1):
        context.sequence(seq_id).drop()
    rows = Rows.of(0, 0, tokens)
    shared = ((1,),) * len(rows)
    context.run(Rows(rows.tokens, rows.seq_ids, rows.pos, rows.outputs, shared))
    assert [context.sequence(i).n_past for i in (0, 1)] == [17, 17]
    return np.stack([context.logits(i) for i in range(17)]).tobytes()

context.decode([*tokens, 9], seq=context.sequence(2))
assert without(once) == once() == once()
"""

WORK_BUFFER = """
def once():
    context.decode(range(20, 70), outputs="last")
    return context.logits(49).tobytes()

try:
    without(once)  # the first pass, which has no work buffer yet
except DecodeError as error:
    assert "status -2" in str(error), error
else:
    raise AssertionError("nothing was raised")
assert context.sequence().n_past == 0 and context.sequence().tokens == ()
found = once()
with model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
    assert once() == found
"""


RECURRENT = """
def once():
    context.sequence().drop()
    context.decode(tokens)
    return context.decode([9]).logits.tobytes()

first = once()
context.sequence().drop()
context.decode(tokens)
try:
    without(lambda: context.decode([9, 8, 7]))  # a width that has no graph yet
except DecodeError:
    assert context.sequence().n_past == 0
else:
    assert context.sequence().n_past == 20
    context.sequence().drop()
assert once() == first
"""


QUESTIONS = """
from lora_adapters import set_control_vector
vector = np.ones(model.n_embd * (model.n_layer - 1), np.float32)
set_control_vector(context, vector)  # memory for graphs is reserved again when it is needed next
try:
    without(lambda: context.mask_support)
except DecodeError as error:
    assert "failed to allocate" in str(error), error
else:
    raise AssertionError("nothing was raised")
assert context.mask_support.attn
found = context.decode(tokens).logits.tobytes()
with model.context(n_ctx=256, n_batch=64, n_threads=1) as fresh:
    set_control_vector(fresh, vector)
    assert fresh.decode(tokens).logits.tobytes() == found
"""


@on_linux
def test_a_recurrent_text_whose_memory_cannot_be_had_does_not_go_on(
    no_memory: str, tmp_path: Path, run_python: RunPython
) -> None:
    """Its state is lost with the pass, so the pass is not tried again without it."""
    path = write_mamba(tmp_path / "mamba.gguf")
    run = run_python(WITHOUT_MEMORY + RECURRENT, path, LD_PRELOAD=no_memory)
    assert run.returncode == 0, run.stderr


@on_linux
@pytest.mark.parametrize("code", [OF_A_HEAD, SHARED_ROWS, WORK_BUFFER, QUESTIONS])
def test_a_pass_whose_memory_cannot_be_had(
    code: str, no_memory: str, tiny_path: TinyPath, tmp_path: Path, run_python: RunPython
) -> None:
    """A graph that finds none runs in the context's own memory, and a pass that needs more fails;
    either way the next one gives the same bits as before."""
    head = tiny_head.write(tmp_path / "head.gguf", tiny_head.random_weights())
    run = run_python(WITHOUT_MEMORY + code, tiny_path(qtype="Q8_0"), head, LD_PRELOAD=no_memory)
    assert run.returncode == 0, run.stderr


# --- passes that are stopped ----------------------------------------------------------------------

LONG = {"n_ctx": 4096, "n_batch": 4096, "n_threads": 1}
DEEP = {"n_layer": 24}  # a pass over so many tokens takes a hundred times BUSY_S
BUSY_S = 0.01
DEADLINE_S = 60


def tokens_of(n: int) -> list[int]:
    return [10 + i % 200 for i in range(n)]


def when_busy(thread: threading.Thread, deed: Callable[[], None]) -> threading.Thread:
    """Do something, in a thread of its own, as soon as this one has computed for BUSY_S."""
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    start, end = time.clock_gettime(clock), time.monotonic() + DEADLINE_S

    def watch() -> None:
        while time.clock_gettime(clock) < start + BUSY_S:
            assert time.monotonic() < end, "nothing was computed"
            time.sleep(0.001)
        deed()

    watching = threading.Thread(target=watch)
    watching.start()
    return watching


def logits_after(context: Context) -> bytes:
    return context.decode([7, 8, 9]).logits.tobytes()


@pytest.fixture
def context(tiny: TinyModel, new_context: NewContext) -> Context:
    context = new_context(tiny(**DEEP), **LONG)
    context.decode([5, 6])
    return context


def require_unchanged(context: Context, new_context: NewContext) -> None:
    """It holds what it held, and goes on from there."""
    assert context.sequence().n_past == 2 and context.sequence().tokens == (5, 6)
    fresh = new_context(context.model, **LONG)
    fresh.decode([5, 6])
    assert logits_after(context) == logits_after(fresh)


CTRL_C = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[2])
import numpy as np
from test_failed_passes import LONG, tokens_of, when_busy
from pyselfspec import Model
from pyselfspec.runtime.passes import Hidden, Pass, PictureRows, Rows

signal.signal(signal.SIGINT, signal.default_int_handler)
interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
with Model(sys.argv[1]) as model, model.context(**LONG) as context:
    seq = context.sequence()
    context.decode([5, 6])
    for _ in range(2):
        watching = when_busy(threading.main_thread(), interrupt)
        try:
            context.decode(tokens_of(4000), outputs="none")
            raise AssertionError("nothing was raised")
        except KeyboardInterrupt:
            pass
        watching.join()
        assert seq.n_past == 2, "the pass went on to its end"
        assert seq.tokens == (5, 6)

    picture = Rows.of(0, 2, [-1 - i for i in range(4000)], "none")
    states = Hidden(np.ones((4000, model.n_embd), np.float32))
    watching = when_busy(threading.main_thread(), interrupt)
    try:
        context.run(picture, Pass(embedded=PictureRows(states, is_causal=True)))
        raise AssertionError("nothing was raised")
    except KeyboardInterrupt:
        pass
    watching.join()
    assert seq.n_past == 2 and seq.tokens == (5, 6)

    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(seq.n_past))
    watching = when_busy(threading.main_thread(), interrupt)
    context.decode(tokens_of(4000), outputs="none")
    watching.join()
    assert heard == [4002], "a handler that raises nothing finds the pass finished"
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
"""


@pytest.mark.sanitized
@on_linux
def test_ctrl_c_stops_a_pass(tiny_path: TinyPath, run_python: RunPython) -> None:
    run = run_python(CTRL_C, tiny_path(**DEEP), Path(__file__).parent)
    assert (run.returncode, run.stderr) == (0, "")


AFTER_A_PASS = """
import ctypes, signal, sys
from pyselfspec import Model
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.speculate.config import DraftConfig

def interrupted():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return True

signal.signal(signal.SIGINT, signal.default_int_handler)
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=1) as context:
    context.decode([5])
"""

CTRL_C_AFTER_A_PASS = """
    assert interrupted()
    batch = llama.llama_batch_get_one((ctypes.c_int32 * 1)(6), 1)
    assert llama.llama_decode(context.handle, batch) == 0
    assert context.sequence().n_past == 2
"""

HANDLERS_IN_A_RING = """
    interrupts = ctypes.CDLL(sys.argv[2])
    interrupts.chain()
    context.decode([6])  # finds another handler, which calls the library's
    assert interrupted()
    assert interrupts.n_chained() == 1
    context.decode([7])
"""

SIGINT_ENDS_THE_PROCESS = """
    ctypes.CDLL(sys.argv[2]).set_default_with_info()
    context.decode([6])
    interrupted()
"""


@pytest.fixture(scope="module")
def interrupts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("interrupts.cpp")
    return shared_library(source, tmp_path_factory.mktemp("interrupts"))


@on_linux
@pytest.mark.parametrize(
    ("code", "status"),
    [(CTRL_C_AFTER_A_PASS, 0), (HANDLERS_IN_A_RING, 0), (SIGINT_ENDS_THE_PROCESS, -signal.SIGINT)],
    ids=["stock llama_decode goes on", "handlers call each other", "no handler"],
)
def test_ctrl_c_after_a_pass(
    code: str, status: int, interrupts: Path, tiny_path: TinyPath, run_python: RunPython
) -> None:
    run = run_python(AFTER_A_PASS + code, tiny_path(), interrupts)
    assert (run.returncode, run.stderr) == (status, "")


@on_linux
def test_a_pass_of_another_thread_is_stopped(context: Context, new_context: NewContext) -> None:
    raised: list[BaseException] = []

    def decode() -> None:
        try:
            context.decode(tokens_of(4000), outputs="none")
        except BaseException as error:
            raised.append(error)

    stop, stopped = threading.Event(), threading.Event()

    def hold() -> None:
        with context.stopped():
            stopped.set()
            assert stop.wait(DEADLINE_S)

    thread = threading.Thread(target=decode)
    thread.start()
    watching = when_busy(thread, hold)
    thread.join(DEADLINE_S)
    assert stopped.is_set() and not thread.is_alive()
    with pytest.raises(DecodeError, match="stopped"):  # nor does another one begin
        context.decode([5])
    stop.set()
    watching.join()
    [error] = raised
    assert isinstance(error, DecodeError) and "stopped" in str(error)
    require_unchanged(context, new_context)


@on_linux
def test_a_server_ends_while_a_prompt_is_read(context: Context, new_context: NewContext) -> None:
    """It does not wait for the pass."""
    context.sequence().drop()
    told: list[Event] = []
    began = threading.Event()

    def tell(event: Event) -> None:
        told.append(event)
        began.set()

    class Wide(Context):
        pass_width = LONG["n_batch"]

    context.__class__ = Wide
    with Engine(context, n_slots=1, n_queue=1, n_cells=LONG["n_ctx"]) as engine:
        job = Job(tuple(tokens_of(4000)), 5, GREEDY, DraftConfig(draft=None))
        engine.submit([Ticket(job, tell, deadline=time.monotonic() + DEADLINE_S)])
        assert began.wait(DEADLINE_S)
        when_busy(engine._thread, lambda: None).join()
    assert [type(event) for event in told] == [Started, Failed]
    assert str(told[-1].error) == "the server is shutting down"
    assert context.sequence().n_past == 0
    assert logits_after(context) == logits_after(new_context(context.model, **LONG))


@pytest.mark.sanitized
def test_stopping_nests(context: Context) -> None:
    with context.stopped():
        with context.stopped():
            pass
        with pytest.raises(DecodeError, match="stopped"):
            context.decode([7])
    context.decode([7])


@pytest.mark.sanitized
def test_a_context_that_is_closed_while_stopped(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session is not used any more, not even while the rest is being closed."""
    freed: list[int] = []
    free, stop_passes = native.selfspec_free, native.selfspec_stop_passes

    def free_and_go_on(session: int) -> None:
        free(session)
        freed.append(session)
        going_on.__exit__(None, None, None)

    def stop(session: int, stopped: bool) -> None:
        assert session not in freed
        stop_passes(session, stopped)

    monkeypatch.setattr(native, "selfspec_free", free_and_go_on)
    monkeypatch.setattr(native, "selfspec_stop_passes", stop)
    going_on = context.stopped()
    going_on.__enter__()
    context.close()
    assert len(freed) == 1
    with pytest.raises(ArgumentError, match="closed"), context.stopped():
        pass


@pytest.mark.sanitized
def test_a_pass_in_place_takes_what_shares_its_cells(context: Context) -> None:
    """Half of it may be written: no sequence may go on from there."""
    other = context.sequence().fork(1)
    context.decode([9], seq=other)
    with context.stopped(), pytest.raises(DecodeError):
        context.run(Rows.of(0, 1, [6]), Pass(in_place=True))
    assert [context.sequence(i).n_past for i in (0, 1)] == [1, 1]
    assert context.sequence().tokens == other.tokens == (5,)


@pytest.mark.sanitized
def test_a_memory_that_takes_nothing_back_is_emptied(tmp_path: Path) -> None:
    """Its state belongs to no position any more."""
    path = write_mamba(tmp_path / "mamba.gguf")
    with Model(path) as model, model.context(n_ctx=256, n_threads=1) as context:
        want = context.decode([5, 6, 7]).logits
        context.sequence().drop()
        context.decode([5, 6])
        with context.stopped(), pytest.raises(DecodeError):
            context.decode([7])
        assert context.sequence().n_past == 0 and context.sequence().tokens == ()
        np.testing.assert_array_equal(context.decode([5, 6, 7]).logits, want)
