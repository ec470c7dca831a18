"""Fingerprints tell models apart."""

from types import SimpleNamespace

from pyselfspec.gguf import fingerprint
from pyselfspec.gguf.file import check


def test_equal_models_have_equal_names_and_others_have_others(tiny_path, tmp_path):
    files = [tiny_path(), tiny_path(seed=1), tiny_path(zero_attn=(2,)), tiny_path(qtype="Q8_0")]
    names = [fingerprint.of_model(check(path)) for path in files]
    assert len(set(names)) == 4 and all(len(name) == 64 for name in names)
    copy = tmp_path / "renamed.gguf"
    copy.write_bytes(files[0].read_bytes())
    assert fingerprint.of_model(check(copy)) == names[0]


def test_large_files_are_sampled_throughout(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "WHOLE", 2**20)
    path = tmp_path / "large"
    data = bytearray(5 * 2**20 + 100)
    file = SimpleNamespace(path=path, n_bytes=len(data), n_params=1)
    names = set()
    for offset in (None, 0, 3 * 2**20 + 17, 5 * 2**20 + 50):
        if offset is not None:
            data[offset] ^= 1
        path.write_bytes(data)
        names.add(fingerprint.of_model(file))
    assert len(names) == 4
