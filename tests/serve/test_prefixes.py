"""Texts kept beyond the context: prompts that go on from them are not read again, and the answer is
the one without. Counts of tokens are asserted, not times."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from fixture_types import NewContext, TinyModel, TinyPath
from serving import Served
from tiny_hybrids import write_hybrid

from pyselfspec import GREEDY, Completion, Model
from pyselfspec.runtime.checkpoints import Checkpoint
from pyselfspec.runtime.sequence_snapshot import SavedSequence
from pyselfspec.serve.settings import Capacity
from pyselfspec.serve.store import snapshot_file
from pyselfspec.serve.store.prefixes import SUFFIX, Prefixes, PrefixFiles
from pyselfspec.serve.store.snapshot_file import Compatibility

N_OWN = 200  # tokens that differ
KIND = Compatibility("model", "build", "attention", "devices")
SECRET, OTHER = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}


def prompt_of(seed: int, n: int) -> list[int]:
    return [5 + (seed * 7919 + i * i * (seed + 3)) % 290 for i in range(n)]


def ask(served: Served, prompt: list[int], n: int = 8, **options: Any) -> tuple[str, int]:
    """Return the answer and the number of tokens of the prompt that were evaluated."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": n}
    response = served.post("/v1/completions", body, **options)
    assert response.status_code == 200, response.text
    used = response.json()["usage"]["pyselfspec"]
    return response.json()["choices"][0]["text"], used["n_prompt"] - used["n_prompt_reused"]


def alone(model: Model, prompt: list[int]) -> str:
    with model.context(n_ctx=len(prompt) + 256, n_threads=1, n_snapshots=0) as context:
        text = Completion(context, prompt, n_predict=8, sampling=GREEDY, draft=None)
        return "".join(text)


@pytest.fixture(scope="module", params=["llama", "lfm2", "mamba2"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: TinyModel
) -> Iterator[Model]:
    if request.param == "llama":
        yield tiny("llama", n_ctx=8192)
        return
    path = tmp_path_factory.mktemp("hybrid") / "model.gguf"
    with Model(write_hybrid(path, request.param, varied=True, n_ctx=8192)) as model:
        yield model


def test_an_agents_prompt_of_which_the_end_changed(model: Model) -> None:
    """4,000 tokens whose last 200 are others: those are read, and at most the distance to the
    checkpoint before them where states cannot be cut."""
    first = prompt_of(1, 4000)
    second = [*first[:-N_OWN], *prompt_of(2, N_OWN)]
    with serving.running(model, capacity=Capacity(n_ctx=9000, n_slots=2)) as served:
        assert ask(served, first)[1] == 4000
        found, n_read = ask(served, second)
        can_cut = served.service.engine.context.abilities.can_rollback
    assert n_read <= (N_OWN if can_cut else N_OWN + 256)
    assert found == alone(model, second)


def test_a_text_that_lost_its_cells_comes_back_from_ram(model: Model) -> None:
    """Three conversations take turns in a context that holds one of them."""
    starts = [prompt_of(seed, 600) for seed in range(3)]
    with serving.running(model, capacity=Capacity(n_ctx=800, n_slots=1)) as served:
        for start in starts:
            assert ask(served, start)[1] == 600
        for start in starts:
            prompt = [*start[:500], *prompt_of(9, 50)]
            found, n_read = ask(served, prompt)
            can_cut = served.service.engine.context.abilities.can_rollback
            assert n_read <= (50 if can_cut else 50 + 256)
            assert found == alone(model, prompt)
        assert served.service.engine.prefixes.n_restored >= 2  # type: ignore[union-attr]


def test_without_a_cache_it_is_read_again(demo: Model) -> None:
    capacity = Capacity(n_ctx=512, n_slots=1, cache_bytes=0)
    with serving.running(demo, capacity=capacity) as served:
        for seed in (0, 1, 0):
            assert ask(served, prompt_of(seed, 400))[1] == 400


def test_a_text_outlives_the_server(model: Model, tmp_path: Path) -> None:
    capacity = Capacity(n_ctx=800, n_slots=1, cache_bytes=0, cache_dir=tmp_path)
    start = prompt_of(4, 600)
    with serving.running(model, capacity=capacity) as served:
        ask(served, start)
    assert [path.suffix for path in tmp_path.iterdir()] == [SUFFIX]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    prompt = [*start, *prompt_of(9, 50)]
    with serving.running(model, capacity=capacity) as served:
        found, n_read = ask(served, prompt)
    assert n_read <= 51 and found == alone(model, prompt)


def test_damaged_and_foreign_files_are_ignored(
    demo: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    capacity = Capacity(n_ctx=512, n_slots=1, cache_dir=tmp_path)
    start = prompt_of(4, 400)
    with serving.running(demo, capacity=capacity) as served:
        ask(served, start)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    shutil.copy(path, tmp_path / f"short{SUFFIX}")
    os.truncate(tmp_path / f"short{SUFFIX}", len(whole) // 2)
    (tmp_path / f"foreign{SUFFIX}").write_bytes(b"GGUF" + bytes(100))
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with serving.running(demo, capacity=capacity) as served:
        found, n_read = ask(served, start)
    assert n_read == 400 and found == alone(demo, start)
    said = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert len(said) == 3 and all("\n" not in each for each in said)


def test_a_pipe_in_the_folder_is_ignored(tmp_path: Path) -> None:
    """Before, the start waited for someone to write to it."""
    os.mkfifo(tmp_path / f"pipe{SUFFIX}")
    files = PrefixFiles(tmp_path, KIND)
    assert not files.holds(np.array([5], np.int32))
    files.close()


def test_kinds_name_what_matters(tiny_path: TinyPath, new_context: NewContext) -> None:
    path = tiny_path("phi3", n_ctx=4096, n_ctx_short=512)

    def kind(load: str = "copy", n_ctx: int = 512, **options: Any) -> Compatibility:
        with Model(path, load=load) as model:
            return Compatibility.of(new_context(model, n_ctx=n_ctx, **options))

    plain = kind()
    assert plain == kind("map") == kind(flash_attn=True) == kind(n_threads=2) == kind(n_ctx=256)
    assert kind(n_ctx=1024) == kind(n_ctx=2048)
    others = [kind(n_ctx=1024), kind(flash_attn=False), kind(type_k="q8_0"), kind(type_v="q8_0")]
    assert plain not in others and len(set(others)) == len(others)


def test_other_models_have_one_kind_for_all_sizes(tiny: TinyModel, new_context: NewContext) -> None:
    kinds = {Compatibility.of(new_context(tiny(n_ctx=256), n_ctx=n)) for n in (256, 1024)}
    assert len(kinds) == 1


# the pieces, without a model


def saved(seed: int, n: int, n_bytes: int, *, can_cut: bool = True) -> SavedSequence:
    state = np.random.default_rng(seed).integers(0, 256, n_bytes).astype(np.uint8)
    kept = () if can_cut else (Checkpoint(n // 2, state[:16].copy()),)
    return SavedSequence(np.array(prompt_of(seed, n), np.int32), state, can_cut, kept)


def test_the_oldest_make_room() -> None:
    kept = Prefixes(3000)
    for seed in range(3):
        kept.add(saved(seed, 100, 1000))
    assert kept.n_bytes <= 3000 and len(kept) == 2
    assert kept.longest(prompt_of(0, 100), 0) is None
    assert kept.longest(prompt_of(1, 100), 0) is not None  # now used later than 2
    kept.add(saved(3, 100, 1000))
    assert kept.longest(prompt_of(2, 100), 0) is None
    kept.add(saved(4, 100, 5000))  # larger than all room
    assert len(kept) == 2


def test_a_longer_text_replaces_its_beginning() -> None:
    kept = Prefixes(10_000)
    kept.add(saved(1, 100, 100))
    assert kept.holds(prompt_of(1, 80)) and not kept.holds(prompt_of(1, 200))
    kept.add(saved(1, 200, 100))
    assert len(kept) == 1 and kept.holds(prompt_of(1, 200))


def test_what_a_prompt_can_use() -> None:
    cut, stiff = saved(1, 100, 100), saved(1, 100, 100, can_cut=False)
    same = np.array(prompt_of(1, 100), np.int32)
    longer = np.append(same, 7).astype(np.int32)
    assert cut.n_usable(same) == 99 and cut.n_usable(longer) == 100
    assert stiff.n_usable(same) == 50 and stiff.n_usable(longer) == 100
    assert stiff.n_usable(same[:40]) == 0 and cut.n_usable(same[:40]) == 39


@pytest.mark.parametrize("can_cut", [True, False])
def test_a_file_holds_what_was_saved(can_cut: bool, tmp_path: Path) -> None:
    want = saved(1, 100, 1000, can_cut=can_cut)
    n = snapshot_file.write(tmp_path / "a", want, KIND, "me")
    found = snapshot_file.read(tmp_path / "a", KIND)
    header, _ = snapshot_file.read_header(tmp_path / "a")
    assert n == (tmp_path / "a").stat().st_size and header.owner == "me"
    assert found is not None
    assert found.tokens.tolist() == want.tokens.tolist() and found.can_cut == can_cut
    assert found.state.tobytes() == want.state.tobytes()
    assert [(x.n_tokens, x.state.tobytes()) for x in found.checkpoints] == [
        (x.n_tokens, x.state.tobytes()) for x in want.checkpoints
    ]
    other = Compatibility("model", "another build", "attention", "devices")
    assert snapshot_file.read(tmp_path / "a", other) is None


def test_a_flipped_bit_or_a_lost_end_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    snapshot_file.write(path, saved(1, 100, 1000, can_cut=False), KIND)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 200):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.integers(8))]) + whole[at + 1 :])
        try:
            snapshot_file.read(path, KIND)
        except snapshot_file.ArgumentError:
            continue
        _, start = snapshot_file.read_header(path)
        assert at < start, f"byte {at} is of an array"
    for n in rng.integers(0, len(whole), 50):
        path.write_bytes(whole[:n])
        with pytest.raises(snapshot_file.ArgumentError):
            snapshot_file.read(path, KIND)


def test_files_of_a_folder_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "of-the-user").write_bytes(bytes(9000))
    files = PrefixFiles(tmp_path, KIND, max_bytes=9000)
    for seed in range(4):
        files.add(saved(seed, 100, 3000))
    files.close()
    left = list(tmp_path.glob(f"*{SUFFIX}"))
    assert 1 <= len(left) <= 2 and sum(path.stat().st_size for path in left) <= 9000
    assert (tmp_path / "of-the-user").exists()
    other = PrefixFiles(tmp_path, Compatibility("other", "build", "attention", "devices"))
    assert other.longest(np.array(prompt_of(3, 100), np.int32), 0) is None
    other.close()


def test_servers_share_a_folder(tmp_path: Path) -> None:
    """They write the same files at once and remove each other's; what is read is whole."""
    other = Compatibility("other", "build", "attention", "devices")
    servers = [PrefixFiles(tmp_path, kind, max_bytes=20_000) for kind in (KIND, KIND, other)]
    snapshots = [saved(seed, 100, 3000) for seed in range(8)]
    n_found = 0
    for written in snapshots * 4:
        for files in servers:
            files.add(written, waits=True)
        for files, want in itertools.product(servers, snapshots):
            if (found := files.longest(np.append(want.tokens, 1), 0)) is not None:
                n_found += 1
                assert np.array_equal(found.tokens, want.tokens)
                assert np.array_equal(found.state, want.state)
    for files in servers:
        files.close()
    assert n_found
    left = list(tmp_path.iterdir())
    assert all(path.suffix == SUFFIX for path in left), "no unfinished files"
    assert sum(path.stat().st_size for path in left) <= 20_000


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_the_oldest_files_make_room(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk, with room for three files, fails after a part of a fourth is written."""
    files = PrefixFiles(tmp_path, KIND)
    open_ = open

    class Full(io.BufferedWriter):
        def write(self, data: Any) -> int:
            n_bytes = sum(path.stat().st_size for path in tmp_path.rglob(f"*{SUFFIX}"))
            if n_bytes + len(data) > 12_000:
                super().write(data[:100])
                self.flush()
                raise OSError(number, "no room")
            n_written = super().write(data)
            self.flush()
            return n_written

    def opened(path: Any, mode: str, opener: Any) -> Any:
        return Full(open_(path, mode, buffering=0, opener=opener))  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot_file, "open", opened, raising=False)
    for seed in range(5):
        files.add(saved(seed, 100, 3000), waits=True)
    files.add(saved(5, 100, 20_000), waits=True)
    files.close()
    held = [files.holds(np.array(prompt_of(seed, 100), np.int32)) for seed in range(6)]
    assert held == [False, False, True, True, True, False], "the last one never fits"
    assert all(path.suffix == SUFFIX for path in tmp_path.iterdir()), "no unfinished files"


def test_texts_wait_for_a_slow_disk_if_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, write = threading.Event(), snapshot_file.write

    def slow_write(*args: Any) -> int:
        assert goes_on.wait(60)
        return write(*args)

    monkeypatch.setattr(snapshot_file, "write", slow_write)
    files = PrefixFiles(tmp_path, KIND)

    def add_all() -> None:
        for seed in range(8):
            files.add(saved(seed, 100, 10), waits=True)

    adding = threading.Thread(target=add_all)
    adding.start()
    goes_on.set()
    adding.join()
    files.close()
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 8
    goes_on.clear()
    files = PrefixFiles(tmp_path, KIND)
    for seed in range(8, 16):
        files.add(saved(seed, 100, 10))
    goes_on.set()
    files.close()
    assert 8 + 4 <= len(list(tmp_path.glob(f"*{SUFFIX}"))) < 16


# slots of clients


@pytest.fixture(scope="module")
def shared(demo: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    capacity = Capacity(n_ctx=1600, n_slots=2, slot_dir=tmp_path_factory.mktemp("slots"))
    with serving.running(demo, capacity=capacity) as served:
        yield served


def act(served: Served, number: int, action: str, **options: Any) -> Any:
    body = {"filename": options.pop("filename", "talk.bin")}
    return served.post(f"/slots/{number}?action={action}", body, **options)


def holder(served: Served) -> int:
    """Return the slot that holds a text."""
    slots = served.client.get(f"{served.url}/slots").json()
    return next(each["id"] for each in slots if each["n_tokens"])


def test_slots_are_saved_erased_and_restored(shared: Served, demo: Model) -> None:
    prompt = prompt_of(1, 300)
    ask(shared, prompt, headers=SECRET)
    number = holder(shared)
    kept = act(shared, number, "save", headers=SECRET).json()
    assert kept["id_slot"] == number and kept["filename"] == "talk.bin" and kept["n_saved"] >= 300
    assert act(shared, number, "erase", headers=SECRET).json()["n_erased"] == kept["n_saved"]
    assert not any(each["n_tokens"] for each in shared.client.get(f"{shared.url}/slots").json())
    back = act(shared, 1 - number, "restore", headers=SECRET).json()
    assert back["n_restored"] == kept["n_saved"] and back["n_read"] == kept["n_written"]
    longer = [*prompt, *prompt_of(9, 20)]
    found, n_read = ask(shared, longer, headers=SECRET)
    assert n_read <= 20 and found == alone(demo, longer)
    for number in range(2):
        act(shared, number, "erase", headers=SECRET)


def test_nobody_reads_a_slot_of_another_key(shared: Served) -> None:
    ask(shared, prompt_of(2, 300), headers=SECRET)
    number = holder(shared)
    assert act(shared, number, "save", headers=SECRET, filename="mine").status_code == 200
    for action, status in (("save", 403), ("erase", 403), ("restore", 404)):
        assert act(shared, number, action, headers=OTHER, filename="other").status_code == status
    assert act(shared, 1 - number, "restore", headers=OTHER, filename="mine").status_code == 404
    ask(shared, prompt_of(3, 300), headers=OTHER)
    mine = act(shared, 1 - number, "save", headers=OTHER, filename="mine")
    assert mine.status_code == 404, "it would replace a file of another key"
    assert act(shared, 1 - number, "save", headers=OTHER, filename="own").status_code == 200
    assert act(shared, number, "restore", headers=OTHER, filename="own").status_code == 403
    shown = shared.client.get(f"{shared.url}/slots").text
    assert "prompt" not in shown and "content" not in shown
    act(shared, number, "erase", headers=SECRET)
    act(shared, 1 - number, "erase", headers=OTHER)


def test_files_are_not_opened_by_the_engine(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noting(function: Any) -> Any:
        def noted(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return function(*args)

        return noted

    for name in ("read", "read_header", "write"):
        monkeypatch.setattr(snapshot_file, name, noting(getattr(snapshot_file, name)))
    ask(shared, prompt_of(2, 100), headers=SECRET)
    number = holder(shared)
    for action in ("save", "restore", "save", "erase"):
        assert act(shared, number, action, headers=SECRET, filename="file").status_code == 200
    assert threads and not any("engine" in name for name in threads)


@pytest.mark.parametrize("n_left", [0.5, -1])
def test_a_damaged_file_is_replaced_by_its_owner(n_left: float, shared: Served) -> None:
    ask(shared, prompt_of(2, 100), headers=SECRET)
    number = holder(shared)
    assert act(shared, number, "save", headers=SECRET, filename="torn").status_code == 200
    path = Path(shared.service.slot_files.folder) / "torn"  # type: ignore[union-attr]
    whole = path.read_bytes()
    n = int(len(whole) * n_left) if n_left > 0 else len(whole) + 1
    path.write_bytes((whole + b"x")[:n])
    act(shared, number, "erase", headers=SECRET)
    assert act(shared, number, "restore", headers=SECRET, filename="torn").status_code == 400
    ask(shared, prompt_of(2, 100), headers=OTHER)
    taken = act(shared, holder(shared), "save", headers=OTHER, filename="torn")
    assert taken.status_code == 404
    act(shared, holder(shared), "erase", headers=OTHER)
    ask(shared, prompt_of(2, 100), headers=SECRET)
    number = holder(shared)
    assert act(shared, number, "save", headers=SECRET, filename="torn").status_code == 200
    act(shared, number, "erase", headers=SECRET)


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", ".hidden", "a/b", "", "x" * 129, "a\0"])
def test_names_stay_in_the_folder(name: str, shared: Served) -> None:
    ask(shared, prompt_of(2, 100))
    assert act(shared, holder(shared), "save", filename=name).status_code == 400


def test_bad_requests(shared: Served, demo: Model) -> None:
    assert act(shared, 7, "erase").status_code == 404
    assert act(shared, 0, "steal").status_code == 400
    assert act(shared, 0, "restore", filename="nothing").status_code in (403, 404)
    assert shared.post("/slots/0?action=save", {}).status_code == 400
    error = shared.post("/slots/x?action=save", {}).json()["error"]
    assert (error["message"], error["param"]) == ("id_slot: give an integer", "id_slot")
    with serving.running(demo, capacity=Capacity(n_ctx=256, n_slots=1)) as served:
        got = act(served, 0, "save")
        assert got.status_code == 400 and "--slot-save-path" in got.json()["error"]["message"]
