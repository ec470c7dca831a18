"""The bundled sample is long enough for a search."""

from pyselfspec.selection import chunks


def test_the_sample_is_enough_for_fifteen_chunks(demo):
    tokens = demo.tokenize(chunks.sample_text())
    assert len(chunks.cut(tokens, chunks.N_CHUNK, demo.start_token)) >= 15
