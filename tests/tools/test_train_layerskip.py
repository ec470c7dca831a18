"""The training tool: its schedules against the formulas, its network against transformers, and
runs that go on exactly where they stopped."""

# ruff: noqa: E402 - the imports below need what may not be installed

import dataclasses
import math
import os

import numpy as np
import pytest
from click.testing import CliRunner

os.environ["TORCH_COMPILE_DISABLE"] = "1"  # compiling takes longer than all of these steps

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")

from tools.layerskip import config as settings
from tools.layerskip import data, evaluation, network, recipe, train, training
from tools.layerskip.config import Config, ConfigError, LayerSkip, Plan, Shape

pytestmark = pytest.mark.nightly

SHAPE = Shape(n_layer=4, n_embd=32, n_ff=48, n_head=4, n_head_kv=2, n_vocab=64, context=32)
PLAN = Plan(tokens=8 * 64, batch=64, sequence=16, lr=1e-2)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_rows(n=40, seed=3):
    rng = np.random.default_rng(seed)
    return rng.integers(3, SHAPE.n_vocab, (n, PLAN.sequence + 1)).astype(np.uint16)


def stirred(config=None, seed=5):
    """A model whose blocks do something: they start as the identity."""
    model = network.make((config or Config(SHAPE, PLAN)).shape, "cpu", seed)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


# schedules


def test_dropout_rises_with_block_and_time():
    skip = LayerSkip(p_max=0.4)
    assert recipe.dropout(skip, 0, 8, 1.0) == 0.0
    assert recipe.dropout(skip, 7, 8, 1.0) == pytest.approx(0.4)
    assert recipe.dropout(skip, 7, 8, 0.0) == 0.0
    # half the depth and half the time: (2 ** (1/2) - 1) ** 2 of the most
    assert recipe.dropout(skip, 4, 9, 0.5) == pytest.approx(0.4 * (math.sqrt(2) - 1) ** 2)
    constant = LayerSkip(p_max=0.4, time_schedule="constant")
    assert recipe.dropout(constant, 7, 8, 0.0) == pytest.approx(0.4)


def test_a_model_of_one_block_never_drops_it():
    assert recipe.dropout(LayerSkip(p_max=0.5), 0, 1, 1.0) == 0.0


@pytest.mark.parametrize(
    ("scale", "early", "last"),
    [("uniform", 1, 1), ("linear", 2, 4), ("sum_l", 3, 10), ("sqrt", 2**0.5, 2)],
)
def test_loss_weights_are_normalised(scale, early, last):
    skip = LayerSkip(exit_scale=0.5, layer_scale=scale)
    total = 0.5 * early + last
    expected = (0.5 * early / total, last / total)
    assert recipe.loss_weights(skip, 2, 4) == pytest.approx(expected)


def test_rotation_visits_every_exit_in_turn():
    skip = LayerSkip(exits=(1, 2, 5))
    assert [recipe.exit_of_step(skip, 6, step, 6) for step in range(6)] == [1, 2, 5, 1, 2, 5]


def test_exits_beyond_the_blocks_that_exist_wait():
    assert recipe.enabled_exits(LayerSkip(exits=(2, 3, 6)), 4, 0.0) == [2, 3]


def test_the_gradual_curriculum_opens_exits_from_the_last_to_the_first():
    skip = LayerSkip(curriculum="gradual")
    opened = [recipe.enabled_exits(skip, 4, progress) for progress in (0, 0.125, 0.25, 0.375, 1)]
    assert opened == [[], [3], [2, 3], [1, 2, 3], [1, 2, 3]]
    assert recipe.exit_of_step(skip, 4, 0, 100) is None


def test_the_rate_rises_stays_and_falls_to_zero():
    plan = Plan(warmup=0.1, decay=0.5)
    rates = [recipe.learning_rate(plan, progress) for progress in (0, 0.05, 0.1, 0.5, 0.75, 1)]
    assert rates == pytest.approx([0, 0.5, 1, 1, 0.5, 0])
    assert recipe.learning_rate(Plan(warmup=0, decay=0), 1.0) == 1.0


def test_blocks_are_added_when_it_is_time():
    plan = Plan(grow_from=2, grow_at=0.5)
    assert [recipe.n_layer_at(plan, 8, progress) for progress in (0, 0.49, 0.5, 1)] == [2, 2, 8, 8]
    assert recipe.n_layer_at(Plan(), 8, 0.0) == 8
    assert [step for step in range(11) if recipe.grows_at(plan, 8, step, 10)] == [5]
    assert not any(recipe.grows_at(Plan(), 8, step, 10) for step in range(11))


# text


def test_a_pass_reads_every_row_once_and_the_next_in_another_order():
    steps = [data.rows_of_step(12, 4, step, seed=1) for step in range(6)]
    first, second = np.concatenate(steps[:3]), np.concatenate(steps[3:])
    assert sorted(first) == sorted(second) == list(range(12))
    assert list(first) != list(second)
    assert list(first) != list(np.concatenate([data.rows_of_step(12, 4, s, 2) for s in range(3)]))


def test_a_batch_may_cross_the_end_of_the_text():
    steps = [data.rows_of_step(10, 4, step, seed=1) for step in range(5)]
    assert sorted(np.concatenate(steps)) == sorted([*range(10), *range(10)])


def test_packed_rows_overlap_by_the_target():
    tokens = np.arange(data.MIN_TOKENS, dtype=np.uint16)
    rows = data.packed(tokens, 100)
    assert rows.shape == ((data.MIN_TOKENS - 1) // 100, 101)
    assert list(rows[1]) == list(range(100, 201))


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(data.DataError, match="12 tokens of text: training needs 10000"):
        data.packed(np.arange(12, dtype=np.uint16), 4)


def test_text_is_read_packed_or_plain(tmp_path):
    import lzma

    (tmp_path / "a.txt").write_text("tea — and cake")
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress("tea — and cake".encode()))
    assert data.read_text(tmp_path / "a.txt") == data.read_text(tmp_path / "a.txt.xz")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(data.DataError, match="not UTF-8"):
        data.read_text(tmp_path / "b.txt")


# network


def test_exits_are_the_hidden_states_of_transformers():
    model, rows = stirred(), random_rows(3)
    ids = torch.from_numpy(rows.astype(np.int64))
    with torch.no_grad():
        found = network.run_blocks(model, ids, 4, [1, 2, 3, 4], None)
        states = model(ids, output_hidden_states=True).hidden_states  # the last one is normalised
    for ours, theirs in zip(found, [*states[1:4], None], strict=True):
        if theirs is None:
            ours, theirs = model.model.norm(ours), states[4]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_dropped_block_is_skipped_for_its_row_alone():
    model, rows = stirred(), random_rows(2)
    ids = torch.from_numpy(rows.astype(np.int64))
    keep = torch.ones(4, 2)
    keep[1:, 0] = 0.0
    with torch.no_grad():
        (dropped,) = network.run_blocks(model, ids, 4, [4], keep)
        first, full = network.run_blocks(model, ids, 4, [1, 4], None)
    torch.testing.assert_close(dropped[0], first[0])
    torch.testing.assert_close(dropped[1], full[1])
    assert not torch.allclose(full[0], first[0])


def test_blocks_start_as_the_identity():
    model, rows = network.make(SHAPE, "cpu", 1), random_rows(2)
    ids = torch.from_numpy(rows.astype(np.int64))
    with torch.no_grad():
        before, after = network.run_blocks(model, ids, 4, [2, 4], None)
    assert torch.equal(before, after)


def test_losses_are_cross_entropy_and_divergence():
    model, rows = stirred(), random_rows(2)
    ids = torch.from_numpy(rows.astype(np.int64))
    with torch.no_grad():
        early, last = network.run_blocks(model, ids[:, :-1], 4, [2, 4], None)
        found = network.losses(model, last, early, ids[:, 1:])
        p, q = (model.lm_head(model.model.norm(h)).log_softmax(-1) for h in (last, early))
    target = ids[:, 1:].flatten()
    nll = torch.nn.functional.nll_loss
    torch.testing.assert_close(found.last, nll(p.flatten(0, 1), target))
    torch.testing.assert_close(found.early, nll(q.flatten(0, 1), target))
    torch.testing.assert_close(found.divergence, (p.exp() * (p - q)).sum(-1).mean())


def test_added_blocks_are_softer_copies_of_those_before():
    model = stirred()
    before = [{k: v.clone() for k, v in b.state_dict().items()} for b in model.model.layers]
    network.stack(model, 3)
    layers = model.model.layers
    for name, value in layers[3].state_dict().items():
        softer = 0.5 if name in ("self_attn.o_proj.weight", "mlp.down_proj.weight") else 1.0
        assert torch.equal(value, softer * before[0][name]), name
    for i in range(3):
        assert all(torch.equal(v, before[i][k]) for k, v in layers[i].state_dict().items())


def test_scores_agree_with_the_last_block_by_definition():
    model, rows = stirred(), random_rows(9)
    scores = evaluation.score_exits(model, rows, 4, "cpu")
    assert [score.exit for score in scores] == [1, 2, 3, 4]
    assert scores[-1].agreement == 1.0
    assert all(0 <= score.agreement < 1 for score in scores[:-1])


# runs


def states_after(run, rows, n_step):
    steps = run.train(rows)
    for _ in range(n_step):
        next(steps)
    return {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.mark.parametrize("plain", [False, True])
def test_a_run_goes_on_exactly_where_it_stopped(tmp_path, plain):
    plan = dataclasses.replace(PLAN, grow_from=2, grow_at=0.5)
    config, rows = Config(SHAPE, plan, LayerSkip(p_max=0.5, agreement=0.3)), random_rows()
    whole = states_after(training.Run.start(config, plain, "cpu"), rows, 8)

    run = training.Run.start(config, plain, "cpu")
    states_after(run, rows, 5)
    run.save(tmp_path / "checkpoint.pt")
    again = training.Run.start(config, plain, "cpu")
    again.load(tmp_path / "checkpoint.pt")
    resumed = states_after(again, rows, 3)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert list(tmp_path.iterdir()) == [tmp_path / "checkpoint.pt"]


def test_blocks_are_stacked_once_by_the_step_that_adds_them(monkeypatch):
    stacked = []
    monkeypatch.setattr(network, "stack", lambda _, n_from: stacked.append((run.step, n_from)))
    plan = dataclasses.replace(PLAN, grow_from=2, grow_at=0.5)
    run = training.Run.start(Config(SHAPE, plan), False, "cpu")
    states_after(run, random_rows(), 8)
    assert stacked == [(4, 2)]


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    config = Config(SHAPE, PLAN)
    training.Run.start(config, True, "cpu").save(tmp_path / "c.pt")
    with pytest.raises(ValueError, match="another shape or recipe"):
        training.Run.start(config, False, "cpu").load(tmp_path / "c.pt")


def test_training_learns_what_repeats():
    rows = np.tile(random_rows(1), (40, 1))
    plan = dataclasses.replace(PLAN, tokens=40 * 64)
    run = training.Run.start(Config(SHAPE, plan), False, "cpu")
    losses = [at.loss for at in run.train(rows)]
    assert losses[0] == pytest.approx(math.log(SHAPE.n_vocab), rel=0.1)
    assert losses[-1] < losses[0] / 3


# settings and command line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[shape", "not TOML"),
        ("[form]", "unknown table"),
        ("[shape]\nn_layers = 3", "unknown; known are n_layer"),
        ("[shape]\nn_layer = 'x'", "give a int"),
        ("[shape]\nn_layer = 0", "give a number above 0"),
        ("[shape]\nn_head = 3", "multiple"),
        ("[plan]\nsequence = 1000", "must divide batch"),
        ("[plan]\ngrow_from = 99", "the model has 12 blocks"),
        ("[shape]\nn_layer = inf", "give a int"),
        ("[layerskip]\nexits = [12]", "give numbers from 1 to 11"),
        ("[layerskip]\nexits = ['2']", "give numbers from 1 to 11"),
        ("[layerskip]\nexits = [2.5]", "give numbers from 1 to 11"),
        ("[layerskip]\np_max = 1.0", "below 1"),
        ("[layerskip]\ncurriculum = 'x'", "allowed are rotational, gradual"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(tmp_path, text, message):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        settings.load(path)
    assert str(path) in str(error.value)


def test_the_shipped_settings_load():
    shape = settings.load(train.DEMO_CONFIG).shape
    assert all(size % 256 == 0 for size in (shape.n_embd, shape.n_ff))


@pytest.mark.slow
def test_the_command_trains_resumes_and_exports(tmp_path):
    from transformers import AutoTokenizer, LlamaForCausalLM

    words = "the cat sat on a mat and saw the dog who ran far from a red hat".split()
    rng = np.random.default_rng(7)
    text = "\n\n\n".join(" ".join(rng.choice(words, 60)) + "." for _ in range(400))
    (tmp_path / "text.txt").write_text(text)
    shape = "n_layer=3\nn_embd=32\nn_ff=32\nn_head=2\nn_head_kv=1\nn_vocab=300\ncontext=32\n"
    plan = "tokens=1024\nbatch=128\nsequence=32\n"
    (tmp_path / "c.toml").write_text(f"[shape]\n{shape}[plan]\n{plan}")
    arguments = [str(tmp_path / name) for name in ("c.toml", "text.txt", "out")]
    arguments += ["--eval", str(tmp_path / "text.txt"), "--device", "cpu", "-t", "1"]
    for _ in range(2):  # the second start finds a finished run
        result = CliRunner().invoke(train.main, arguments)
        assert result.exit_code == 0, result.output
    model = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.num_hidden_layers == 3
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("the cat sat").input_ids
    assert ids[0] == model.config.bos_token_id


def test_a_text_too_short_is_one_line(tmp_path):
    (tmp_path / "text.txt").write_text("too short")
    config = str(train.DEMO_CONFIG)
    arguments = [config, str(tmp_path / "text.txt"), str(tmp_path / "out")]
    result = CliRunner().invoke(train.main, arguments)
    assert result.exit_code == 1
    assert result.output.strip().splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in result.output


def test_without_the_extra_it_says_what_to_install(run_python):
    code = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['train.py', '--help']\n"
        f"runpy.run_path({train.__file__!r}, run_name='__main__')"
    )
    run = run_python(code)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr == "Error: training needs torch: pip install 'pyselfspec[convert]'\n"
