"""Heads that ``tune`` trains: the file drafts what torch computes, the data are the model's own
states and probabilities, interrupted work continues, and invalid input gets a clear error."""

import shutil
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
from tiny_mamba import write_mamba

torch = pytest.importorskip("torch")

from pyselfspec import Completion, Model, SamplingParams  # noqa: E402
from pyselfspec.cli import main  # noqa: E402
from pyselfspec.errors import ArgumentError, UnsupportedError  # noqa: E402
from pyselfspec.gguf import heads  # noqa: E402
from pyselfspec.speculate.drafters.head import HeadWarning  # noqa: E402
from pyselfspec.tune import data, export, prompts, run, train  # noqa: E402
from pyselfspec.tune.config import TrainingOptions, TuneConfig  # noqa: E402
from pyselfspec.tune.data import TextRequest, generate_texts, top_tokens  # noqa: E402
from pyselfspec.tune.export import CARD_KEY, Card  # noqa: E402
from pyselfspec.tune.head import Head, Shape  # noqa: E402
from pyselfspec.tune.run import tune  # noqa: E402
from pyselfspec.tune.shards import Batch, Shard  # noqa: E402
from pyselfspec.tune.weights import BaseModelWeights  # noqa: E402
from pyselfspec.util import records  # noqa: E402
from pyselfspec.util.progress import Interrupted  # noqa: E402

ONE_THREAD = {"n_threads": 1}
SMALL = TuneConfig(
    n_tokens=1, n_batches=48, draft_vocab_size=256, type_name="f32", n_lines=4, n_rows=32,
    n_texts=8, n_answer=40, bfloat16=False, training=TrainingOptions(rate=0.01, rate_other=1e-3),
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def short_answers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "N_PREDICT", 8)
        patch.setattr(run, "N_PROMPTS", 2)
        yield


@pytest.fixture(scope="module")
def trained(demo, tmp_path_factory):
    """A head that was trained for seconds, with its config, its torch module and its messages."""
    folder = tmp_path_factory.mktemp("tuned")
    config = replace(SMALL, folder=folder / "data", out=folder / "head.gguf")
    messages = []
    result = tune(demo, config, context=ONE_THREAD, progress=lambda p: messages.append(p.message))
    state = torch.load(folder / "data" / train.CHECKPOINT)["trainer"]
    head = Head(BaseModelWeights.open(demo.path).head_shape(256))
    head.load_state_dict(state["average"])
    return SimpleNamespace(
        config=config,
        result=result,
        head=head,
        vocab=head.draft_vocab.numpy(),
        messages=[each for each in messages if each],
    )


# --- data --------------------------------------------------------------------------------------


def test_data_are_what_the_models_passes_say(demo, new_context):
    """Texts side by side have the tokens, states and probabilities of each alone."""
    model, blocks = demo, (2, 6, 11)
    greedy, drawn = SamplingParams(temperature=0), SamplingParams(temperature=0.7, seed=3)
    beginnings = ["Once upon a time", "The little dog", "One day a girl went to the"]
    requests = [
        TextRequest(tuple(model.tokenize(text)), sampling, 20)
        for text, sampling in zip(beginnings, (greedy, drawn, drawn), strict=True)
    ]
    side_by_side = new_context(model, n_ctx=512, n_batch=8, n_seq_max=2)
    shard = generate_texts(side_by_side, blocks, requests)
    assert shard.lengths.sum() == len(shard)
    context, start = new_context(model, n_batch=32), 0
    for each, length in zip(requests, shard.lengths.tolist(), strict=True):
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
    best, probs = top_tokens(logits)
    assert best[0, :2].tolist() == [7, 30]
    law = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert np.allclose(probs[0, :3], [law[7], law[30], law[0]], atol=1e-3)


def test_rows_of_a_text_guess_the_token_after_next(trained):
    shard = Shard.load(trained.config.folder / "00000.npz")
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
    whole, folder = trained.config.folder, tmp_path / "data"
    folder.mkdir()
    for name in ("data.json", "00000.npz"):
        shutil.copy(whole / name, folder / name)
    (folder / ".unfinished-1").mkdir()
    about = records.load(whole / data.DESCRIPTION, data.DataDescription, what="data")
    found = data.TrainingData(folder, about)
    with found.open(), pytest.raises(ArgumentError, match="in use by another process"):
        with data.TrainingData(folder, about).open():
            pass
    assert found.shard_paths() == []
    with demo.context(n_ctx=16 * 512, n_batch=32, n_seq_max=16, n_threads=1) as context:
        path = found.write_next(context, prompts.bundled_prompts())
    for name, values in np.load(path).items():
        assert (values == np.load(whole / path.name)[name]).all(), name
    assert found.shard_paths() == [path]


def test_held_out_prompts_are_never_learned_from(demo):
    """Nor is what they ask about, where it is long."""
    source, lists = prompts.bundled_prompts(), prompts.request_forms().lists
    fillers = [*source.passages, *lists["note"], *lists["report"], *lists["code"]]

    def drawn(n, seed, held_out):
        tokens = islice(source.tokens(demo, seed, held_out=held_out), n)
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
    blocks, weights = run.default_blocks(demo), BaseModelWeights.open(demo.path)
    context.sequence().drop()
    states = context.decode(text, hidden_at=blocks).hidden.numpy()
    features = torch.from_numpy(states)[None, :-1]
    embedded = torch.from_numpy(weights.embeddings(np.array(text[1:], np.int32)))[None]
    texts = torch.zeros(1, len(text) - 1, dtype=torch.long)
    with torch.no_grad():
        for step, left in enumerate(trained.head.steps(features, embedded, texts, n)):
            yield trained.head.logits(left)[0, len(text) - n - 2 + step].numpy()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_file_drafts_what_torch_computes(demo, new_context, trained):
    """Token by token, with its probability, several steps deep."""
    context, other = new_context(demo), new_context(demo, n_batch=256)
    prompt = demo.tokenize("Once upon a time there was a")
    history, n_compared = list(prompt), 0
    for step in steps(context, trained.result.path, prompt, n_max=4, n_predict=20):
        draft, probs = step.draft.token_ids, step.draft.probs
        found = guesses(trained, demo, other, [*history, *draft], len(draft))
        for token, p, logits in zip(draft, probs, found, strict=bool(draft)):
            law = np.exp(logits - logits.max())
            law /= law.sum()
            assert p == pytest.approx(law[trained.vocab.tolist().index(token)], abs=0.01)
            assert p >= law.max() - 0.01, "another one is likelier"
            n_compared += 1
        history += step.tokens
    assert n_compared > 20


@pytest.mark.nightly
@pytest.mark.slow
def test_it_learns_in_seconds(trained):
    """Better than a guess among 256 tokens, or always the most frequent one, would be."""
    first, second, *_ = trained.result.card.acceptance
    shard = Shard.load(trained.config.folder / "00000.npz")
    said = np.concatenate([text.best[text.scored, 0] for text in shard.texts()])
    most_frequent = np.bincount(said).max() / len(said)
    assert first > 1.5 * most_frequent
    assert second > 0


def test_the_draft_vocabulary_has_the_most_frequent_tokens(trained):
    shard = Shard.load(trained.config.folder / "00001.npz")
    weights = np.zeros(4096)
    for best, probs in zip(shard.best, shard.probs.astype(float), strict=True):
        for token, p in zip(best, probs, strict=True):
            weights[token] += p
    vocab = trained.vocab
    assert (np.diff(vocab) > 0).all()
    assert weights[vocab].min() >= np.delete(weights, vocab).max() - 1e-9
    stored = {t.name: t.data for t in GGUFReader(trained.result.path).tensors}
    assert (stored["d2t"] == vocab).all()
    assert "token_embd.weight" not in stored


def test_the_card_says_where_it_comes_from(demo, trained):
    fields = GGUFReader(trained.result.path).fields
    card = records.decode(fields[CARD_KEY].contents(), Card)
    assert card == trained.result.card
    assert card.fingerprint == demo.fingerprint
    assert card.n_trained == SMALL.n_batches * 4 * 32
    assert card.n_data == sum(len(Shard.load(path)) for path in trained.config.folder.glob("*.npz"))
    assert "trained on 0.01 million tokens" in trained.messages[-1]
    assert demo.path.name in fields["general.description"].contents()


@pytest.mark.nightly
@pytest.mark.slow
def test_training_goes_on_where_it_was(demo, trained, tmp_path):
    """Two halves end where one run does."""
    folder, whole = tmp_path / "data", trained.config.folder
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns(train.CHECKPOINT))
    config = replace(trained.config, folder=folder, out=tmp_path / "head.gguf")

    def stop_half_way(progress):
        if progress.stage == "training" and progress.n_done >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        tune(demo, config, context=ONE_THREAD, progress=stop_half_way)
    assert torch.load(folder / train.CHECKPOINT)["trainer"]["n_batches"] == SMALL.n_batches // 2
    assert not config.out.exists()
    result = tune(demo, config, context=ONE_THREAD)
    assert result.card.n_trained == trained.result.card.n_trained
    with pytest.raises(ArgumentError, match="other settings; remove"):
        tune(demo, replace(config, draft_vocab_size=64), context=ONE_THREAD)
    (folder / train.CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(ArgumentError, match="checkpoint is broken"):
        tune(demo, config, context=ONE_THREAD)


# --- using it ----------------------------------------------------------------------------------


def test_a_tuned_head_is_found_by_itself(demo, new_context, trained):
    """By the model's fingerprint, wherever the model lies; the text stays the model's own."""
    path = heads.tuned_path(demo.fingerprint)
    assert "head" not in (Completion(new_context(demo), "Once").draft or "")
    path.parent.mkdir(parents=True)
    shutil.copy(trained.result.path, path)
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


def test_speed_is_measured_without_earlier_answers(demo, monkeypatch):
    """Each variant has its own context: a shared one would copy earlier answers. The first prompt
    does not count."""
    used = {}

    def speed(context, prompt, draft):
        used.setdefault(draft, set()).add(context)
        times = 1 if draft is None else 3 if "head" in draft else 2
        return float(times * (99 if draft and prompt == [0] else 5))

    monkeypatch.setattr(run, "_tokens_per_second", speed)
    found = run.compare_speed(demo, Path("head.gguf"), [[0], [1], [2]], context=ONE_THREAD)
    assert found == run.SpeedComparison(5.0, 2.0, 3.0)
    assert [len(contexts) for contexts in used.values()] == [1, 1, 1]
    assert len(set.union(*used.values())) == 3


@pytest.mark.parametrize(("named", "ngram_head", "is_used"), [
    (False, 1.3, True), (False, 1.2, False), (True, 1.3, False),
])  # fmt: skip
def test_heads_that_pay_are_installed(
    named, ngram_head, is_used, demo, trained, tmp_path, monkeypatch
):
    """Others are not, nor are heads with a path that the user gave."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(
        run, "compare_speed", lambda *_args, **_options: run.SpeedComparison(9.0, 1.2, ngram_head)
    )
    out = tmp_path / "head.gguf" if named else None
    result = tune(demo, replace(trained.config, out=out), context=ONE_THREAD)
    installed = heads.tuned_path(demo.fingerprint)
    assert result.installed == (installed if is_used else None)
    assert installed.exists() == is_used
    assert result.path == (out or trained.config.folder / run.HEAD)


@pytest.mark.parametrize(("installed", "ngram_head", "message"), [
    (Path("head"), 1.3, "uses it by default"),
    (None, 1.3, "give generate --draft ngram+head:"),
    (None, 1.2, "does not make generation faster yet"),
])  # fmt: skip
def test_the_command_line_shows_the_result(installed, ngram_head, message, trained, monkeypatch):
    speed = run.SpeedComparison(100.0, 1.2, ngram_head)
    result = replace(trained.result, installed=installed, speed=speed)
    fake = SimpleNamespace(tune=lambda *_args, **_options: result)
    monkeypatch.setattr("pyselfspec.cli.tune._load_run", lambda: fake)
    shown = CliRunner().invoke(main, ["tune", "demo"])
    assert shown.exit_code == 0 and message in shown.stdout


def test_an_installed_head_is_the_file(demo, trained, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = run.install(demo, trained.result.path)
    assert path == heads.tuned_path(demo.fingerprint)
    assert heads.tuned_path(demo.fingerprint).read_bytes() == trained.result.path.read_bytes()


# --- what is no use ----------------------------------------------------------------------------


def refused(model, tmp_path, error, match, **options):
    config = replace(SMALL, folder=tmp_path / "data", out=tmp_path / "head.gguf", **options)
    with pytest.raises(error, match=match):
        tune(model, config, context=ONE_THREAD)
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
    config = replace(SMALL, folder=tmp_path / "data", out=copy)
    with Model(copy) as model, pytest.raises(ArgumentError, match="is a model"):
        tune(model, config, context=ONE_THREAD)
    assert copy.read_bytes() == demo.path.read_bytes()
    export.require_head_target(trained.result.path)


def test_all_of_a_heads_matrices_have_the_type_that_was_asked_for(demo, trained, tmp_path):
    weights, card = BaseModelWeights.open(demo.path), trained.result.card
    given = trained.head, weights.source, card.blocks, card
    export.write_head(tmp_path / "small.gguf", *given, "q4_0")
    tensors = GGUFReader(tmp_path / "small.gguf").tensors
    assert {t.tensor_type.name for t in tensors if len(t.shape) > 1} == {"Q4_0"}
    assert [each.name for each in tmp_path.iterdir()] == ["small.gguf"]


def test_data_of_another_model_are_refused(tiny, trained):
    config = replace(trained.config, out=trained.config.folder / "other.gguf")
    with pytest.raises(ArgumentError, match=r"of another model, demo\.gguf; give another folder"):
        tune(tiny(), config, context=ONE_THREAD)


def test_other_prompts_and_other_files_are_refused(demo, tmp_path, trained):
    other = replace(trained.config, seed=5)
    with pytest.raises(ArgumentError, match="of other prompts or settings"):
        tune(demo, other, context=ONE_THREAD)
    about = records.load(
        trained.config.folder / data.DESCRIPTION, data.DataDescription, what="data"
    )
    with pytest.raises(
        ArgumentError, match="holds data of an earlier version of the bundled prompts"
    ):
        data.TrainingData(trained.config.folder, replace(about, digest="of a later version"))
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
        ("chats.jsonl", "{}", "line 1: not a chat"),
        ("chats.jsonl", "no JSON", "line 1: not JSON"),
        ("chats.jsonl", "", "has no chats"),
        ("chats.jsonl", '{"messages": [{"role": "assistant"}]}', "not a chat"),
        ("text.txt", "  ", "has no text"),
    ],
)
def test_prompts_that_are_none_are_refused(tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(ArgumentError, match=match):
        prompts.read_prompts(tmp_path / name)


def test_prompts_are_read(tmp_path):
    (tmp_path / "chats.jsonl").write_text(
        '{"prompt": "Hello"}\n{"messages": [{"role": "user", "content": "A"}, '
        '{"role": "assistant", "content": "B"}]}\n'
    )
    hello, chat = prompts.read_prompts(tmp_path / "chats.jsonl").chats
    assert hello == ({"role": "user", "content": "Hello"},)
    assert [each["content"] for each in chat] == ["A"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.md").write_text("One.\n\n" + 300 * "word " + "\n\nThree.")
    assert "One." in prompts.read_prompts(tmp_path / "folder").passages[0]


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
    head = Head(Shape(n_embd=8, n_head=2, n_head_kv=1, head_size=4, n_ff=16, draft_vocab_size=10))
    size, options = (2, 200), TrainingOptions(n_steps=3, decay=0.5)
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
    loss = train._loss(head, batch, options)
    assert float(loss.detach()) == pytest.approx(want, rel=1e-4)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in head.parameters() if p.grad is not None)
