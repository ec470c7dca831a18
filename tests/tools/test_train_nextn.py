"""The training of models with draft heads in their files: what it learns, and what it writes."""

# ruff: noqa: E402 - the imports below need what may not be installed

import numpy as np
import pytest
from click.testing import CliRunner
from nextn_oracle import normed

torch = pytest.importorskip("torch")
pytest.importorskip("sentencepiece")

from pyselfspec import GREEDY, Completion, Fixed, Model
from pyselfspec.convert.stream import read_model
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.passes import Rows
from pyselfspec.util.paths import DEMO
from tools.nextn import files, train
from tools.nextn.network import Network, Shape
from tools.nextn.training import Plan, Training, acceptance

pytestmark = pytest.mark.nightly

N_VOCAB = 4096  # of the demo
SHAPE = Shape(2, 64, 96, 2, 1, N_VOCAB, 128, n_nextn=2)
PLAN = Plan(minutes=10, n_steps=30, n_lines=4, rate=0.02, rate_other=0.01)
TEXT = "Once upon a time there was a king who had three daughters."


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stirred(shape=SHAPE, seed=5):
    """A network whose blocks do something: they start as the identity."""
    network = Network(shape, seed)
    for values in network.parameters():
        values.data += 0.1 * torch.randn_like(values)
    return network


def rows_that_repeat(seed=3):
    line = np.random.default_rng(seed).integers(3, 40, 33)
    return np.tile(line, (16, 1)).astype(np.uint16)


def test_training_lowers_all_losses():
    training = Training(Network(SHAPE, 1), PLAN)
    found = list(training.run(rows_that_repeat(), lambda _: None))
    assert len(found) == PLAN.n_steps
    for loss in (lambda each: each.model, lambda each: each.heads[0], lambda each: each.heads[1]):
        assert float(loss(found[-1])) < 0.5 * float(loss(found[0]))


def test_acceptance_is_counted_where_the_text_is_the_models():
    """A network whose heads hand on the state, with one token that follows all others."""
    network = Network(SHAPE, 1)
    with torch.no_grad():
        network.output.weight.zero_()
        network.output_norm.weight.zero_()  # all logits are equal, so the first token is the best
    lines = torch.zeros((2, 9), dtype=torch.int64)
    assert acceptance(network, lines) == (1.0, 1.0)
    assert acceptance(network, lines + 7) == (0.0, 0.0)  # the text is not what the model writes


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    network = stirred()
    path = tmp_path_factory.mktemp("nextn") / "nextn.gguf"
    files.write(path, network, read_model(DEMO), "f32")
    with Model(path) as model:
        yield network, model


def near(found, want):
    """K and V of the file's model are F16."""
    return np.abs(found - want).max() < 0.02 * np.abs(want).max()


def test_the_file_gives_the_networks_logits(written, new_context):
    network, model = written
    ids = model.tokenize(TEXT)
    with torch.no_grad():
        states = network.states(torch.tensor([ids]))
        want = network.logits(states)[0].numpy()
    context = new_context(model, n_ctx=128)
    assert near(context.decode(ids).logits, want)


def test_the_heads_of_the_file_leave_the_networks_states(written, new_context):
    """Rows of a head may begin at position 0; the row without a state before them is the
    drafter's."""
    network, model = written
    ids = model.tokenize(TEXT)
    with torch.no_grad():
        states = network.states(torch.tensor([ids]))
        given = [states, *network.drafted(torch.tensor([ids]), states)]
    head = DraftHead(new_context(model, n_ctx=128), None)
    for k in range(SHAPE.n_nextn):
        n = len(ids) - k - 1
        rows = Rows.of(k, 0, ids[k + 1 :])
        left = head.decode(rows, given[k][0, :n].numpy(), block=k)
        assert near(left, given[k + 1][0].numpy())
        with torch.no_grad():
            want = network.logits(given[k + 1])[0].numpy()
        weight = network.output_norm.weight.detach().numpy()
        logits = (normed(left) * weight) @ network.output.weight.detach().numpy().T
        assert [head.argmax(i)[0] for i in range(n)] == list(logits.argmax(1))
        assert (logits.argmax(1) == want.argmax(1)).mean() > 0.9
        head.sequence(k).rollback(0)


def test_the_first_blocks_of_the_demo_are_the_networks(new_context, demo_path):
    source = read_model(demo_path)
    network = Network(files.shape_of(source, 12, 1))
    files.copy_weights(network, source)
    with Model(demo_path) as demo:
        ids = demo.tokenize(TEXT)
        want = new_context(demo, n_ctx=128).decode(ids).logits
        with torch.no_grad():
            states = network.states(torch.tensor([ids]))
            found = network.logits(states)[0].numpy()
            (handed_on,) = network.drafted(torch.tensor([ids]), states)
    assert np.abs(found - want).max() < 0.1 * np.abs(want).max()  # products are rounded there
    assert (found.argmax(1) == want.argmax(1)).mean() > 0.8
    normed_on = handed_on / handed_on.square().mean(-1, keepdim=True).sqrt()
    wanted_on = states / states.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(normed_on, wanted_on[:, :-1], rtol=1e-3, atol=1e-3)


def test_the_command_trains_and_writes_both_files(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n\n".join([TEXT * 60] * 20))
    out, first = tmp_path / "two.gguf", tmp_path / "one.gguf"
    arguments = [tmp_path / "text.txt", out, "--first", first, "--heads", 2, "--blocks", 1]
    arguments += ["--steps", 1, "-t", 1]
    outcome = CliRunner().invoke(train.main, [str(each) for each in arguments])
    assert outcome.exit_code == 0, outcome.output
    assert "1 steps; acceptance by draft position on other text: " in outcome.stderr
    for path, n in ((out, 2), (first, 1)):
        with Model(path) as model, model.context(n_ctx=128) as context:
            assert model.own_head.kind.n_chained == n
            texts = [
                Completion(
                    context, TEXT, n_predict=16, sampling=GREEDY, draft=draft, controller=Fixed(3)
                )
                for draft in (None, "head")
            ]
            tokens = []
            for text in texts:
                context.sequence().drop()
                list(text)
                tokens.append(text.tokens)
            assert tokens[0] == tokens[1]


def test_a_text_that_is_too_short_is_one_line(tmp_path):
    (tmp_path / "text.txt").write_text("too short")
    arguments = [str(tmp_path / "text.txt"), str(tmp_path / "out.gguf")]
    outcome = CliRunner().invoke(train.main, arguments)
    assert outcome.exit_code == 1 and "tokens of text: training needs" in outcome.stderr
    assert not (tmp_path / "out.gguf").exists()
