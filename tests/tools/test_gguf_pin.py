"""Lists in gguf/hparams.py that repeat what llama.cpp asserts are those of the pinned source, so
that a move to another version cannot make them refuse good files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import source
from pyselfspec.gguf import file, heads, hparams
from pyselfspec.gguf.header import tensor_types
from pyselfspec.gguf.heads import gemma4_assistant

ROOT = Path(__file__).parents[2]
ALL_ROTATED = re.compile(r"^\s*GGML_ASSERT\(n_embd_head == n_rot\);", re.MULTILINE)
CASES = re.compile(
    r"((?:\s*(?://[^\n]*\n\s*)*case LLM_ARCH_\w+:)+)(.*?)(?=\n\s*case |\Z)", re.DOTALL
)


@pytest.fixture(scope="module")
def tree() -> Path:
    """The pinned llama.cpp with its patches, which is fetched where it is not there yet."""
    return source.prepare(source.Project(ROOT)).path


def read(tree: Path, name: str) -> str:
    return (tree / name).read_text(encoding="utf-8")


def architectures(tree: Path) -> dict[str, str]:
    """Return the names of architectures in model files by their names in C++."""
    found = dict(re.findall(r'\{ (LLM_ARCH_\w+), +"([^"]+)"', read(tree, "src/llama-arch.cpp")))
    assert len(found) > 100
    return found


def model_sources(tree: Path) -> dict[str, str]:
    """Return the C++ sources of models by their file names, without signs between the words."""
    return {
        re.sub("[-_.]", "", path.stem): path.read_text(encoding="utf-8")
        for path in (tree / "src/models").glob("*.cpp")
    }


def model_source(tree: Path, architecture: str) -> str:
    return model_sources(tree)[re.sub("[-_.]", "", architecture)]


def sectioned(tree: Path) -> tuple[set[str], set[str]]:
    """Return the architectures that rotate in sections always, and those that may."""
    text = read(tree, "src/llama-model.cpp")
    start = text.index("llama_rope_type llama_model_rope_type(")
    body = text[start : text.index("\n}\n", start)]
    names, always, sometimes = architectures(tree), set(), set()
    for cases, code in CASES.findall(body):
        found = {names[case] for case in re.findall(r"case (LLM_ARCH_\w+):", cases)}
        if re.search(r"^\s*return LLAMA_ROPE_TYPE_I?MROPE;", code) and "if (" not in code:
            always |= found
        elif "MROPE" in code:
            sometimes |= found
    return always, sometimes


def test_every_architecture_is_one_of_llama_cpp(tree: Path) -> None:
    named = (
        hparams.FULL_ROTARY
        | hparams.PART_ROTARY
        | hparams.SECTIONED_ROTARY
        | hparams.MAY_BE_SECTIONED
        | hparams.ALWAYS_WINDOWED
        | hparams.HYBRID
        | hparams.ROTATED_INDEX
        | hparams.WINDOW_ROTARY
        | hparams.EXTRA_BLOCKS_ONLY
        | hparams.ARCHITECTURES_SHARING_BLOCKS
        | file.EMBEDDERS
    )
    assert named <= set(architectures(tree).values())


@pytest.mark.parametrize("architecture", sorted(hparams.FULL_ROTARY))
def test_whole_heads_are_rotated(tree: Path, architecture: str) -> None:
    assert ALL_ROTATED.search(model_source(tree, architecture))


@pytest.mark.parametrize("architecture", sorted(hparams.PART_ROTARY))
def test_a_part_of_a_head_may_be_rotated(tree: Path, architecture: str) -> None:
    text = model_source(tree, architecture)
    assert "ggml_rope_ext" in text and not ALL_ROTATED.search(text)


def test_sections_are_rotated(tree: Path) -> None:
    assert sectioned(tree) == (hparams.SECTIONED_ROTARY, hparams.MAY_BE_SECTIONED)


@pytest.mark.parametrize("architecture", sorted(hparams.ALWAYS_WINDOWED))
def test_the_window_is_always_read(tree: Path, architecture: str) -> None:
    text = model_source(tree, architecture)
    assert "build_attn_inp_kv_iswa()" in text and "build_attn_inp_kv()" not in text


def test_hybrid_models_have_recurrent_blocks(tree: Path) -> None:
    """Except for two: the states of minimax-01 have no tensors of their own, and deepseek4 has a
    memory without recurrent states."""
    text = read(tree, "src/llama-arch.cpp")
    start = text.index("bool llm_arch_is_hybrid(")
    cases = re.findall(r"case (LLM_ARCH_\w+):", text[start : text.index("\n}\n", start)])
    names = architectures(tree)
    assert {names[case] for case in cases} - hparams.HYBRID == {"deepseek4", "minimax-01"}
    assert hparams.HYBRID <= {names[case] for case in cases}


@pytest.mark.parametrize("architecture", sorted(hparams.ROTATED_INDEX))
def test_keys_of_an_index_are_rotated(tree: Path, architecture: str) -> None:
    text = read(tree, "src/llama-kv-cache.cpp")
    start = text.index("Hadamard rotation tensors for DeepSeek lightning indexers")
    condition = text[start : text.index("attn_rot_k = true;", start)]
    names = architectures(tree)
    assert architecture in {names[case] for case in re.findall(r"LLM_ARCH_\w+", condition)}
    assert f"int nrot = {hparams.INDEX_UNIT};" in text


def test_hyper_connections(tree: Path) -> None:
    text = model_source(tree, "deepseek4")
    assert f"GGML_ASSERT(hc == {hparams.N_STREAMS});" in text


def test_scaling_types(tree: Path) -> None:
    text = read(tree, "src/llama-model.cpp")
    table = text[text.index("LLAMA_ROPE_SCALING_TYPES = {") :]
    found = re.findall(r'\{ LLAMA_ROPE_SCALING_TYPE_\w+, +"(\w+)"', table[: table.index("};")])
    assert tuple(found) == hparams.ROPE_SCALING_TYPES


def test_limits(tree: Path) -> None:
    text = read(tree, "src/llama-hparams.h")
    found = [
        int(re.search(rf"#define {name} +(\d+)", text)[1])  # type: ignore[index]
        for name in ("LLAMA_MAX_LAYERS", "LLAMA_MAX_EXPERTS")
    ]
    assert found == [hparams.MAX_BLOCKS, hparams.MAX_EXPERTS]


def test_types_without_a_matrix_product(tree: Path) -> None:
    text = read(tree, "ggml/src/ggml-cpu/ggml-cpu.c")
    start = text.index("[GGML_TYPE_F32]", text.index("type_traits_cpu[GGML_TYPE_COUNT]"))
    table = text[start : text.index("\n};", start)]
    with_product = {
        name for name, entry in re.findall(r"\[GGML_TYPE_(\w+)\] = \{(.*?)\}", table, re.DOTALL)
        if ".vec_dot " in entry
    }  # fmt: skip
    assert {name.upper() for name, _, _ in tensor_types().values()} - with_product == (
        file.NOT_FOR_WEIGHTS
    )


def test_demands_on_heads_in_model_files(tree: Path) -> None:
    """All architectures with a graph for such heads are in the table, except for glm5-next, whose
    graph is not written yet."""
    sources = model_sources(tree)
    graphs = {
        name: source
        for name in architectures(tree).values()
        if "LLM_GRAPH_TYPE_DECODER_MTP" in (source := sources.get(re.sub("[-_.]", "", name), ""))
    }
    assert graphs.keys() - heads.OWN_HEADS.keys() == {"glm5-next"}
    assert not heads.OWN_HEADS.keys() - graphs.keys()
    for name, demands in heads.OWN_HEADS.items():
        asserted = [each for each in graphs[name].splitlines() if "GGML_ASSERT(" in each]
        one_block = any("n_layer_nextn == 1" in each for each in asserted)
        assert demands.n_most == one_block, name
        if any(re.search(r"ASSERT\(layer\.ffn_gate_inp\b", each) for each in asserted):
            assert "ffn_gate_inp" in demands.tensors, name


def test_architectures_that_need_another_model_are_heads(tree: Path) -> None:
    """All of them have a reader, so none is taken for a model that writes text."""
    names = architectures(tree)
    text = read(tree, "src/llama-context.cpp")
    start = text.index("cparams.ctx_other = nullptr;")
    part = text[start : text.index("cparams.rope_scaling_type == ", start)]
    assert {names[each] for each in re.findall(r"model\.arch == (LLM_ARCH_\w+)", part)} == {
        *heads.READERS
    }


def test_models_that_leave_states_for_assistants(tree: Path) -> None:
    sources = model_sources(tree)
    assert all("t_h_nextn" in sources[name] for name in gemma4_assistant.TARGETS)
    text = read(tree, "src/llama-model.cpp")
    shares = re.findall(r"if \(arch == (LLM_ARCH_\w+)\) \{\s+llama_memory_t mem_other", text)
    assert [architectures(tree)[each] for each in shares] == [gemma4_assistant.ARCHITECTURE]


@pytest.mark.parametrize("name", sorted(hparams.EXTRA_BLOCKS_ONLY))
def test_architectures_of_extra_blocks_only(tree: Path, name: str) -> None:
    source = model_sources(tree)[re.sub("[-_.]", "", name)]
    assert "il < n_layer_nextn" in source and "il < n_layer;" not in source
