"""Text after text in one context: what a sequence holds of a prompt is not evaluated again, and
what has been looked up or built once stays ready.

Up to the exact width, the bits of K/V do not depend on the pass that computed them. So where all
passes keep to it, a later turn is bit for bit what a context gives that reads everything anew.
Wider passes, for long prompts, may round otherwise; there the claim is that drafts change nothing:
a conversation with drafts equals the same one without, in another context.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from fixture_types import NewContext, RunPython, TinyPath
from parameters import crossed, in_turn
from tiny_mamba import write_mamba
from typed_models import (
    EXIT,
    MODELS,
    N_LAYER,
    SAMPLINGS,
    SEEDED,
    WINDOWED,
    TypedModel,
    plain_text,
    require_exact,
)

from pyselfspec import GREEDY, Completion, Context, Fixed, LayerMask, Model, Sampler, SamplingParams
from pyselfspec.runtime.passes import FULL, Pass, Rows
from pyselfspec.speculate.drafters import layer_skip
from pyselfspec.util.paths import DEMO

N_TURNS = 5
N_PREDICT = 13
N_NEW = (12, 1, 7, 15, 3)  # tokens that each turn adds to the text so far


class Watched:
    """Completions in one context, and what their passes were."""

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context = context
        self.passes: list[tuple[Rows, Pass]] = []
        run = Context.run

        def recorded(context: Context, rows: Rows, what: Pass = FULL) -> Any:
            if context is self.context:
                self.passes.append((rows, what))
            return run(context, rows, what)

        monkeypatch.setattr(Context, "run", recorded)

    def completed(self, prompt: Sequence[int], **options: Any) -> Completion:
        self.passes.clear()
        defaults = {"n_predict": N_PREDICT, "draft": "layer-skip", "controller": Fixed(4, p_min=0)}
        completion = Completion(self.context, prompt, **(defaults | options))
        for _piece in completion:
            pass
        return completion

    @property
    def n_prompt_rows(self) -> int:
        """Rows of the passes that read the last prompt: those before anything was wanted."""
        n = 0
        for rows, what in self.passes:
            if not what.is_whole or any(rows.outputs):
                break
            n += len(rows)
        return n


# --- turns -----------------------------------------------------------------------------------


@crossed(
    "arch,qtype share sampling",
    MODELS,
    (True, False),
    SAMPLINGS,
    always={
        (model, *way) for model, way in in_turn(MODELS, itertools.product((True, False), SAMPLINGS))
    },
)
def test_five_turns(
    arch: str,
    qtype: str,
    share: bool,
    sampling: str,
    typed: TypedModel,
    new_context: NewContext,
    token_ids: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each turn evaluates what is new, and its text is that of a context that reads all of it
    anew, one token a pass after the prompt. No pass here is wider than the exact width."""
    model = typed(arch, qtype)
    context, fresh = new_context(model), new_context(model)
    require_exact(context)
    chat = Watched(context, monkeypatch)
    options = {"options": layer_skip.Options(EXIT, share), "sampling": SAMPLINGS[sampling]}
    text: list[int] = []
    for turn, n_new in enumerate(N_NEW):
        n_held = max(len(text) - 1, 0)  # all but the last token
        text += token_ids(n_new, seed=turn)
        got = chat.completed(text, **options)
        assert got.tokens == plain_text(fresh, text, N_PREDICT, SAMPLINGS[sampling])
        assert got.stats.n_prompt_reused == n_held
        assert chat.n_prompt_rows == len(text) - 1 - n_held == n_new - (turn == 0)
        assert max(len(rows) for rows, _ in chat.passes) <= context.abilities.exact_width
        text += got.tokens
        assert list(context.sequence().tokens) == text[:-1]
    if arch in WINDOWED:
        assert len(text) > 2 * 32, "the window was crossed"


@pytest.mark.parametrize("share", [True, False], ids=["shared", "forked"])
@pytest.mark.parametrize(("arch", "qtype"), [("llama", "F16"), ("gemma3", "Q8_0")])
def test_long_turns(
    arch: str,
    qtype: str,
    share: bool,
    typed: TypedModel,
    new_context: NewContext,
    token_ids: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Turns wider than the exact width, and than a batch: the same with drafts as without, where
    both read the same turns."""
    model = typed(arch, qtype)
    drafting = Watched(new_context(model, n_ctx=1024), monkeypatch)
    plain = Watched(new_context(model, n_ctx=1024), monkeypatch)
    require_exact(drafting.context)
    text: list[int] = []
    for turn, n_new in enumerate((90, 40, 130, 17, 64)):
        n_held = max(len(text) - 1, 0)
        text += token_ids(n_new, seed=turn)
        options = {"options": layer_skip.Options(EXIT, share), "sampling": SEEDED}
        got = drafting.completed(text, **options)
        want = plain.completed(text, draft=None, sampling=SEEDED)
        assert got.tokens == want.tokens
        for each in (drafting, plain):
            assert each.n_prompt_rows == len(text) - 1 - n_held
        assert got.stats.n_prompt_reused == want.stats.n_prompt_reused == n_held
        text += got.tokens


@pytest.mark.parametrize("n_same", [0, 1, 20, 39, 44, 45])
@pytest.mark.parametrize("arch", ["llama", *WINDOWED])
def test_a_prompt_that_diverges_keeps_what_is_common(
    arch: str,
    n_same: int,
    typed: TypedModel,
    new_context: NewContext,
    token_ids: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of the last prompt, of the text that followed, or at the end of it. The last
    token of a prompt is always evaluated."""
    model = typed(arch, "Q8_0")
    chat = Watched(new_context(model), monkeypatch)
    require_exact(chat.context)
    options = {"mask": EXIT, "sampling": GREEDY}
    prompt = [*token_ids(9)]
    for _ in range(3):  # in passes that keep to the exact width
        first = chat.completed(prompt, **options, n_predict=12)
        prompt = [*prompt, *first.tokens]
    text = prompt
    assert len(text) == 45
    other = [*text[:n_same], *((token + 1) % 256 + 3 for token in text[n_same:])][:45]
    other += token_ids(2, seed=5) if n_same == 45 else []
    n_kept = min(n_same, 44)
    exact = len(other) - 1 - n_kept <= chat.context.abilities.exact_width
    for again in range(2):
        got = chat.completed(other, **options)
        assert got.stats.n_prompt_reused == (n_kept if not again else len(other) - 1)
        assert chat.n_prompt_rows == len(other) - 1 - got.stats.n_prompt_reused
        if exact:  # the K/V of wider passes may be others
            assert got.tokens == plain_text(new_context(model), other, N_PREDICT)


def test_a_prompt_that_is_shorter_goes_back(
    typed: TypedModel, new_context: NewContext, token_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated question gets the same answer for every seed and evaluates no token."""
    model = typed("gemma3", "Q4_0")
    chat = Watched(new_context(model), monkeypatch)
    require_exact(chat.context)
    prompt = token_ids(14)
    for seed in (1, 2, 1):
        sampling = SamplingParams(temperature=1.0, top_k=0, seed=seed)
        got = chat.completed(prompt, mask=EXIT, sampling=sampling, n_predict=50)
        assert got.tokens == plain_text(new_context(model), prompt, 50, sampling)
    assert got.stats.n_prompt_reused == 13 and chat.n_prompt_rows == 0


@pytest.mark.parametrize("n_pieces", [1, 2, 3])
def test_a_text_that_was_left_early_is_gone_on_with(
    n_pieces: int,
    typed: TypedModel,
    new_context: NewContext,
    token_ids: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = typed("llama", "Q8_0")
    chat = Watched(new_context(model), monkeypatch)
    require_exact(chat.context)
    first = Completion(chat.context, token_ids(9), mask=EXIT, sampling=GREEDY)
    pieces = iter(first)
    for _ in range(n_pieces):
        next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    text = [*token_ids(9), *first.tokens]
    second = chat.completed(text, mask=EXIT, sampling=GREEDY)
    assert chat.n_prompt_rows == 0 and second.stats.n_prompt_reused == len(text) - 1
    assert [*first.tokens, *second.tokens] == plain_text(
        new_context(model), token_ids(9), len(first.tokens) + N_PREDICT
    )


@pytest.mark.parametrize("made_by", ["mask", "hidden", "decode", "prefill", "fork"])
def test_only_what_the_full_model_computed_is_kept(
    made_by: str,
    typed: TypedModel,
    new_context: NewContext,
    token_ids: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever decodes by hand: K/V of a masked pass is not taken for the text's."""
    model = typed("llama", "Q8_0")
    chat = Watched(new_context(model), monkeypatch)
    context, prompt = chat.context, token_ids(14)
    require_exact(context)
    n_kept = 5
    context.decode(prompt[:5])
    if made_by == "mask":
        context.decode(prompt[5:9], mask=EXIT)
        context.decode(prompt[9:])
    elif made_by == "hidden":
        hidden = context.decode(prompt[5:9], mask=EXIT, hidden_at=2).hidden
        enter = LayerMask.enter_at(N_LAYER, 2)
        context.decode(prompt[5:9], hidden=hidden, mask=enter, pos=5, in_place=True)
    elif made_by == "decode":
        context.decode(prompt[5:9])
        n_kept = 9
    elif made_by == "prefill":
        context.prefill(prompt[5:])
        n_kept = 13
    else:
        context.decode(prompt[5:12])
        context.sequence().fork(1)
        context.decode(prompt[:3], mask=EXIT)  # goes on in sequence 0, which is forgotten now
        context.sequence().drop()
        context.sequence(1).fork(0)
        n_kept = 12
    got = chat.completed(prompt, mask=EXIT, sampling=GREEDY)
    assert got.stats.n_prompt_reused == n_kept
    assert got.tokens == plain_text(new_context(model), prompt, N_PREDICT)


def test_a_recurrent_model_goes_back_to_checkpoints(tmp_path: Any) -> None:
    """A text goes on from its end, or from a checkpoint. The reference runs its passes by hand."""
    with Model(write_mamba(tmp_path / "mamba.gguf")) as model:
        options = {"n_ctx": 128, "n_batch": 64, "n_threads": 1}
        context, by_hand = model.context(**options), model.context(**options)

        def turn(prompt: Sequence[int], n: int = 6) -> Completion:
            completion = Completion(context, prompt, draft=None, n_predict=n, sampling=GREEDY)
            for _piece in completion:
                pass
            return completion

        def same_by_hand(text: Sequence[int], n_held: int, n: int) -> list[int]:
            if n_held < len(text) - 1:
                by_hand.decode(text[n_held:-1], outputs="none")
            tokens: list[int] = []
            with Sampler(model, GREEDY) as sampler:
                sampler.begin(list(text))
                for _ in range(n):
                    by_hand.decode([[*text, *tokens][-1]])
                    tokens.append(sampler.sample(by_hand, 0))
            return tokens

        text: list[int] = []
        for i in range(N_TURNS):
            n_held = max(len(text) - 1, 0)
            text += [5 + i, 6, 7 * i + 1]
            got = turn(text)
            assert got.stats.n_prompt_reused == n_held
            assert got.tokens == same_by_hand(text, n_held, 6)
            text += got.tokens
        # checkpoints: before the last token of each prompt, and of each answer
        for other, n_reused in (([*text[:10], 9, 9], 8), (text[:-1], 8), (text[:4], 2)):
            by_hand.sequence().drop()
            got = turn(other)
            assert got.stats.n_prompt_reused == n_reused
            assert got.tokens == same_by_hand(other, 0, 6)


# --- readiness -------------------------------------------------------------------------------

SECOND_TEXT = """
import itertools, json, sys, time
from pyselfspec import Completion, Model
from pyselfspec.runtime.ffi.load import native

# every pass takes as long as any other: what is drafted does not depend on other programs
ticks = itertools.count(step=1000)
time.perf_counter_ns = lambda: next(ticks)

EVENTS = ("open", "import", "subprocess.Popen")
watching, seen = False, []

def hook(event, args):
    if watching and event in EVENTS:
        seen.append([event, str(args[0])])

sys.addaudithook(hook)
options = json.loads(sys.argv[2])
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=1, n_seq_max=6) as context:
    prompt = [5, 6, 7, 8]

    def n_checks():
        return native.selfspec_n_graph_checks(context.session)

    def first_piece():
        completion = Completion(context, prompt, n_predict=9, **options)
        n_made = n_checks()
        next(iter(completion))
        assert completion.draft == options.get("draft", sys.argv[3]), completion.draft
        return n_made

    for _ in Completion(context, prompt, n_predict=9, **options):
        pass
    if len(sys.argv) > 4:
        context.sequence().drop()
    n_before = n_checks()
    watching = True
    n_made = first_piece()
    watching = False
    print(json.dumps({"seen": seen, "n_checks": [n_before, n_made, n_checks()]}))
"""


READY: list[dict[str, Any]] = [
    {}, {"draft": "layer-skip"}, {"draft": None}, {"controller": "adaptive"},
    {"profile": False}, {"controller": "product"},
]  # fmt: skip


@pytest.mark.parametrize("dropped", [(), ("dropped",)], ids=["goes on", "anew"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        *(("demo", options) for options in READY),
        *((model, options) for model in ("tiny", "windowed") for options in READY[:2]),
    ],
    ids=str,
)
def test_a_second_text_finds_everything_ready(
    model: str,
    options: dict[str, Any],
    dropped: tuple[str, ...],
    run_python: RunPython,
    tiny_path: TinyPath,
) -> None:
    """No graph is checked and no file is opened from the making of the completion to its first
    piece, none is imported."""
    paths = {"demo": DEMO, "tiny": tiny_path(), "windowed": tiny_path("gemma3", qtype="Q8_0")}
    default = "ngram+layer-skip" if model == "demo" else "ngram"
    run = run_python(SECOND_TEXT, paths[model], json.dumps(options), default, *dropped)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["seen"] == []
    assert len(set(report["n_checks"])) == 1
    masked = options.get("draft", default)
    assert (report["n_checks"][0] > 0) == (masked is not None and "layer-skip" in masked)


def test_a_program_may_end_within_a_text(run_python: RunPython) -> None:
    run = run_python(
        "import sys\n"
        "from pyselfspec import Completion, Model\n"
        "context = Model(sys.argv[1]).context(n_ctx=64)\n"
        "pieces = iter(Completion(context, 'Once upon a time', n_predict=30))\n"
        "next(pieces)\n",
        DEMO,
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_a_first_text_with_another_mask_looks_up_once_more(
    typed: TypedModel, new_context: NewContext, token_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafters, options and masks are told apart: none is taken for another."""
    chat = Watched(new_context(typed("llama", "Q8_0")), monkeypatch)
    masks = [EXIT, None, EXIT]
    made = [
        chat.completed(token_ids(9), mask=mask, sampling=GREEDY, controller="auto")
        for mask in masks
    ]
    assert [each.mask == EXIT for each in made] == [True, False, True]
    forked = chat.completed(
        token_ids(9), options=layer_skip.Options(EXIT, share=False), sampling=GREEDY
    )
    assert {len(set(rows.seq_ids)) for rows, _ in chat.passes} == {1}
    assert any(rows.seq_ids[0] != 0 for rows, what in chat.passes if what.is_draft)
    assert [each.tokens for each in made] == [forked.tokens] * 3
