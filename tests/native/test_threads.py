"""Threads over models that they share, each with contexts of its own; and threads that take what is
another's, which is an error and never memory that is read.

PYSELFSPEC_STRESS=N does N times as much; ``python tools/sanitize.py`` runs this file under
sanitizers.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fixture_types import RunPython, TinyModel, TinyPath
from lora_adapters import set_adapters, set_control_vector, write_adapter
from tiny_hybrids import write_hybrid

from pyselfspec import GREEDY, Completion, Context, LayerMask, Model, Sampler, SamplingParams
from pyselfspec.errors import ArgumentError, SelfSpecError
from pyselfspec.runtime.ffi.load import llama

N_THREADS = 8
STRESS = int(os.environ.get("PYSELFSPEC_STRESS", "1"))
N_PREDICT = 12
ARCHS = ("llama", "gemma3", "qwen2moe", "falcon")
MASKS = (LayerMask.early_exit(4, 2), LayerMask.skipping(4, attn=[1], ffn=[0, 2]))
SAMPLINGS = (GREEDY, SamplingParams(temperature=1.0, seed=3))
SMALL = {"n_ctx": 256, "n_batch": 64, "n_seq_max": 4}


def in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run all at the same time; raises what the first one of them raised."""
    start, raised = threading.Barrier(len(works)), []

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in raised:
        raise error


# --- each with contexts of its own ---------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """All that a text depends on."""

    arch: str
    adapter: int | None
    steered: bool
    sampling: SamplingParams
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Shared:
    """Models that all threads use, and what may be set in contexts of them."""

    models: dict[str, Model]
    adapters: dict[str, list[int]]
    vector: np.ndarray

    def text(self, context: Context, job: Job, draft: str | None, mask: LayerMask) -> list[int]:
        chosen = [] if job.adapter is None else [self.adapters[job.arch][job.adapter]]
        set_adapters(context, chosen)
        set_control_vector(context, self.vector if job.steered else None)
        context.sequence().drop()
        completion = Completion(
            context,
            job.prompt,
            n_predict=N_PREDICT,
            draft=draft,
            mask=mask if draft == "layer-skip" else None,
            sampling=job.sampling,
            profile=False,
        )
        for _ in completion:
            pass
        return completion.tokens


@pytest.fixture
def shared(tiny: TinyModel, tmp_path: Path) -> Shared:
    models = {arch: tiny(arch, qtype="Q8_0", late_scale=0.05) for arch in ARCHS}
    adapters: dict[str, list[int]] = {}
    for arch, model in models.items():
        paths = [write_adapter(tmp_path / f"{arch}{seed}.gguf", model, seed) for seed in range(2)]
        adapters[arch] = [llama.llama_adapter_lora_init(model.handle, bytes(p)) for p in paths]
        assert all(adapters[arch])
    vector = np.random.default_rng(0).normal(size=64 * 3).astype(np.float32)
    return Shared(models, adapters, vector)


def jobs_of(arch: str, token_ids: Callable[..., list[int]]) -> list[Job]:
    return [
        Job(arch, adapter, steered, sampling, tuple(token_ids(9, seed=seed)))
        for adapter, steered in ((None, False), (0, False), (1, False), (None, True), (1, True))
        for seed, sampling in enumerate(SAMPLINGS)
    ]


@pytest.mark.sanitized
def test_eight_threads_write_what_each_job_gives_alone(
    shared: Shared, token_ids: Callable[..., list[int]]
) -> None:
    """Contexts come and go, and so do adapters and control vectors in them; plain and with drafts,
    of one thread each and of two."""
    jobs = {arch: jobs_of(arch, token_ids) for arch in ARCHS}
    want: dict[Job, list[int]] = {}
    for arch, model in shared.models.items():
        for job in jobs[arch]:
            with model.context(n_threads=1, **SMALL) as context:
                want[job] = shared.text(context, job, None, MASKS[0])
    assert len({tuple(text) for text in want.values()}) > len(want) // 2

    seed = random.randrange(2**32)
    print(f"seed {seed}")

    def write(rng: random.Random) -> None:
        for _ in range(3 * STRESS):
            arch = rng.choice(ARCHS)
            with shared.models[arch].context(n_threads=rng.choice((1, 1, 2)), **SMALL) as context:
                for _ in range(3):
                    job, mask = rng.choice(jobs[arch]), rng.choice(MASKS)
                    draft = rng.choice((None, "layer-skip", "ngram"))
                    got = shared.text(context, job, draft, mask)
                    assert got == want[job], (job, draft, mask)

    in_threads([lambda i=i: write(random.Random(seed + i)) for i in range(N_THREADS)])


# --- what is another's ---------------------------------------------------------------------------


class Prey:
    """Contexts and samplers of one model, which any thread takes, uses, closes and replaces."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = Model(path)
        self.contexts = [self.model.context(n_threads=1, **SMALL) for _ in range(3)]
        self.samplers = [Sampler(self.model, sampling) for sampling in SAMPLINGS]

    def disturb(self, rng: random.Random) -> None:
        """Raises SelfSpecError where it is refused."""
        i, j = rng.randrange(len(self.contexts)), rng.randrange(len(self.samplers))
        model, context, sampler = self.model, self.contexts[i], self.samplers[j]
        seq = context.sequence(rng.randrange(3))
        deeds: list[Callable[[], object]] = [
            lambda: context.decode([5, 6, 7], seq=seq).logits,
            lambda: context.decode([5], seq=seq, mask=rng.choice(MASKS), hidden_at=2),
            lambda: context.argmax(0),
            lambda: sampler.sample(context, 0),
            lambda: sampler.begin([5, 6]),
            lambda: seq.rollback(rng.randrange(4)),
            lambda: seq.fork(3),
            lambda: seq.save_checkpoint(),
            lambda: seq.drop(),
            lambda: context.graph_bytes,
            lambda: context.mask_support,
            lambda: model.detokenize(model.tokenize("the thing")),
            lambda: (model.is_eog(7), model.start_token, model.draft_mask),
            lambda: model.state_bytes,
            context.close,
            sampler.close,
        ]
        if rng.random() < 0.05:
            deeds = [model.close]
        try:
            rng.choice(deeds)()
        finally:
            self.restore(i, j)

    def restore(self, i: int, j: int) -> None:
        with suppress(ArgumentError):
            _ = self.model.handle
            if self.contexts[i].closed:
                self.contexts[i] = self.model.context(n_threads=1, **SMALL)
            with suppress(ArgumentError):
                _ = self.samplers[j].handle
                return
            self.samplers[j] = Sampler(self.model, SAMPLINGS[j])
            return
        self.model = Model(self.path)


@pytest.mark.sanitized
def test_misuse_is_an_error(tiny_path: TinyPath, tmp_path: Path) -> None:
    """Eight threads over the same few contexts, samplers and models, which they close for each
    other. They are told so, in the words of this package, or it works."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    paths = [tiny_path(arch, qtype="Q8_0", late_scale=0.05) for arch in ("llama", "gemma3")]
    preys = [Prey(path) for path in (*paths, write_hybrid(tmp_path / "hybrid.gguf", "lfm2"))]
    told: list[str] = []

    def disturb(rng: random.Random) -> None:
        for _ in range(150 * STRESS):
            try:
                rng.choice(preys).disturb(rng)
            except SelfSpecError as error:
                told.append(str(error))

    in_threads([lambda i=i: disturb(random.Random(seed + i)) for i in range(N_THREADS)])
    assert any("in use in another thread" in text for text in told)
    assert any("is closed" in text for text in told)
    for prey in preys:
        prey.model.close()


@pytest.mark.sanitized
def test_a_model_does_not_close_under_a_use(tiny_path: TinyPath) -> None:
    with Model(tiny_path()) as model:
        with model.in_use(), pytest.raises(ArgumentError, match=r"model .* is in use in another"):
            model.close()
        with (
            model.in_use.freeing(),
            pytest.raises(ArgumentError, match="is being closed in another thread"),
        ):
            model.context()
        assert model.tokenize("the")


@pytest.mark.sanitized
def test_a_sampler_belongs_to_one_thread(tiny: TinyModel) -> None:
    refused = []
    with Sampler(tiny()) as sampler, sampler._lock():

        def use() -> None:
            for deed in (
                lambda: sampler.begin([5]),
                lambda: sampler.sample_logits(np.zeros(tiny().n_vocab, np.float32)),
                sampler.close,
            ):
                with pytest.raises(ArgumentError, match="sampler is in use in another thread"):
                    deed()
                refused.append(deed)

        in_threads([use])
    assert len(refused) == 3


# --- forked processes ----------------------------------------------------------------------------

FORKED = """
import multiprocessing, os, sys
from pyselfspec import Model
from pyselfspec.errors import LibraryError
from pyselfspec.runtime.ffi.load import llama

def load_and_decode():
    with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=2) as context:
        return context.decode([5, 6]).logits.tobytes()

def told(deed):
    try:
        deed()
    except LibraryError as error:
        return "forked after its parent had loaded" in str(error) and "spawn" in str(error)

def in_child(deed):
    child = os.fork()
    if child == 0:
        os._exit(0 if deed() else 1)
    assert os.waitpid(child, 0)[1] == 0, deed

def put(found):
    found.put(load_and_decode())

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    found = fork.SimpleQueue()
    children = [fork.Process(target=put, args=(found,)) for _ in range(2)]
    for child in children:
        child.start()
    first, second = found.get(), found.get()
    assert first == second == load_and_decode(), "only the children have loaded the library"

    from pyselfspec import Llama  # loads the library
    drop_in = Llama(sys.argv[1], n_ctx=256, n_threads=2, n_threads_batch=2, verbose=False)
    drop_in.eval([5])
    in_child(lambda: told(lambda: drop_in.eval([6])))
    drop_in.eval([6])
    with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=2) as context:
        context.decode([5])
        in_child(lambda: told(lambda: context.decode([6])))
        in_child(lambda: told(lambda: model.context()))
        in_child(lambda: told(load_and_decode))
        in_child(lambda: model.detokenize([40, 41]) == model.detokenize([40, 41]))
        child = fork.Process(target=lambda: sys.exit(not told(lambda: context.decode([6]))))
        child.start()
        child.join()
        assert child.exitcode == 0
        context.decode([6])
"""


FORKED_MORE = """
import os, sys
from pathlib import Path
from pyselfspec import Model
from pyselfspec.errors import LibraryError
from pyselfspec.runtime.projector import Projector
from tiny_hybrids import write_hybrid
from png_files import png
from tiny_mmproj import write

def told_in_child(deed):
    child = os.fork()
    if child == 0:
        try:
            deed()
        except LibraryError as error:
            os._exit("forked after its parent had loaded" not in str(error))
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0, deed

folder = Path(sys.argv[2])
with Model(sys.argv[1]) as model:
    with Projector(model, write(folder / "mmproj.gguf", model.n_embd), n_threads=2) as projector:
        projector.read(png(1))
        told_in_child(lambda: projector.read(png(2)))
with Model(write_hybrid(folder / "mamba2.gguf", "mamba2")) as model:
    with model.context(n_ctx=256, n_threads=2) as context:
        context.decode([5, 6, 7])
        context.decode([8, 9])
        told_in_child(lambda: context.sequence().rollback(4))
        context.sequence().rollback(4)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_pictures_and_removals_after_a_fork(
    tiny_path: TinyPath, run_python: RunPython, tmp_path: Path
) -> None:
    """Before, they waited for ever for the parent's threads."""
    run = run_python(FORKED_MORE, tiny_path(), tmp_path)
    assert run.returncode == 0, run.stderr


@pytest.mark.sanitized
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_is_told_so(tiny_path: TinyPath, run_python: RunPython) -> None:
    """It has none of the library's threads, for which a pass would wait forever."""
    run = run_python(FORKED, tiny_path())
    assert run.returncode == 0, run.stderr
