"""Memory that a model and a context need, memory that the system has free, and the messages about
both."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import odd_models
import pytest
from command_line import run, run_alone
from fixture_types import NewContext, RunPython, TinyPath

from pyselfspec import Model
from pyselfspec.errors import out_of_memory
from pyselfspec.gguf.file import check
from pyselfspec.runtime import memory as runtime_memory
from pyselfspec.runtime.ffi import load
from pyselfspec.runtime.kv_types import CACHE_TYPES
from pyselfspec.runtime.memory import needed_bytes
from pyselfspec.util import memory
from pyselfspec.util.sizes import size_text
from tools.models import tiny_archs

N_CTX = 2048
KIB = 2**10
MIB = 2**20
GB = 10**9
CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB .* K \((\w+)\)")


def allocated(model: Model, new_context: NewContext, capfd: Any, **options: Any) -> float:
    """Bytes of K/V that llama.cpp says it has allocated."""
    capfd.readouterr()
    load.set_verbose(True)
    try:
        new_context(model, n_ctx=N_CTX, n_batch=8, n_seq_max=1, n_threads=1, **options)
    finally:
        load.set_verbose(False)
    return sum(float(size) * MIB for size, _ in CACHE.findall(capfd.readouterr().err))


@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
def test_kv_of_a_token_is_what_llama_cpp_allocates(
    arch: str, tiny_path: TinyPath, new_context: NewContext, capfd: Any
) -> None:
    path = tiny_path(arch)
    with Model(path) as model:
        expected = allocated(model, new_context, capfd)
    # sizes in the log have two digits
    assert check(path).kv_bytes(N_CTX, "f16", "f16") == pytest.approx(expected, abs=0.011 * MIB)
    assert expected > 0.1 * MIB


@pytest.mark.parametrize("write", [odd_models.write_gemma3n, odd_models.write_gemma4])
def test_blocks_that_share_kv_count_once(
    write: Callable[[Path], None], tmp_path: Path, new_context: NewContext, capfd: Any
) -> None:
    write(path := tmp_path / "odd.gguf")
    with Model(path) as model:
        expected = allocated(model, new_context, capfd)
    assert check(path).kv_bytes(N_CTX, "f16", "f16") == pytest.approx(expected, abs=0.021 * MIB)


@pytest.mark.parametrize("name", CACHE_TYPES)
def test_kv_of_every_type(name: str, demo: Model, new_context: NewContext, capfd: Any) -> None:
    expected = allocated(demo, new_context, capfd, type_k=name, type_v=name, flash_attn=True)
    assert demo.file.kv_bytes(N_CTX, name, name) == pytest.approx(expected, abs=0.011 * MIB)


# --- what the system leaves ----------------------------------------------------------------------


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {
    "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable:    8000000 kB\nHugePages_Free: 0\n"
}
V2 = {
    "proc/self/cgroup": "0::/a/b\n",
    "sys/fs/cgroup/a/b/memory.max": "max\n",
    "sys/fs/cgroup/a/b/memory.current": f"{GB}\n",
    "sys/fs/cgroup/a/memory.max": f"{4 * GB}\n",
    "sys/fs/cgroup/a/memory.current": f"{3 * GB}\n",
    "sys/fs/cgroup/a/memory.stat": f"anon 1\nactive_file {GB}\ninactive_file {GB // 2}\n",
}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/of-the-host\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GB // 4}\ninactive_file 0\n",
}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        (MACHINE, 8_192_000_000),
        (MACHINE | V2, 2_500_000_000),
        (MACHINE | V1, 1_250_000_000),
        (MACHINE | V1 | {"sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GB}"}, 0),
        (MACHINE | {"proc/self/cgroup": "0::/\n"}, 8_192_000_000),
    ],
    ids=["unknown", "machine", "cgroup 2", "cgroup 1", "above the limit", "no limit"],
)
def test_memory_that_is_left(files: dict[str, str], left: int | None, tmp_path: Path) -> None:
    assert memory.available(system(tmp_path, files)) == left


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_this_machine_is_known() -> None:
    free = memory.available()
    assert free is not None and 10**7 < free < 10**14


# --- what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "advice"),
    [(0.5, "take a smaller quantization"), (1.001, "give a smaller n_ctx (-c)")],
)
def test_a_model_larger_than_memory_with_its_context_is_one_warning(
    share: float, advice: str, tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = int(share * check(path := tiny_path()).n_bytes)
    monkeypatch.setattr(memory, "available", lambda: free)
    outcome = run("generate", path, "-p", "hi", "-n", "2", "-c", "256", "-t", "1")
    assert outcome.status == 0
    warning, *_ = lines = outcome.stderr.splitlines()
    assert sum(line.startswith("Warning: ") for line in lines) == 1
    needed = size_text(needed_bytes(check(path), 256, "f16", "f16"))
    assert warning.startswith(
        f"Warning: the model {path.name} with a context of 256 tokens needs {needed} of memory, "
        f"and {size_text(free)} are free: "
    )
    assert warning.endswith(f"; {advice}")


def test_loaded_weights_are_not_counted_twice(
    tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Free memory is read before the model is loaded, since loading takes part of it."""
    file = check(path := tiny_path())
    needed = needed_bytes(file, 256, "f16", "f16")
    left = iter([needed])
    monkeypatch.setattr(memory, "available", lambda: next(left, needed - file.n_bytes))
    with Model(path) as model, model.context(n_ctx=256, n_threads=1):
        assert model.free_bytes == needed
    assert not recwarn.list


def limited(kib: int) -> tuple[str, ...]:
    """Starts a program under a limit on its address space."""
    return ("bash", "-c", f'ulimit -v {kib}; exec "$@"', "limited")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory")
@pytest.mark.parametrize(
    "args",
    [
        ("models", "info", "demo", "-t", "2"),
        ("generate", "demo", "-p", "hi", "-n", "20", "-t", "2"),
        ("generate", "demo", "-p", "hi", "-n", "2", "-t", "1", "-c", "32768"),  # 200 MB of K/V
    ],
    ids=["info", "default context", "large context"],
)
def test_too_little_address_space_is_an_error_and_no_abort(
    args: tuple[str, ...], run_python: RunPython
) -> None:
    """From limits that leave room for the program alone up to one that is enough."""
    code = "from pyselfspec.cli.models import info; print(open('/proc/self/status').read())"
    size = re.search(r"VmSize:\s+(\d+)", run_python(code).stdout)
    assert size
    errors = []
    for extra in range(50, 1000, 30):
        outcome = run_alone(*args, prefix=limited(int(size[1]) + extra * KIB))
        last = outcome.stderr.splitlines()[-1:]
        assert "Traceback" not in outcome.stderr and "ASSERT" not in outcome.stderr, outcome
        if outcome.status == 0:
            break
        assert outcome.status == 1 and last[0].startswith("Error: "), outcome
        errors.append(last[0])
    assert outcome.status == 0
    assert any(" of address space" in error for error in errors)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory")
def test_the_room_that_is_asked_for_is_enough_for_all_graphs(run_python: RunPython) -> None:
    """Passes of every width, in less than `require_room` wants, so that none can abort."""
    code = """if True:
        from pyselfspec import Model
        from pyselfspec.runtime import memory
        from pyselfspec.util import memory as system
        def size():
            return system._numbers(system.ROOT / "proc/self/status")["VmSize:"] * 1024
        with Model("demo") as model, model.context(n_threads=2) as context:
            system.address_space = lambda: 0
            try:
                memory.require_room(model.file, "a pass", n_threads=2)
            except Exception as error:
                print(error)
            before = size()
            for width in range(1, 40):
                context.decode([1] * width, outputs="all")
                context.sequence().drop()
            print(size() - before)
    """
    said, taken = run_python(code).stdout.splitlines()
    needed = re.search(r"up to ([\d.]+) MB", said)
    assert needed and int(taken) < 1e6 * float(needed[1]) - (32 << 20)


def test_bad_alloc_is_said_to_be_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise out_of_memory()

    monkeypatch.setattr(runtime_memory, "require_for_model", fail)
    outcome = run("models", "info", "demo")
    assert outcome.status == 1
    assert outcome.stderr == (
        "Error: out of memory; give a smaller n_ctx (-c), smaller types of K and V "
        "(--cache-type-k, --cache-type-v), or a smaller model\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory")
def test_a_file_that_cannot_be_mapped_is_refused(
    tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "address_space", lambda: 1000)
    outcome = run("models", "info", path := tiny_path())
    assert outcome.status == 1
    assert re.fullmatch(
        rf"Error: {path}: the model takes .* of address space, and the limit leaves 1.0 kB; .*\n",
        outcome.stderr,
    )
