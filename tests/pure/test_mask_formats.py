"""Masks in the formats of others."""

import json

import pytest

from pyselfspec import LayerMask
from pyselfspec.errors import MaskError
from pyselfspec.masks import formats as mask_formats

MASK = LayerMask.skipping(6, attn=[1, 3], ffn=[3, 4])
SETS = {"llama-2-13b": {"attention": [1, 3], "mlp": [3, 4]}, "other": {"attention": [], "mlp": [2]}}


@pytest.mark.parametrize("form", mask_formats.FORMATS)
def test_every_format_reads_what_it_writes(form):
    assert mask_formats.read(mask_formats.write(MASK, form, "m"), 6) == MASK


@pytest.mark.parametrize(
    "text",
    [
        '{"attn": [1, 3], "mlp": [3, 4]}',
        '{"attention": [1, 3], "mlp": [3, 4]}',
        '{"llama-2-13b": {"attention": [1, 3], "mlp": [3, 4]}}',
        "0 1 0 3 2 0 -1",
        "0,1,0,3,2,0",
        "[0, 1, 0, 3, 2, 0, -1, 7, 7]\n",
        '{"format": 1, "mask": {"n_layer": 6, "skip_attn": [1, 3], "skip_ffn": [3, 4]}}',
    ],
)
def test_published_formats(text):
    assert mask_formats.read(text, 6) == MASK


def test_set_bits_mean_skip():
    assert mask_formats.write(MASK, "numbers", "") == "0 1 0 3 2 0 -1"


def test_one_of_several_sets():
    text = json.dumps(SETS)
    assert mask_formats.read(text, 6, "llama-2-13b") == MASK
    assert mask_formats.read(text, 6, "other").skip_ffn == {2}
    with pytest.raises(
        MaskError, match=r"entry=NAME \(--entry NAME\); the file has llama-2-13b, other"
    ):
        mask_formats.read(text, 6)
    with pytest.raises(MaskError, match="no set 'third'; the file has llama-2-13b, other"):
        mask_formats.read(text, 6, "third")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1 -1", "2 blocks, not for 6"),
        ("0 1 0 3 2 0 0", "7 blocks, not for 6"),
        ("0 1 0 4 2 0", "0 to 3 for each block, got 4"),
        ("[0, 1, true, 3, 2, 0]", "got true"),
        ('["0"]', 'got "0"'),
        ('{"attn": [6], "mlp": []}', "block 6, but the model has 6 blocks"),
        ('{"n_layer": 5, "skip_attn": [1]}', "5 blocks, not for 6"),
        ('{"m": {"attention": [40], "mlp": []}}', "block 40"),
        ('{"attn": 3}', "expected array, got int in skip_attn"),
        ('{"m": {"heads": [1]}}', "not 'heads'"),
        ("{}", "no mask"),
        ('"x"', "an object or a list"),
        ("hello", "neither JSON nor a list"),
        ("", "neither JSON nor a list"),
        ("[[[[", "neither JSON nor a list"),
    ],
)
def test_what_is_no_mask_for_the_model_is_refused(text, message):
    with pytest.raises(MaskError, match=message):
        mask_formats.read(text, 6)
