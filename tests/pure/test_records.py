"""Records: what was saved is loaded, anything else is one clear sentence."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import needs
import pytest

from pyselfspec import LayerMask
from pyselfspec.errors import ArgumentError
from pyselfspec.masks import profiles
from pyselfspec.util import records

MINIMAL = {
    "mask": {"n_layer": 2, "skip_attn": [], "skip_ffn": []}, "inner": {"values": []}, "n": None,
    "rows": [],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inner:
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    n: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    FORMAT: ClassVar[int] = 3

    name: str
    mask: LayerMask
    inner: Inner = Inner()
    n: int | None = None
    rows: tuple[Row, ...] = ()

    def __post_init__(self):
        if self.n is not None and self.n < 0:
            raise ArgumentError(f"n is 0 or more, got {self.n}")


SAMPLE = Sample(
    "a", LayerMask.skipping(12, attn=[10, 2], ffn=[3]), Inner((0.5, 1.0)), 4, (Row(1), Row(2))
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sample.json"


def load(path):
    return records.load(path, Sample, what="sample", fix="make it again")


@needs.filelock
@pytest.mark.parametrize("record", [SAMPLE, replace(SAMPLE, n=None, inner=Inner())])
def test_what_was_saved_is_loaded(record, path):
    records.save(path, record)
    assert load(path) == record


@needs.filelock
def test_a_byte_order_mark_is_no_part_of_the_record(path):
    """Some editors put one first."""
    records.save(path, SAMPLE)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path) == SAMPLE


@needs.filelock
def test_files_begin_with_their_format_and_name_sets_in_order(path):
    records.save(path, SAMPLE)
    data = json.loads(path.read_text(encoding="utf-8"))
    assert next(iter(data.items())) == ("format", 3)
    assert data["mask"] == {"n_layer": 12, "skip_attn": [2, 10], "skip_ffn": [3]}
    assert data == json.loads(records.encode(SAMPLE))


GOOD = records.to_dict(SAMPLE)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"format": 4}, "its format is 4, this version reads 3"),
        ({"format": "3"}, "it has no format number"),
        ({"name": 5}, "expected str, got int in name"),
        ({"n": 1.0}, "expected int | null, got float in n"),
        ({"n": True}, "expected int | null, got bool in n"),
        ({"n": -1}, "n is 0 or more, got -1"),
        ({"more": 1}, "unknown field more"),
        ({"inner": {"value": 1}}, "unknown field inner.value"),
        ({"inner": {"values": ["x"]}}, "expected float, got str in inner.values[0]"),
        ({"rows": [{"n": 1}, {}]}, "missing field rows.n"),
        ({"inner": {}}, "missing field inner.values"),
        (
            {"mask": {"n_layer": 2, "skip_attn": [1, 0, 1], "skip_ffn": []}},
            "mask.skip_attn names 1 twice",
        ),
        ({"mask": {"n_layer": 2, "skip_attn": [2]}}, "block 2, but the model has 2 blocks"),
    ],
)
def test_another_record_is_refused_with_the_reason(data, why, path):
    path.write_text(json.dumps(GOOD | data))
    with pytest.raises(ArgumentError) as error:
        load(path)
    assert str(error.value).startswith(f"{path} is no sample (")
    assert why in str(error.value) and str(error.value).endswith("); make it again")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b"\0"])
def test_what_is_no_record_at_all_is_refused(text, path):
    path.write_bytes(text)
    with pytest.raises(ArgumentError, match="is no sample") as error:
        load(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_no_broken_one(path):
    with pytest.raises(FileNotFoundError):
        load(path)


@needs.filelock
def test_a_file_stays_when_it_cannot_be_replaced(path):
    records.save(path, SAMPLE)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        records.save(path, replace(SAMPLE, name=object()))
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_what_is_no_plain_file_is_not_waited_for(tmp_path):
    odd = [tmp_path]
    if hasattr(os, "mkfifo"):  # not on Windows
        os.mkfifo(tmp_path / "pipe.json")
        odd += [tmp_path / "pipe.json", Path("/dev/zero")]
    for path in odd:
        with pytest.raises(ArgumentError, match=r"is no profile \(no plain file\); remove it"):
            profiles.load(path)


def test_endless_files_are_refused(path, monkeypatch):
    monkeypatch.setattr(records, "MAX_BYTES", 1 << 20)
    path.write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(ArgumentError, match="more than 1 MiB"):
        profiles.load(path)
