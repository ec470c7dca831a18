"""The head that a model's own file brings, a block behind the others: found by itself where it is
known to work, and never in the way."""

import re
import warnings
from dataclasses import replace

import command_line
import numpy as np
import pytest
import tiny_nextn
from head_oracle import (
    COUNTED,
    GREEDY,
    LONG_PROMPT,
    OWN,
    PROMPT,
    drawn_steps,
    require_all,
    require_same_pass,
    require_side_by_side,
    steps,
    text_in,
    tokens_of,
)
from nextn_oracle import OwnHead, opened_models, oracle_of
from tiny_nextn import (
    DEEPSEEK2,
    DEEPSEEK4,
    DEEPSEEK32,
    GLM4MOE,
    GLM_DSA,
    HY_V3,
    HYBRID_KINDS,
    KINDS,
    MIMO2,
    N_EMBD,
    N_LAYER,
    STEP35,
)

from pyselfspec import Completion, Fixed, Model, generate_batch
from pyselfspec.errors import ArgumentError, ModelFileError, SelfSpecWarning, UnsupportedError
from pyselfspec.gguf import file as gguf_file
from pyselfspec.gguf import heads
from pyselfspec.masks import profiles
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.runtime.sampling import SamplingParams
from pyselfspec.speculate import drafters
from pyselfspec.speculate.batching import run_steps
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.drafters import head
from pyselfspec.speculate.resolve import resolve

WARM = SamplingParams(temperature=0.7, seed=7)
each_kind = pytest.mark.parametrize("kind", (*KINDS, *HYBRID_KINDS), ids=lambda kind: kind.name)


each_hybrid = pytest.mark.parametrize("kind", HYBRID_KINDS, ids=lambda kind: kind.name)
each_with_snapshots = pytest.mark.parametrize(
    "kind", (*HYBRID_KINDS, DEEPSEEK4), ids=lambda kind: kind.name
)
NEARLY = 6.0  # a gain of the sublayers with which a counting model often does not count


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nextn")


@pytest.fixture(scope="module")
def model_of(folder):
    """Loaded models by kind, with random weights."""
    with opened_models(folder) as model:
        yield model


@pytest.fixture
def model(model_of):
    return model_of(GLM4MOE)


@pytest.fixture
def weights():
    return tiny_nextn.weights()


@pytest.fixture
def oracle(new_context, model, weights):
    return OwnHead(new_context(model, n_batch=256), weights, GLM4MOE)


@each_kind
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_drafts_are_those_of_the_block_behind_the_others(new_context, model_of, kind, sampling):
    model = model_of(kind)
    found = steps(new_context(model), OWN, sampling=sampling, n_predict=40)
    oracle = oracle_of(new_context(model, n_batch=256), tiny_nextn.weights(kind), kind)
    require_all(oracle, PROMPT, found)
    plain = steps(new_context(model), None, sampling=sampling, n_predict=40)
    assert tokens_of(found) == tokens_of(plain)


@each_kind
def test_drawn_tokens_are_drawn_from_what_the_block_computes(new_context, model_of, kind):
    model = model_of(kind)
    found = drawn_steps(new_context(model), OWN)
    assert all(each.distribution is not None for step in found for each in step.draft.tokens)
    oracle = oracle_of(new_context(model, n_batch=256), tiny_nextn.weights(kind), kind)
    require_all(oracle, PROMPT, found)


@each_kind
def test_a_head_that_knows_is_always_right(new_context, folder, kind):
    """It draws on the state that it is handed alone, so that of any other token makes it wrong."""
    path = tiny_nextn.write(folder / "counting.gguf", tiny_nextn.counting_weights(kind), kind)
    with Model(path) as model:
        found = steps(new_context(model), OWN, [*COUNTED], n_predict=40)
        assert tokens_of(found) == [*range(COUNTED.stop, COUNTED.stop + 40)]
        n_drafted = sum(len(step.draft.tokens) for step in found)
        assert n_drafted == len(tokens_of(found)) - len(found) >= 26  # of small states few are kept
        warm = steps(new_context(model), OWN, [*COUNTED], sampling=WARM, n_predict=40)
        plain = steps(new_context(model), None, [*COUNTED], sampling=WARM, n_predict=40)
        assert tokens_of(warm) == tokens_of(plain)


@pytest.mark.sanitized
@each_with_snapshots
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_rejected_tokens_leave_the_states_of_hybrid_models(new_context, folder, kind, sampling):
    """The head counts on where the model, whose recurrent states have a say, does not, so that a
    part of its tokens is rejected."""
    path = folder / "nearly.gguf"
    gain = 4.0 if kind.has_streams else NEARLY  # there, a sublayer adds to every stream
    tiny_nextn.write(path, tiny_nextn.counting_weights(kind, gain), kind)
    with Model(path) as model:
        prompts = [[*COUNTED], [*COUNTED, 70, 71, 20, 21]]
        plain = [
            written(new_context(model, n_seq_max=2), [prompt], None, sampling)[0]
            for prompt in prompts
        ]
        for draft in ("head", "ngram+head"):
            for n in (1, 2):
                context = new_context(model, n_seq_max=2)
                texts = written(context, prompts[:n], draft, sampling)
                assert [text.tokens for text in texts] == [text.tokens for text in plain[:n]]
                n_drafted = sum(text.stats.n_drafted for text in texts)
                n_accepted = sum(text.stats.n_accepted for text in texts)
                assert 0.1 * n_drafted < n_accepted < 0.8 * n_drafted


def written(context, prompts, draft, sampling):
    """Texts that were generated side by side."""
    texts = [
        Completion(
            context,
            prompt,
            n_predict=40,
            sampling=sampling,
            draft=draft,
            controller=Fixed(3, p_min=0),
            seq=context.sequence(i),
        )
        for i, prompt in enumerate(prompts)
    ]
    for _ in generate_batch(texts):
        pass
    return texts


@each_with_snapshots
def test_the_heads_of_hybrid_models_are_found_by_themselves(new_context, model_of, kind):
    context = new_context(model_of(kind))
    assert not context.abilities.can_rollback and context.abilities.max_rollback
    assert resolve(context, DraftConfig()).name == "ngram+head"


@pytest.mark.sanitized
def test_turns_and_long_prompts_are_followed(new_context, model, oracle):
    context = new_context(model, n_batch=24)
    found = steps(context, OWN, LONG_PROMPT)
    require_all(oracle, LONG_PROMPT, found)
    first = [*LONG_PROMPT, *tokens_of(found)]
    for turn in ([*first, 299, 283], [*first[:-15], 282, 285, 300]):
        text = text_in(context, OWN, turn)
        require_all(oracle, turn, list(run_steps(context, text)))
        assert len(first) - 17 <= text.n_reused <= len(first) - 1


@pytest.mark.sanitized
def test_texts_side_by_side_have_their_own_drafts(new_context, model, oracle):
    require_side_by_side(new_context, model, OWN, oracle)


@each_kind
def test_states_for_it_do_not_change_a_pass(new_context, model_of, kind):
    has_one = kind.is_nemotron or kind.has_streams  # whose other states are not copied
    several = N_LAYER + 1 if has_one else (1, N_LAYER + 1)
    require_same_pass(new_context, model_of(kind), N_LAYER + 1, several, N_EMBD)


def test_it_is_found_by_itself(new_context, model):
    context = new_context(model)
    assert drafters.suggested(context, None)["head"] == head.Options()
    text = Completion(context, PROMPT, sampling=GREEDY, n_predict=24)
    list(text)
    assert text.tokens == tokens_of(steps(new_context(model), None))


@pytest.mark.sanitized
def test_a_large_vocabulary_is_shortened_where_the_context_can(new_context, model, monkeypatch):
    """The head reads the whole output layer for each draft token, which is most of its cost."""
    context = new_context(model)
    assert context.can_shorten
    assert head.suggested(context, None) == head.Options()
    monkeypatch.setattr(head, "SHORTLIST", model.n_vocab // 3)
    assert head.suggested(context, None) == head.Options(shortlist=model.n_vocab // 3)
    text = Completion(context, PROMPT, sampling=GREEDY, n_predict=24)
    list(text)
    assert text.tokens == tokens_of(steps(new_context(model), None))
    monkeypatch.setattr(type(context), "can_shorten", False)
    assert head.suggested(new_context(model), None) == head.Options()


def test_info_names_it_and_its_cost(model):
    shown = command_line.run("models", "info", model.path).stdout
    share = round(100 * model.own_head.n_bytes_read / model.file.weight_bytes())
    assert f"and the draft head of this file (head): a draft token reads {share}% of" in shown
    assert 40 < share < 100  # a block of four, and the output layer


def test_a_mask_that_is_asked_for_goes_first(new_context, model, monkeypatch):
    """Only one drafter can need passes; a mask that is merely known gives way to the head."""
    context, mask = new_context(model), LayerMask(N_LAYER, {1}, {1})
    assert resolve(context, DraftConfig()).name == "ngram+head"
    assert resolve(context, DraftConfig(mask=mask)).name == "ngram+layer-skip"
    monkeypatch.setattr(profiles, "mask_for", lambda _model: mask)
    assert resolve(new_context(model), DraftConfig()).name == "ngram+head"


@pytest.mark.parametrize("case", ["without the block", "none announced"])
def test_a_model_without_a_head_has_none(new_context, weights, folder, case):
    tensors = {n: w for n, w in weights.items() if not n.startswith(f"blk.{N_LAYER}.")}
    path = folder / f"{case}.gguf"
    tiny_nextn.write(path, tensors, n_nextn=0 if case == "none announced" else 1)
    with Model(path) as model:
        require_no_head(new_context, model, "this model has no draft head; give one: ")


def require_no_head(new_context, model, why):
    """Text goes on without the head, and an error says why there is none."""
    assert model.own_head is None
    context = new_context(model)
    assert "head" not in drafters.suggested(context, None)
    with pytest.raises(ArgumentError, match=re.escape(why)):
        head.make(context, head.Options())
    with pytest.raises(ArgumentError, match=f"hidden_at is 1 to {N_LAYER}, got {N_LAYER + 1}"):
        context.run(Rows.of(0, 0, PROMPT), Pass(leave=N_LAYER + 1))
    assert tokens_of(steps(context, None))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (replace(GLM4MOE, n_nextn=2), "its draft head has 2 blocks, and llama.cpp runs those of"),
        (replace(DEEPSEEK2, n_nextn=2), "its draft head has 2 blocks, and llama.cpp runs those of"),
        (replace(GLM4MOE, arch="exaone-moe"), "architecture exaone-moe are not supported"),
        (
            replace(GLM4MOE, arch="glm5-next", mixer="kda"),
            "architecture glm5-next are not",
        ),
    ],
    ids=lambda each: each.name if isinstance(each, tiny_nextn.Kind) else "",
)
def test_heads_that_cannot_run_are_refused_by_name(folder, kind, why):
    path = tiny_nextn.write(folder / "refused.gguf", tiny_nextn.weights(kind), kind)
    with pytest.raises(UnsupportedError, match=why):
        heads.own(gguf_file.check(path))


def test_a_head_that_cannot_run_is_not_in_the_way(new_context, folder):
    kind = replace(GLM4MOE, n_nextn=2)
    path = tiny_nextn.write(folder / "two.gguf", tiny_nextn.weights(kind), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Model(path)
    with model:
        require_no_head(new_context, model, "cannot be used: its draft head has 2 blocks")
    shown = command_line.run("models", "info", path).stdout
    assert "not the draft head of this file: its draft head has 2 blocks" in shown


@pytest.mark.parametrize(("kind", "name"), [(GLM4MOE, "nextn.eh_proj"), (MIMO2, "attn_qkv")])
def test_a_broken_head_is_left_out_with_one_warning(new_context, folder, kind, name):
    name = f"blk.{N_LAYER}.{name}.weight"
    tensors = {each: w for each, w in tiny_nextn.weights(kind).items() if each != name}
    path = tiny_nextn.write(folder / "broken.gguf", tensors, kind)
    with pytest.warns(SelfSpecWarning) as heard:
        model = Model(path)
    with model:
        why = f"its draft head lacks {name}"
        assert [str(each.message) for each in heard] == [
            f"{path}: {why}; text is generated without it"
        ]
        require_no_head(
            new_context, model, f"the draft head in broken.gguf cannot be used: {why}; give another"
        )


# Without these, llama.cpp refuses the whole file, head or not.
BROKEN_MODELS = {
    "no experts": (GLM4MOE, "ffn_gate_inp", None),
    "no latent": (DEEPSEEK2, "attn_k_b", None),
    "no norm": (STEP35, "nextn.enorm", None),
    "short projection": (GLM4MOE, "nextn.eh_proj", (64, 64)),
    "long norm": (DEEPSEEK2, "nextn.hnorm", (128,)),
    "small expert": (MIMO2, "ffn_up", (64, 64)),
    "few tokens": (GLM4MOE.with_own(*tiny_nextn.ALL), "nextn.shared_head_head", (16, 64)),
    "other projection": (HY_V3, "nextn.eh_proj", (64, 64)),
}


@pytest.mark.parametrize("case", BROKEN_MODELS)
def test_a_head_that_llama_cpp_cannot_load_is_one_line(folder, case):
    kind, name, shape = BROKEN_MODELS[case]
    tensors, name = tiny_nextn.weights(kind), f"blk.{N_LAYER}.{name}.weight"
    del tensors[name]
    if shape:
        tensors[name] = np.ones(shape, np.float32)
    path = tiny_nextn.write(folder / "broken.gguf", tensors, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ModelFileError, match=re.escape(name)) as refused:
            Model(path)
    assert str(refused.value).startswith(f"{path}: llama.cpp cannot load this model: ")
    assert "\n" not in str(refused.value)


@each_kind
def test_a_head_without_its_model_is_named(folder, model_of, new_context, kind):
    """Converters can write the blocks after the others to a file of their own."""
    own = f"blk.{N_LAYER}."
    tensors = {
        name: w
        for name, w in tiny_nextn.weights(kind).items()
        if name.startswith(own) or not name.startswith("blk.")
    }
    path = tiny_nextn.write(folder / "head only.gguf", tensors, replace(kind, n_nextn=1))
    why = f"{path}: holds a draft head only, block {N_LAYER} of a {kind.arch} model, which cannot"
    with pytest.raises(ModelFileError, match=re.escape(why)):
        Model(path)
    with pytest.raises(ModelFileError, match=re.escape(why)):
        head.make(new_context(model_of(kind)), head.Options(path))


def test_a_cut_file_is_refused(folder, weights):
    """The block of the head is the last part of the file."""
    path = tiny_nextn.write(folder / "cut.gguf", weights)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)
    with pytest.raises(ModelFileError, match=r"cut.gguf: .*\S$"):
        Model(path)


@each_hybrid
def test_a_hybrid_model_without_recurrent_blocks_is_refused(folder, kind):
    """llama.cpp would end the process in the first pass."""
    kind = replace(kind, mixer="")
    path = tiny_nextn.write(folder / "none.gguf", tiny_nextn.weights(kind), kind)
    why = f"{path}: none of its {N_LAYER} blocks is recurrent, but {kind.arch} needs one; "
    with pytest.raises(ModelFileError, match=re.escape(why)):
        Model(path)


@pytest.mark.parametrize("kind", [DEEPSEEK32, GLM_DSA], ids=lambda kind: kind.name)
@pytest.mark.parametrize("n_index", [0, 32, 96])
def test_keys_of_an_index_that_cannot_be_rotated_are_refused(folder, kind, n_index):
    """llama.cpp would end the process in the first pass."""
    path = tiny_nextn.write(folder / "index.gguf", tiny_nextn.weights(kind), kind, n_index=n_index)
    why = f"indexer.key_length is {n_index}, not a multiple of 64; "
    with pytest.raises(ModelFileError, match=re.escape(why)):
        Model(path)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("hash_layer_count", N_LAYER + 1, "a draft head whose experts are chosen by hash"),
        ("attention.compress_ratios", [0, 4, 128, 4], "a draft head with compressed K/V"),
    ],
)
def test_heads_of_deepseek4_that_would_end_the_process_are_refused(folder, name, value, why):
    path = folder / "refused.gguf"
    tiny_nextn.write(path, tiny_nextn.weights(DEEPSEEK4), DEEPSEEK4, metadata={name: value})
    with pytest.raises(UnsupportedError, match=why):
        heads.own(gguf_file.check(path))


def test_another_number_of_hyper_connections_is_refused(folder):
    """llama.cpp would end the process in the first pass."""
    path = folder / "streams.gguf"
    metadata = {"hyper_connection.count": 2}
    tiny_nextn.write(path, tiny_nextn.weights(DEEPSEEK4), DEEPSEEK4, metadata=metadata)
    with pytest.raises(ModelFileError, match=r"hyper_connection.count is 2, not 4; "):
        Model(path)


def test_a_projection_of_a_type_without_a_product_is_refused(folder, weights):
    name = f"blk.{N_LAYER}.nextn.eh_proj.weight"
    tensors = weights | {name: np.ones(weights[name].shape, np.int8)}
    path = tiny_nextn.write(folder / "int8.gguf", tensors)
    with pytest.raises(
        ModelFileError, match=r"eh_proj.weight' of its draft head is I8, which is no"
    ):
        heads.own(gguf_file.check(path))
    with pytest.warns(SelfSpecWarning, match="of its draft head is I8"), Model(path) as model:
        assert model.own_head is None
