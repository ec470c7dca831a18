"""The end of a server of several models, with nothing that it could wait for without a limit."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from routing import FakeProcess, listed_as, loaded

from pyselfspec.cli import serve
from pyselfspec.serve.protocol.errors import ApiError
from pyselfspec.serve.router import process
from pyselfspec.serve.router import server as router_server
from pyselfspec.serve.router.models import Listed
from pyselfspec.serve.router.pool import Pool
from pyselfspec.serve.router.process import ModelProcess
from pyselfspec.serve.server import GracefulServer
from pyselfspec.serve.settings import Settings

LIMIT_S = 10.0  # of what would wait for ever


async def _use(pool: Pool, name: str) -> None:
    async with pool.using(name, 60):
        pass


async def _turns(n: int = 20) -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(n):
        await asyncio.sleep(0)


async def _close(pool: Pool) -> None:
    """Close a pool. Nothing is left for the end of the event loop, which waits without a limit."""
    await asyncio.wait_for(pool.close(), LIMIT_S)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_process_that_is_being_created_at_the_end_is_ended() -> None:
    async def check() -> None:
        may_be_there, made = asyncio.Event(), FakeProcess()

        async def start(_model: Listed) -> FakeProcess:
            await may_be_there.wait()
            return made

        made.wait_until_ready = fail  # type: ignore[method-assign]
        pool = Pool([listed_as("a", 1)], start, max_bytes=None, keep_s=None)
        using = asyncio.create_task(_use(pool, "a"))
        await _turns()
        closing = asyncio.create_task(asyncio.wait_for(pool.close(), LIMIT_S))
        await _turns()
        with pytest.raises(ApiError, match="shutting down"):
            await using
        assert not closing.done()
        may_be_there.set()
        await closing
        assert not made.is_alive and asyncio.all_tasks() == {asyncio.current_task()}

    async def fail() -> None:
        raise ApiError(503, "it ended")

    asyncio.run(check())


def test_no_process_is_started_at_the_end() -> None:
    """Also not when one that ends makes room."""

    async def check() -> list[str]:
        started = list[str]()

        async def start(model: Listed) -> FakeProcess:
            started.append(model.name)
            return FakeProcess()

        pool = Pool([listed_as(name, 10) for name in "ab"], start, max_bytes=10, keep_s=None)
        async with pool.using("a", 1):
            waiting = asyncio.create_task(_use(pool, "b"))
            await _turns()
            pool.end()
            with pytest.raises(ApiError, match="shutting down"):
                await waiting
        await _close(pool)
        return started

    assert asyncio.run(check()) == ["a"]


def test_processes_learn_of_the_end_at_once() -> None:
    """So that they tell the clients whose answers they cut off."""

    async def check() -> None:
        async def start(_model: Listed) -> FakeProcess:
            return FakeProcess()

        pool = Pool([listed_as("a", 1)], start, max_bytes=None, keep_s=None)
        async with pool.using("a", 1):
            pool.end()
            await _turns()
            assert not loaded(pool)
        await _close(pool)

    asyncio.run(check())


def test_two_loads_do_not_wait_for_each_other() -> None:
    """One that needs the memory of a model that ends, and one of this model, whose client left."""

    class SlowProcess(FakeProcess):
        async def end(self) -> None:
            await may_end.wait()
            await super().end()

    async def check() -> None:
        async def start(_model: Listed) -> SlowProcess:
            return SlowProcess()

        pool = Pool([listed_as(name, 10) for name in "ab"], start, max_bytes=10, keep_s=0.0)
        await _use(pool, "b")
        unloading = asyncio.create_task(pool.unload_old())
        await _turns()
        again, other = (asyncio.create_task(_use(pool, name)) for name in "ba")
        await _turns()
        again.cancel()
        await _turns()
        may_end.set()
        await asyncio.wait_for(asyncio.gather(unloading, other), LIMIT_S)
        await _close(pool)

    may_end = asyncio.Event()
    asyncio.run(check())


async def _process(code: str, end_s: float = 0.0) -> ModelProcess:
    command = (sys.executable, "-c", f"import os, signal, sys\n{code}")
    made = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    return ModelProcess("a", made, end_s)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="holds pipes open by a fork")
def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a process of its own holds its pipes, and if the first to end it gave up."""
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.fork()\n"
    code += "print(1, flush=True)\nos.read(0, 1)"

    async def check() -> None:
        running = await _process(code)
        assert running.process.stdout is not None and running.process.stdin is not None
        await running.process.stdout.readline()
        first = asyncio.create_task(running.end())
        await _turns(1)
        first.cancel()
        await asyncio.wait_for(running.end(), LIMIT_S)
        assert not running.is_alive
        running.process.stdin.close()
        await asyncio.gather(running.process.stdout.read(), running.log)
        await _turns()

    monkeypatch.setattr(process, "KILL_S", 1.0)
    asyncio.run(check())


def test_a_process_whose_log_cannot_be_written_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_text: str) -> None:
        raise BrokenPipeError

    async def check() -> None:
        code = "sys.stderr.write('many words\\n' * 100_000)\n"
        code += """print('{"url": "http://127.0.0.1:7"}', flush=True)\nos.read(0, 1)"""
        running = await _process(code, LIMIT_S)
        await asyncio.wait_for(running.wait_until_ready(), LIMIT_S)
        assert running.port == 7
        await running.end()

    monkeypatch.setattr(process.sys, "stderr", SimpleNamespace(write=write))
    asyncio.run(check())


def test_a_second_ctrl_c_ends_the_models_too() -> None:
    async def check() -> list[str]:
        async def shutdown() -> None:
            done.append("models")

        server = GracefulServer(uvicorn.Config("x:y"), lambda: None, lambda: done.append("end"))
        server.servers, server.force_exit = [], True
        server.lifespan = SimpleNamespace(shutdown=shutdown)  # type: ignore[assignment]
        await server.shutdown()
        return done

    done = list[str]()
    assert asyncio.run(check()) == ["end", "models"]


def test_the_program_ends_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timer(threading.Thread):
        def __init__(self, seconds: float, function: Any, args: Any) -> None:
            super().__init__()
            self.given = seconds, function, args

        def start(self) -> None:
            started.append((*self.given, self.daemon))

    async def check() -> None:
        listener: Any = SimpleNamespace(getsockname=lambda: ("127.0.0.1", 1))
        made: Any = router_server.make_server(
            [listed_as("a", 1)], [], Settings("a"), listener,
            max_bytes=None, keep_s=None, grace_s=3.0, ready=lambda: None,
        )  # fmt: skip
        made._end()

    started = list[Any]()
    monkeypatch.setattr(router_server.threading, "Timer", Timer)
    asyncio.run(check())
    assert started == [(28.0, os._exit, [1], True)]


def test_a_model_without_its_server_ends_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[tuple[str, float]]()
    monkeypatch.setattr(serve.sys, "stdin", SimpleNamespace(fileno=lambda: 0))
    monkeypatch.setattr(serve.os, "read", lambda _file, _n: b"")
    monkeypatch.setattr(serve.os, "kill", lambda _pid, number: done.append(("kill", number)))
    monkeypatch.setattr(serve.os, "_exit", lambda status: done.append(("exit", status)))
    monkeypatch.setattr(time, "sleep", lambda seconds: done.append(("sleep", seconds)))
    serve._end_with_parent()
    assert done == [("kill", signal.SIGTERM), ("sleep", serve.ORPHAN_S), ("exit", 1)]
