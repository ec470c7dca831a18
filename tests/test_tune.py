"""Heads that ``tune`` trains: the file drafts what torch computed, the data is what the model says,
interrupted work goes on, and what is no use is refused with a sentence."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import command_line
import numpy as np
import pytest
from click.testing import CliRunner
from gguf import GGUFReader
from head_oracle import steps
from odd_models import write_bert
from test_masks import write_mamba

torch = pytest.importorskip("torch")

from pyselfspec import Completion, Model, SamplingParams  # noqa: E402
from pyselfspec.cli import main  # noqa: E402
from pyselfspec.errors import ArgumentError, UnsupportedError  # noqa: E402
from pyselfspec.gguf import heads  # noqa: E402
from pyselfspec.speculate.drafters.head import HeadWarning  # noqa: E402
from pyselfspec.tune import asking, data, export, gain, prompts, training, tuning  # noqa: E402
from pyselfspec.tune.batches import Batch  # noqa: E402
from pyselfspec.tune.card import KEY, Card  # noqa: E402
from pyselfspec.tune.head import Head, Shape  # noqa: E402
from pyselfspec.tune.known import Known  # noqa: E402
from pyselfspec.tune.shards import Shard  # noqa: E402
from pyselfspec.tune.tuning import tune  # noqa: E402
from pyselfspec.tune.wanted import Options, Wanted  # noqa: E402
from pyselfspec.tune.writing import Asked, likeliest, write  # noqa: E402
from pyselfspec.util import records  # noqa: E402

ONE_THREAD = {"n_threads": 1}
SMALL = Wanted(
    n_tokens=1, n_batches=48, n_own=256, type_name="f32", n_lines=4, n_rows=32, n_texts=8,
    n_answer=40, half=False, training=Options(rate=0.01, rate_other=1e-3),
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(demo, tmp_path_factory):
    """A head that was trained for seconds, with its folder, its torch module and its news."""
    folder = tmp_path_factory.mktemp("tuned")
    wanted = replace(SMALL, folder=folder / "data", out=folder / "head.gguf")
    news = []
    tuned = tune(demo, wanted, context=ONE_THREAD, follow=lambda p: news.append(p.news))
    state = torch.load(folder / "data" / tuning.STATE)
    own = state["own"].numpy()
    head = Head(Known.of(demo.path).shape(len(own)))
    head.load_state_dict(state["training"]["average"])
    return SimpleNamespace(
        wanted=wanted, tuned=tuned, head=head, own=own, news=[each for each in news if each]
    )


# --- data --------------------------------------------------------------------------------------


def test_data_are_what_the_models_passes_say(demo, new_context):
    """Texts side by side have the tokens, states and probabilities of each alone."""
    model, blocks = demo, (2, 6, 11)
    greedy, drawn = SamplingParams(temperature=0), SamplingParams(temperature=0.7, seed=3)
    beginnings = ["Once upon a time", "The little dog", "One day a girl went to the"]
    asked = [
        Asked(tuple(model.tokenize(text)), sampling, 20)
        for text, sampling in zip(beginnings, (greedy, drawn, drawn), strict=True)
    ]
    side_by_side = new_context(model, n_ctx=512, n_batch=8, n_seq_max=2)
    shard = write(side_by_side, blocks, asked)
    assert shard.lengths.sum() == len(shard)
    context, start = new_context(model, n_batch=32), 0
    for each, length in zip(asked, shard.lengths.tolist(), strict=True):
        here = slice(start, start + length)
        tokens = shard.tokens[here].tolist()
        assert tuple(tokens[: len(each.prompt)]) == each.prompt
        context.sequence().drop()
        found = context.decode(tokens, hidden_at=blocks)
        logits = found.logits.astype(np.float64)
        law = np.exp(logits - logits.max(1, keepdims=True))
        law /= law.sum(1, keepdims=True)
        assert np.allclose(shard.features[here], found.hidden.numpy(), rtol=2e-3, atol=2e-3)
        kept = np.take_along_axis(law, shard.best[here].astype(int), 1)
        assert np.allclose(shard.probs[here], kept, atol=2e-3)
        assert (shard.best[here, 0] == law.argmax(1)).all()
        if each.sampling.is_greedy:
            n = len(each.prompt)
            assert tokens[n:] == shard.best[here, 0][n - 1 : -1].tolist()
        start += length


def test_the_likeliest_tokens_are_sorted_and_ties_go_to_the_lowest():
    logits = np.zeros((1, 40), np.float32)
    logits[0, [7, 30]] = 2.0
    best, probs = likeliest(logits)
    assert best[0, :2].tolist() == [7, 30]
    law = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert np.allclose(probs[0, :3], [law[7], law[30], law[0]], atol=1e-3)


def test_rows_of_a_text_guess_the_token_after_next(trained):
    shard = Shard.load(trained.wanted.folder / "00000.npz")
    rows, n = shard.texts()[0], int(shard.lengths[0])
    assert len(rows) == n - 1
    assert (rows.features == shard.features[: n - 1]).all()
    assert (rows.tokens == shard.tokens[1:n]).all()
    assert (rows.best == shard.best[1:n]).all()
    # held-out text is greedy: what is likeliest is what came
    scored = rows.scored[:-1]
    assert scored.sum() == n - shard.prompts[0]
    assert (rows.best[:-1, 0][scored] == rows.tokens[1:][scored]).all()


def test_data_of_an_interrupted_run_go_on_to_be_the_same(demo, trained, tmp_path):
    """A kill leaves whole shards, and perhaps a part of another one that is not looked at."""
    whole, folder = trained.wanted.folder, tmp_path / "data"
    folder.mkdir()
    for name in ("data.json", "00000.npz"):
        shutil.copy(whole / name, folder / name)
    (folder / ".unfinished-1").mkdir()
    about = records.load(whole / data.MANIFEST, data.About, what="data")
    found = data.Data(folder, about)
    with found.open(), pytest.raises(ArgumentError, match="in use by another process"):
        with data.Data(folder, about).open():
            pass
    assert found.shards() == []
    with demo.context(n_ctx=16 * 512, n_batch=32, n_seq_max=16, n_threads=1) as context:
        path = found.write_next(context, asking.bundled())
    for name, values in np.load(path).items():
        assert (values == np.load(whole / path.name)[name]).all(), name
    assert found.shards() == [path]


def test_held_out_prompts_are_never_learned_from(demo):
    """Nor is what they ask about, where it is long."""
    asked, lists = asking.bundled(), prompts.stock().lists
    fillers = [*asked.passages, *lists["note"], *lists["report"], *lists["code"]]

    def drawn(n, seed, held_out):
        tokens = islice(asked.tokens(demo, seed, held_out=held_out), n)
        return {demo.detokenize(each) for each in tokens}

    def long(texts):
        found = {each for each in fillers if any(each in text for text in texts)}
        return {each for each in found if len(each) > prompts.N_LONG}

    held_out, other = drawn(150, 0, held_out=True), drawn(1500, 1, held_out=False)
    assert len(long(held_out)) > 4 and len(long(other)) > 90
    assert not held_out & other and not long(held_out) & long(other)


# --- the head ----------------------------------------------------------------------------------


def guesses(trained, demo, context, text, n):
    """Logits of torch's head over the model's tokens, for n steps of a draft behind a text whose
    last n tokens are the draft."""
    blocks, known = tuning.default_blocks(demo), Known.of(demo.path)
    context.sequence().drop()
    states = context.decode(text, hidden_at=blocks).hidden.numpy()
    features = torch.from_numpy(states)[None, :-1]
    embedded = torch.from_numpy(known.embedded(np.array(text[1:], np.int32)))[None]
    texts = torch.zeros(1, len(text) - 1, dtype=torch.long)
    with torch.no_grad():
        for step, left in enumerate(trained.head.steps(features, embedded, texts, n)):
            yield trained.head.logits(left)[0, len(text) - n - 2 + step].numpy()


@pytest.mark.slow
def test_the_file_drafts_what_torch_computes(demo, new_context, trained):
    """Token by token, with its probability, several steps deep."""
    context, other = new_context(demo), new_context(demo, n_batch=256)
    prompt = demo.tokenize("Once upon a time there was a")
    history, n_compared = list(prompt), 0
    for step in steps(context, trained.tuned.path, prompt, n_max=4, n_predict=20):
        draft, probs = step.draft.tokens, step.draft.probs or ()
        found = guesses(trained, demo, other, [*history, *draft], len(draft))
        for token, p, logits in zip(draft, probs, found, strict=bool(draft)):
            law = np.exp(logits - logits.max())
            law /= law.sum()
            assert p == pytest.approx(law[trained.own.tolist().index(token)], abs=0.01)
            assert p >= law.max() - 0.01, "another one is likelier"
            n_compared += 1
        history += step.tokens
    assert n_compared > 20


@pytest.mark.slow
def test_it_learns_in_seconds(trained):
    """Better than a guess among 256 tokens, or always the most frequent one, would be."""
    first, second, *_ = trained.tuned.card.acceptance
    shard = Shard.load(trained.wanted.folder / "00000.npz")
    said = np.concatenate([text.best[text.scored, 0] for text in shard.texts()])
    most_frequent = np.bincount(said).max() / len(said)
    assert first > 1.5 * most_frequent
    assert second > 0


def test_own_tokens_are_those_that_are_said_most(trained):
    shard = Shard.load(trained.wanted.folder / "00001.npz")
    weights = np.zeros(4096)
    for best, probs in zip(shard.best, shard.probs.astype(float), strict=True):
        for token, p in zip(best, probs, strict=True):
            weights[token] += p
    own = trained.own
    assert (np.diff(own) > 0).all()
    assert weights[own].min() >= np.delete(weights, own).max() - 1e-9
    stored = {t.name: t.data for t in GGUFReader(trained.tuned.path).tensors}
    assert (stored["d2t"] == own).all()
    assert "token_embd.weight" not in stored


def test_the_card_says_where_it_comes_from(demo, trained):
    fields = GGUFReader(trained.tuned.path).fields
    card = records.decode(fields[KEY].contents(), Card)
    assert card == trained.tuned.card
    assert card.fingerprint == demo.fingerprint
    assert card.n_seen == SMALL.n_batches * 4 * 32
    assert card.n_written == sum(
        len(Shard.load(path)) for path in trained.wanted.folder.glob("*.npz")
    )
    assert "0.01 million tokens seen" in trained.news[-1]
    assert demo.path.name in fields["general.description"].contents()


@pytest.mark.slow
def test_training_goes_on_where_it_was(demo, trained, tmp_path):
    """Two halves end where one run does."""
    folder, whole = tmp_path / "data", trained.wanted.folder
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns(tuning.STATE))
    wanted = replace(trained.wanted, folder=folder, out=tmp_path / "head.gguf")

    def stop_half_way(progress):
        if progress.doing == "training" and progress.share >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(tuning.Interrupted):
        tune(demo, wanted, context=ONE_THREAD, follow=stop_half_way)
    assert torch.load(folder / tuning.STATE)["training"]["n_batches"] == SMALL.n_batches // 2
    assert not wanted.out.exists()
    tuned = tune(demo, wanted, context=ONE_THREAD)
    assert tuned.card.n_seen == trained.tuned.card.n_seen
    with pytest.raises(ArgumentError, match="other settings; remove"):
        tune(demo, replace(wanted, n_own=64), context=ONE_THREAD)
    (folder / tuning.STATE).write_bytes(b"no checkpoint")
    with pytest.raises(ArgumentError, match="checkpoint is broken"):
        tune(demo, wanted, context=ONE_THREAD)


# --- using it ----------------------------------------------------------------------------------


def test_a_tuned_head_is_found_by_itself(demo, new_context, trained):
    """By the model's fingerprint, wherever the model lies; the text stays the model's own."""
    path = heads.tuned_path(demo.fingerprint)
    assert "head" not in (Completion(new_context(demo), "Once").draft or "")
    path.parent.mkdir(parents=True)
    shutil.copy(trained.tuned.path, path)
    greedy = SamplingParams(temperature=0)
    texts = [
        Completion(new_context(demo), "Once upon", draft=draft, sampling=greedy, n_predict=16)
        for draft in ("auto", None)
    ]
    assert "head" in texts[0].draft
    assert "".join(texts[0]) == "".join(texts[1])
    path.write_bytes(b"GGUF, but no head")
    with pytest.warns(HeadWarning, match="ignored until then"):
        assert "head" not in Completion(new_context(demo), "Once").draft


def test_the_gain_is_measured_in_turns(demo, trained):
    found = gain.measure(
        demo, trained.tuned.path, [[1, 300, 290]] * 2, context=ONE_THREAD, n_predict=8
    )
    assert found.plain > 0 and found.copies > 0 and found.both > 0


def test_the_gain_is_measured_where_no_answer_is_known(demo, monkeypatch):
    """Each way has a context of its own: one would copy what it wrote before. The first prompt does
    not count."""
    used = {}

    def speed(context, prompt, way, n_predict):
        used.setdefault(way, set()).add(context)
        times = 1 if way is None else 3 if "head" in way else 2
        return float(times * (99 if way and prompt == [0] else 5))

    monkeypatch.setattr(gain, "_speed", speed)
    found = gain.measure(demo, Path("head.gguf"), [[0], [1], [2]], context=ONE_THREAD)
    assert found == gain.Gain(5.0, 2.0, 3.0)
    assert [len(contexts) for contexts in used.values()] == [1, 1, 1]
    assert len(set.union(*used.values())) == 3


@pytest.mark.parametrize(("named", "both", "used"), [
    (False, 1.3, True), (False, 1.2, False), (True, 1.3, False),
])  # fmt: skip
def test_generate_finds_heads_that_gain_something(
    named, both, used, trained, tmp_path, monkeypatch
):
    """And leaves those aside that gain nothing over copies alone, or that were given a name."""
    installed = []
    fake = SimpleNamespace(
        Wanted=Wanted,
        Interrupted=tuning.Interrupted,
        tune=lambda *_args, **_options: trained.tuned,
        install=lambda _model, path: installed.append(path) or path,
        measure=lambda *_args, **_options: gain.Gain(100.0, 1.2, both),
        N_PROMPTS=1,
    )
    monkeypatch.setattr("pyselfspec.cli.tune._modules", lambda: (fake, fake))
    monkeypatch.setattr("pyselfspec.cli.tune._progress", lambda _tuning: nullcontext(print))
    out = ["--out", str(tmp_path / "head.gguf")] if named else []
    result = CliRunner().invoke(main, ["tune", "demo", *out])
    assert result.exit_code == 0
    assert installed == [trained.tuned.path] * used
    assert ("by itself" in result.stdout) == used
    assert ("gains nothing" in result.stdout) == (both == 1.2)


def test_an_installed_head_is_the_file(demo, trained, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = tuning.install(demo, trained.tuned.path)
    assert path == heads.tuned_path(demo.fingerprint)
    assert heads.tuned_path(demo.fingerprint).read_bytes() == trained.tuned.path.read_bytes()


# --- what is no use ----------------------------------------------------------------------------


def refused(model, tmp_path, error, match, **wanted):
    wanted = replace(SMALL, folder=tmp_path / "data", out=tmp_path / "head.gguf", **wanted)
    with pytest.raises(error, match=match):
        tune(model, wanted, context=ONE_THREAD)
    assert not (tmp_path / "head.gguf").exists()


@pytest.mark.parametrize(
    ("make", "match"),
    [(write_mamba, "cannot take tokens back"), (write_bert, "writes no text")],
)
def test_models_without_a_use_for_heads_are_refused(tmp_path, make, match):
    make(tmp_path / "model.gguf")
    with Model(tmp_path / "model.gguf") as model:
        refused(model, tmp_path, UnsupportedError, match)
    assert not (tmp_path / "data").exists()


def test_a_model_is_not_replaced_by_a_head(demo, trained, tmp_path):
    """Its own least of all; an earlier head is."""
    copy = tmp_path / "model.gguf"
    copy.write_bytes(demo.path.read_bytes())
    wanted = replace(SMALL, folder=tmp_path / "data", out=copy)
    with Model(copy) as model, pytest.raises(ArgumentError, match="is a model"):
        tune(model, wanted, context=ONE_THREAD)
    assert copy.read_bytes() == demo.path.read_bytes()
    export.require_out(trained.tuned.path)


def test_all_of_a_heads_matrices_have_the_type_that_was_asked_for(demo, trained, tmp_path):
    known, card = Known.of(demo.path), trained.tuned.card
    given = trained.head, trained.own, known.source, card.blocks, card
    export.write(tmp_path / "small.gguf", *given, "q4_0")
    tensors = GGUFReader(tmp_path / "small.gguf").tensors
    assert {t.tensor_type.name for t in tensors if len(t.shape) > 1} == {"Q4_0"}
    assert [each.name for each in tmp_path.iterdir()] == ["small.gguf"]


def test_data_of_another_model_are_refused(tiny, trained):
    wanted = replace(trained.wanted, out=trained.wanted.folder / "other.gguf")
    with pytest.raises(ArgumentError, match=r"of another model, demo\.gguf; give another folder"):
        tune(tiny(), wanted, context=ONE_THREAD)


def test_other_prompts_and_other_files_are_refused(demo, tmp_path, trained):
    other = replace(trained.wanted, seed=5)
    with pytest.raises(ArgumentError, match="of other prompts or settings"):
        tune(demo, other, context=ONE_THREAD)
    about = records.load(trained.wanted.folder / data.MANIFEST, data.About, what="data")
    with pytest.raises(ArgumentError, match="holds data of the bundled prompts as they were then"):
        data.Data(trained.wanted.folder, replace(about, digest="of a later version"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "letter.txt").write_text("Dear Sir")
    refused(demo, tmp_path, ArgumentError, "has other files in it")


def test_a_full_disk_is_noticed_before_it_starts(demo, tmp_path, monkeypatch):
    usage = SimpleNamespace(free=1_000_000)
    monkeypatch.setattr(data.shutil, "disk_usage", lambda _path: usage)
    refused(demo, tmp_path, ArgumentError, "MiB more, but only 0 MiB are free", n_tokens=10**6)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("chats.jsonl", "{}", "line 1: is no chat"),
        ("chats.jsonl", "no JSON", "line 1: not JSON"),
        ("chats.jsonl", "", "has no chats"),
        ("chats.jsonl", '{"messages": [{"role": "assistant"}]}', "is no chat"),
        ("text.txt", "  ", "has no text"),
    ],
)
def test_prompts_that_are_none_are_refused(tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(ArgumentError, match=match):
        asking.read(tmp_path / name)


def test_prompts_are_read(tmp_path):
    (tmp_path / "chats.jsonl").write_text(
        '{"prompt": "Hello"}\n{"messages": [{"role": "user", "content": "A"}, '
        '{"role": "assistant", "content": "B"}]}\n'
    )
    hello, chat = asking.read(tmp_path / "chats.jsonl").chats
    assert hello == ({"role": "user", "content": "Hello"},)
    assert [each["content"] for each in chat] == ["A"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.md").write_text("One.\n\n" + 300 * "word " + "\n\nThree.")
    assert "One." in asking.read(tmp_path / "folder").passages[0]


@pytest.mark.parametrize(
    ("blocks", "match"),
    [((2, 2, 5), "different"), ((6, 5, 2), "rising order"), ((0, 1, 13), "1 to 12")],
)
def test_blocks_that_are_none_are_refused(demo, tmp_path, blocks, match):
    refused(demo, tmp_path, ArgumentError, match, blocks=blocks)


def test_cuda_is_asked_for_where_there_is_none(demo, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(demo, tmp_path, ArgumentError, "no CUDA device", device="cuda")


def test_the_command_line_says_what_is_wrong(tmp_path):
    missing = command_line.run("tune", tmp_path / "none.gguf")
    assert missing.status == 1 and "no such file" in missing.stderr
    blocks = command_line.run("tune", "demo", "--blocks", "1,2")
    assert blocks.status == 2 and "--blocks takes 3 numbers" in blocks.stderr


def test_without_torch_it_says_what_to_install(run_python):
    run = run_python(
        "import sys; sys.modules['torch'] = None\n"
        "from pyselfspec.cli import main; main(['tune', 'demo'])"
    )
    assert run.returncode == 1
    assert "tune needs torch: pip install 'pyselfspec[tune]'" in run.stderr


# --- the loss ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_scored", [0, 1, 300])
def test_the_loss_is_that_of_the_rows_that_count(n_scored):
    """Cross entropy row by row, step by step, whatever fills up the units it is computed in."""
    torch.manual_seed(n_scored)
    head = Head(Shape(n_embd=8, n_head=2, n_head_kv=1, head_size=4, n_ff=16, n_own=10))
    size, options = (2, 200), Options(n_steps=3, decay=0.5)
    scored = torch.zeros(400, dtype=torch.bool)
    scored[torch.randperm(400)[:n_scored]] = True
    batch = Batch(
        features=torch.randn(*size, 24),
        embedded=torch.randn(*size, 8),
        texts=torch.arange(2)[:, None].expand(size),
        before=torch.arange(200).expand(size),
        best=torch.randint(-1, 10, (*size, 4)),
        probs=torch.rand(*size, 4),
        scored=scored.view(size),
    )
    batch.probs[batch.best < 0] = 0
    batch.probs[0, :50] = 0  # nothing of the head's own
    want = 0.0
    for step, left in enumerate(head.steps(batch.features, batch.embedded, batch.texts, 3)):
        laws, found = head.logits(left).log_softmax(-1).detach(), []
        for line, row in batch.scored.nonzero().tolist():
            p = batch.probs[line, row]
            if row >= step and p.sum() > 0:
                own = laws[line, row, batch.best[line, row].clamp(min=0)]
                found.append(float(-(p / p.sum() * own).sum()))
        want += 0.5**step * (np.mean(found) if found else 0) / 1.75
    loss = training._loss(head, batch, options)
    assert float(loss.detach()) == pytest.approx(want, rel=1e-4)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in head.parameters() if p.grad is not None)
