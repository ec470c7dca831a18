"""Trains a draft head for a model of the llama architecture on a CUDA device, in minutes.

    python tools/models/train_head.py texts MODEL PROMPTS     # where pyselfspec is installed
    python tools/models/train_head.py train MODEL PROMPTS HEAD.pt --minutes 7
    python tools/models/train_head.py write MODEL HEAD.pt HEAD.gguf

``pyselfspec tune`` has the model's texts written by llama.cpp, 16 at a time, and keeps their
hidden states in files. Here torch computes the model with its dequantized weights: thousands of
texts are written at once, and states are computed again when a batch needs them. Half of the
requests are the bundled ones. The others the model writes itself, after the beginning of a user's
message, as in Xu et al., "Magpie", https://arxiv.org/abs/2406.08464.
"""

from __future__ import annotations

import datetime
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))

from pyselfspec import Model, __version__
from pyselfspec.gguf.heads import N_BLOCKS_READ
from pyselfspec.templates.template import ChatTemplate
from pyselfspec.tune.config import TrainingOptions
from pyselfspec.tune.export import Card, write_head
from pyselfspec.tune.prompts import bundled_prompts
from pyselfspec.tune.run import default_blocks
from pyselfspec.tune.shards import N_BEST, Batch
from pyselfspec.tune.train import Trainer
from pyselfspec.tune.weights import BaseModelWeights
from tools.models.torch_llama import TorchLlama

N_PROMPTS = 60_000
N_HELD_OUT = 256
N_PROMPT = 320  # most tokens of a prompt
N_ANSWER = 320  # most tokens of an answer
N_REQUEST = 64  # most tokens of a request that the model writes
TEMPERATURE = 0.7  # of two thirds of the answers; the others are greedy
REQUEST_TEMPERATURE = 0.9
N_ROWS = 640  # of a line of a batch; a text is in one line
DECAY_FROM = 0.5  # share of the training after which step sizes fall, down to zero
RATES = (0.008, 1e-3)  # as rate and rate_other of TrainingOptions: batches are larger than tune's
BEGINNING = "beginning"


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens of a prompt and of the model's answer, int32."""

    tokens: NDArray[np.int32]
    n_prompt: int


#
# texts
#


def write_prompts(model: Model, path: Path) -> None:
    """Write the tokens of bundled prompts, of held-out ones, and of what surrounds a user's message
    in the model's chat template."""
    source = bundled_prompts()
    arrays: dict[str, Any] = {}
    for name, held_out, n in (("prompts", False, N_PROMPTS), ("held_out", True, N_HELD_OUT)):
        drawn = (p for p in source.tokens(model, 1, held_out=held_out) if len(p) <= N_PROMPT)
        texts = list(itertools.islice(drawn, n))
        arrays[name] = np.array([token for text in texts for token in text], np.int32)
        arrays[f"{name}_lengths"] = np.array([len(text) for text in texts], np.int32)
    template = ChatTemplate.of(model)
    one, other = (list(template.tokens([{"role": "user", "content": text}])) for text in "XY")
    same = [a == b for a, b in zip(one, other, strict=True)]
    at = same.index(False)
    arrays[BEGINNING], arrays["end"] = np.array(one[:at]), np.array(one[at + 1 :])
    np.savez_compressed(path, **arrays)


def split(tokens: NDArray[np.int32], lengths: NDArray[np.int32]) -> list[list[int]]:
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


class Writer:
    """Has the model answer prompts."""

    def __init__(self, model: TorchLlama, prompts: Any, n_texts: int, seed: int = 1) -> None:
        self._model, self._n_texts = model, n_texts
        self._bundled = split(prompts["prompts"], prompts["prompts_lengths"])
        self._held_out = split(prompts["held_out"], prompts["held_out_lengths"])
        self._beginning, self._end = prompts[BEGINNING].tolist(), prompts["end"].tolist()
        self._rng = np.random.default_rng(seed)

    def held_out(self) -> list[Text]:
        return self._answer(self._held_out, greedy_part=1)

    def next(self, own_requests: bool) -> list[Text]:
        """Return answers to bundled requests, or to the model's own."""
        chosen = self._rng.permutation(len(self._bundled))[: self._n_texts]
        prompts = self._own_requests() if own_requests else [self._bundled[i] for i in chosen]
        return self._answer(prompts, greedy_part=3)

    def _own_requests(self) -> list[list[int]]:
        heat = [REQUEST_TEMPERATURE] * self._n_texts
        written = self._model.write([self._beginning] * self._n_texts, N_REQUEST, heat)
        whole = [text[:-1] for text in written if self._model.ends(text) and len(text) > 3]
        return [[*self._beginning, *text, *self._end] for text in whole]

    def _answer(self, prompts: Sequence[list[int]], greedy_part: int) -> list[Text]:
        order = sorted(prompts, key=len)
        heat = [0.0 if i % greedy_part == 0 else TEMPERATURE for i in range(len(order))]
        answers = self._model.write(order, N_ANSWER, heat)
        return [
            Text(np.array(prompt + answer, np.int32), len(prompt))
            for prompt, answer in zip(order, answers, strict=True)
        ]


#
# batches
#


def lines(texts: Sequence[Text], rng: np.random.Generator) -> Iterator[list[Text]]:
    """Yield texts in random order that fit into one line each."""
    line: list[Text] = []
    left = N_ROWS
    for i in rng.permutation(len(texts)):
        n = len(texts[i].tokens)
        if n > left:
            yield line
            line, left = [], N_ROWS
        line.append(texts[i])
        left -= n


class Packer:
    """Batches of texts, with the model's states and likeliest next tokens."""

    def __init__(self, model: TorchLlama, blocks: Sequence[int], vocab: NDArray[np.int64]) -> None:
        self._model, self._blocks = model, blocks
        self._draft_index = torch.full((model.n_vocab,), -1, device=model.device)
        ids = torch.from_numpy(vocab).to(model.device)
        self._draft_index[ids] = torch.arange(len(vocab), device=model.device)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def batch(self, chosen: Sequence[Sequence[Text]]) -> Batch:
        """Return the batch of these lines. Row i has the state of token i and the embedding of
        token i + 1, and predicts token i + 2."""
        shape = (len(chosen), N_ROWS)
        tokens, texts = np.zeros(shape, np.int64), np.full(shape, -1)
        at, scored = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        for i, line in enumerate(chosen):
            start = 0
            for number, text in enumerate(line):
                n = len(text.tokens)
                rows = slice(start, start + n)
                tokens[i, rows], texts[i, rows], at[i, rows] = text.tokens, number, np.arange(n)
                scored[i, start : start + n - 1] = np.arange(2, n + 1) >= text.n_prompt
                start += n
        to = self._model.device
        on_device = [torch.from_numpy(each).to(to) for each in (tokens, texts, at, scored)]
        features, final = self._model.states(on_device[0], on_device[1], on_device[2], self._blocks)
        later = torch.roll(on_device[0], -1, 1)
        best, probs = self._likeliest(torch.roll(final, -1, 1))
        return Batch(
            features,
            self._model.embeddings(later),
            on_device[1],
            on_device[2],
            best,
            probs,
            on_device[3],
        )

    def _likeliest(self, final: Tensor) -> tuple[Tensor, Tensor]:
        """Return indices into the draft vocabulary and probabilities, [n_lines, n_rows, N_BEST]."""
        best, probs = [], []
        for line in final.split(4):  # logits of all lines would take gigabytes
            logits = self._model.logits(line)
            values, ids = logits.topk(N_BEST)
            index = self._draft_index[ids]
            p = (values - logits.logsumexp(-1, keepdim=True)).exp()
            best.append(index)
            probs.append(torch.where(index >= 0, p, 0))
        return torch.cat(best), torch.cat(probs)


def frequent(texts: Sequence[Text], n: int, n_vocab: int) -> NDArray[np.int64]:
    """Return the n most frequent tokens of answers, in order of ids, int64 [n]."""
    answers = np.concatenate([text.tokens[text.n_prompt :] for text in texts])
    counts = np.bincount(answers, minlength=n_vocab)
    return np.sort(np.argsort(-counts, kind="stable")[:n]).astype(np.int64)


def feature_scale(model: TorchLlama, text: Text, blocks: Sequence[int]) -> NDArray[np.float32]:
    """Return factors that bring the median state of each block to a mean square of 1, float32
    [n_features]."""
    tokens = torch.from_numpy(text.tokens.astype(np.int64))[None].to(model.device)
    at = torch.arange(tokens.shape[1], device=model.device)[None]
    features, _ = model.states(tokens, torch.zeros_like(tokens), at, blocks)
    sizes = features.float().unflatten(-1, (N_BLOCKS_READ, -1)).square().mean(-1)[0].median(0)
    scales = sizes.values.rsqrt().cpu().numpy().astype(np.float32)
    return np.repeat(scales, features.shape[-1] // N_BLOCKS_READ)


#
# training
#


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds for writing texts and for training."""

    texts: float
    training: float


def collect(writer: Writer, seconds: float) -> list[Text]:
    """Have texts written until the time is up."""
    end, texts = time.monotonic() + seconds, list[Text]()
    for own in itertools.cycle((False, True)):
        start = time.monotonic()
        new = writer.next(own)
        texts += new
        n = sum(len(text.tokens) - text.n_prompt for text in new)
        took = time.monotonic() - start
        click.echo(f"{len(new)} answers, {n} tokens, {took:.1f} s, own requests: {own}")
        if time.monotonic() + took > end:
            return texts
    raise AssertionError


def train(
    trainer: Trainer,
    packer: Packer,
    texts: Sequence[Text],
    held_out: Sequence[Batch],
    seconds: float,
    n_lines: int,
) -> list[dict[str, Any]]:
    """Train until the time is up, with step sizes that fall in the end. Return acceptance by tokens
    seen."""
    rng, curve = np.random.default_rng(0), list[dict[str, Any]]()
    base = trainer.options
    start, evaluated = time.monotonic(), 0
    endless = itertools.chain.from_iterable(lines(texts, rng) for _ in itertools.count())
    while (share := (time.monotonic() - start) / seconds) < 1:
        factor = min(1.0, (1 - share) / (1 - DECAY_FROM))
        trainer.options = replace(
            base, rate=base.rate * factor, rate_other=base.rate_other * factor
        )
        trainer.learn(packer.batch(list(itertools.islice(endless, n_lines))))
        if share * 12 > evaluated:
            evaluated += 1
            curve.append(_point(trainer, held_out, time.monotonic() - start))
    curve.append(_point(trainer, held_out, time.monotonic() - start))
    return curve


def _point(trainer: Trainer, held_out: Sequence[Batch], seconds: float) -> dict[str, Any]:
    rates = trainer.evaluate(held_out).acceptance
    point = {
        "batches": trainer.n_batches,
        "tokens": trainer.n_tokens,
        "s": round(seconds),
        "acceptance": [round(rate, 4) for rate in rates],
    }
    click.echo(json.dumps(point))
    return point


#
# command line
#


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Train a draft head on a CUDA device."""


@main.command("texts")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("prompts", type=click.Path(path_type=Path))
def texts_command(model: Path, prompts: Path) -> None:
    """Write the tokens of requests to PROMPTS, an .npz file."""
    with Model(model) as loaded:
        write_prompts(loaded, prompts)


@main.command("train")
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.argument("prompts", type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--minutes", default=7.0, help="For writing texts and for training.")
@click.option("--writing", default=0.3, help="Share of the time in which texts are written.")
@click.option("--texts", "n_texts", default=3072, help="Written at once.")
@click.option("--lines", "n_lines", default=16, help="Of a batch.")
@click.option("--vocab", default=4096, help="Number of tokens in the vocabulary of the head.")
@click.option("--steps", default=4, help="Draft positions that the loss covers.")
@click.option(
    "--from", "begin", type=click.Path(path_type=Path, exists=True), help="An earlier OUT."
)
@click.option("--seed", default=1, help="Of the texts.")
@click.option("--device", default="cuda")
def train_command(
    model: Path,
    prompts: Path,
    out: Path,
    minutes: float,
    writing: float,
    n_texts: int,
    n_lines: int,
    vocab: int,
    steps: int,
    begin: Path | None,
    seed: int,
    device: str,
) -> None:
    """Train a head for MODEL; its weights go to OUT."""
    torch.manual_seed(seed)
    weights = BaseModelWeights.open(model)
    llama = TorchLlama(weights.source, device)
    n = llama.n_blocks
    blocks = (2, n // 2, n - 1)
    writer = Writer(llama, np.load(prompts), n_texts, seed)
    held_out = writer.held_out()
    texts = collect(writer, minutes * 60 * writing)
    torch.cuda.empty_cache()
    earlier = (
        None if begin is None else torch.load(begin, map_location="cpu", weights_only=True)["head"]
    )
    ids = frequent(texts, vocab, llama.n_vocab)
    if earlier is not None:
        ids = earlier["draft_vocab"].numpy()
    packer = Packer(llama, blocks, ids)
    groups = list(lines(held_out, np.random.default_rng(0)))
    batches = [packer.batch(groups[i : i + n_lines]) for i in range(0, len(groups), n_lines)]
    head = weights.new_head(
        weights.head_shape(len(ids)), ids, feature_scale(llama, held_out[0], blocks)
    )
    if earlier is not None:
        head.load_state_dict(earlier)
    options = TrainingOptions(n_steps=steps, rate=RATES[0], rate_other=RATES[1])
    trainer = Trainer(head.to(device), options, bfloat16=True)
    n_data = sum(len(text.tokens) for text in texts)
    click.echo(f"{len(texts)} texts of {n_data} tokens; training")
    curve = train(trainer, packer, texts, batches, minutes * 60 * (1 - writing), n_lines)
    state = {name: each.half() if each.is_floating_point() else each
             for name, each in trainer.average.state_dict().items()}  # fmt: skip
    facts = {"blocks": blocks, "n_data": n_data, "curve": curve, "steps": steps}
    torch.save({"head": state, "facts": facts}, out)


@main.command("write")
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.argument("weights", type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--type", "type_name", default="q4_0")
def write_command(model: Path, weights: Path, out: Path, type_name: str) -> None:
    """Write the file of a trained head."""
    saved = torch.load(weights, map_location="cpu", weights_only=True)
    state, facts = saved["head"], saved["facts"]
    base = BaseModelWeights.open(model)
    ids = state["draft_vocab"].numpy()
    head = base.new_head(base.head_shape(len(ids)), ids, state["scale"].float().numpy())
    head.load_state_dict(state)
    last = facts["curve"][-1]
    with Model(model) as loaded:
        assert tuple(facts["blocks"]) == default_blocks(loaded)
        card = Card(
            model=model.name,
            fingerprint=loaded.fingerprint,
            blocks=tuple(facts["blocks"]),
            data="bundled prompts and the model's own",
            n_data=facts["n_data"],
            n_trained=last["tokens"],
            minutes=round(last["s"] / 60, 1),
            acceptance=tuple(last["acceptance"]),
            version=__version__,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )
    write_head(out, head, base.source, card.blocks, card, type_name)


if __name__ == "__main__":
    main()
