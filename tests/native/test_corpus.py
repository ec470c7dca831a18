"""Copies from the files of a folder. The oracle of a look-up is a search through all places."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest
from serving import running

from pyselfspec import GREEDY, Completion, Fixed, Model
from pyselfspec.costs.chances import LENGTHS, N_SURENESS, Chances
from pyselfspec.serve.settings import Capacity
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.drafters import ngram
from pyselfspec.speculate.drafters.ngram.corpus import FIRST, Corpus, list_files
from pyselfspec.speculate.drafters.ngram.index import BETWEEN, NgramIndex


@pytest.mark.parametrize("seed", range(20))
def test_the_latest_matches_of_the_longest_length(seed: int) -> None:
    """Matches at the end of a file count, although nothing follows them."""
    rng = random.Random(seed)
    tokens = [rng.choice((0, 1, 2, 0, 1, 2, BETWEEN)) for _ in range(400)]
    index = NgramIndex(len(tokens), FIRST)
    index.extend(tokens)
    chances = Chances(counts=tuple(((i, 10.0),) * N_SURENESS for i in range(len(LENGTHS))))
    for _ in range(200):
        context = [rng.randrange(3) for _ in range(rng.randint(1, 14))]
        found, probs = index.chain(context, 0, 1, chances=chances)
        want: list[int] = []
        for n in LENGTHS[:FIRST:-1] + LENGTHS[FIRST : FIRST + 1]:
            ends = [e for e in range(n, len(tokens)) if tokens[e - n : e] == context[-n:]]
            latest = [tokens[e] for e in ends[::-1]][:8] if len(context) >= n else []
            want = [token for token in latest if token != BETWEEN]
            if want:
                assert probs == [LENGTHS.index(n) / 10]
                break
        assert found == [token for token, _ in Counter(want).most_common(1)]


def test_git_says_what_is_left_out(tmp_path: Path) -> None:
    for name in ("a.py", "b.log", "sub/c.py", "sub/secret.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / ".gitignore").write_text("*.log\nsecret.py\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    names = {str(path.relative_to(tmp_path)) for path in list_files(tmp_path)}
    assert names == {".gitignore", "a.py", "sub/c.py"}


def test_changed_files_are_read_again(tmp_path: Path, demo: Model) -> None:
    path = tmp_path / "tale.txt"
    path.write_text("The king went home.")
    (tmp_path / "picture").write_bytes(b"\0" * 100)
    corpus = Corpus(tmp_path, demo)
    n = corpus.n_tokens
    corpus.refresh()
    assert corpus.n_tokens == n
    path.write_text("The king went home and the queen went home and all went home.")
    os.utime(path, ns=(1, 10**18))
    corpus.refresh()
    assert corpus.n_tokens > n
    path.unlink()
    corpus.refresh()
    assert corpus.n_tokens <= 2
    corpus.close()


def test_a_text_that_stands_in_a_file_is_copied(tmp_path: Path, demo: Model) -> None:
    """Its greedy text is written to a file first; the text stays the same."""

    def write(options: ngram.Options) -> Completion:
        with demo.context(n_ctx=512, n_threads=1) as context:
            made = Completion(
                context,
                "Once upon a time",
                "ngram",
                n_predict=60,
                sampling=GREEDY,
                options=options,
                controller=Fixed(),  # here a pass takes less time than a look-up
            )
            list(made)
        return made

    plain = write(ngram.Options(session=False))
    (tmp_path / "tale.txt").write_text("Once upon a time" + plain.text)
    drafted = write(ngram.Options(session=False, corpus=tmp_path))
    assert drafted.tokens == plain.tokens
    assert drafted.stats.n_accepted > plain.stats.n_accepted + 5


def test_requests_stay_within_the_servers_folder(tmp_path: Path, demo: Model) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    (tmp_path / "out").mkdir()
    options = ngram.Options(corpus=tmp_path / "in")
    drafting = DraftConfig("ngram", options=(options,))
    capacity = Capacity(n_ctx=256, n_slots=1)

    def status(served: object, corpus: str) -> int:
        body = {"prompt": "Once", "max_tokens": 2, "pyselfspec": {"corpus": corpus}}
        return served.post("/v1/completions", body).status_code  # type: ignore[attr-defined]

    with running(demo, capacity=capacity, drafting=drafting) as served:
        for inside in (".", "sub", str(tmp_path / "in" / "sub")):
            assert status(served, inside) == 200
        for outside in ("..", "../out", "/", "link", "nothing", str(tmp_path), "a\0b"):
            assert status(served, outside) == 400
    with running(demo, capacity=capacity) as served:
        assert status(served, ".") == 400


def test_a_corpus_of_a_request_is_read_outside_the_engine(
    tmp_path: Path, demo: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that chooses drafters keeps the server's corpus."""
    (tmp_path / "sub").mkdir()
    read, used = [], []

    class Spied(Corpus):
        def __init__(self, folder: Path, model: Model) -> None:
            read.append((folder, threading.current_thread().name))
            super().__init__(folder, model)

        def refresh_soon(self) -> None:
            used.append(self._folder)

    monkeypatch.setattr(ngram, "Corpus", Spied)
    drafting = DraftConfig("ngram", options=(ngram.Options(corpus=tmp_path),))
    with running(demo, capacity=Capacity(n_ctx=256, n_slots=1), drafting=drafting) as served:
        for fields in (
            {},
            {"draft": "auto"},
            {"draft": "layer-skip+ngram"},
            {"draft": "layer-skip+ngram", "mask": {"exit_layer": 1}},
            {"draft": "layer-skip"},
            {"draft": "ngram", "corpus": "sub"},
        ):
            body = {"prompt": "Once", "max_tokens": 2, "pyselfspec": fields}
            assert served.post("/v1/completions", body).status_code == 200
    assert used == [tmp_path] * 4 + [tmp_path / "sub"]
    assert [folder for folder, _ in read] == [tmp_path, tmp_path / "sub"]
    assert all("engine" not in thread for _, thread in read)


def test_the_least_recently_used_corpora_are_given_up(tmp_path: Path, demo: Model) -> None:
    with demo.context(n_ctx=256) as context:
        folders = [tmp_path / str(i) for i in range(6)]
        for folder in folders:
            folder.mkdir()
        first = ngram.open_corpus(context, folders[0])
        others = [ngram.open_corpus(context, folder) for folder in folders[1:4]]
        assert ngram.open_corpus(context, folders[0]) is first
        ngram.open_corpus(context, folders[4])
        assert ngram.open_corpus(context, folders[0]) is first
        assert ngram.open_corpus(context, folders[1]) is not others[0]
