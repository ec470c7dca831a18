"""Descriptions of the experiments: recorded speed, and the options that select them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experiment:
    """kind: heading of the list that it belongs to. use: how to select it on the command line.
    speed: tokens per second relative to plain decoding and the models they were measured on, from
    benchmarks/README.md or benchmarks/LOG.md; None where no figure is recorded.
    """

    kind: str
    name: str
    use: str
    about: str
    speed: str | None = None


def _drafter(name: str, about: str, speed: str, file: str = "") -> Experiment:
    return Experiment("drafters", name, f"--draft {name}{file}", about, speed)


def _controller(name: str, about: str) -> Experiment:
    return Experiment("controllers", name, f"--controller {name}", about)


def _strategy(name: str, about: str) -> Experiment:
    return Experiment("strategies", name, f"layers search --strategy {name}", about)


EXPERIMENTS = (
    _drafter(
        "dynamic-exit",
        "Draft with the first blocks, and with more of them where unsure.",
        "0.75 to 0.79 (demo model, two exits)",
    ),
    _drafter(
        "exit-map",
        "Draft with the first blocks, and a fitted matrix in place of the others.",
        "0.50 to 0.74 (SmolLM2 135M), 0.92 to 0.99 (demo model)",
        file=":FILE",
    ),
    _drafter(
        "jacobi",
        "Draft the tokens that the model predicted after a rejected draft token.",
        "0.77 (SmolLM2 135M)",
    ),
    _drafter(
        "lookahead",
        "Draft n-grams that the model writes into a window ahead of the text.",
        "0.94 (SmolLM2 135M)",
    ),
    _drafter(
        "partial-kv",
        "Draft with the model itself, reading only the first and last tokens of the text.",
        "0.94 (SmolLM2 135M)",
    ),
    _controller(
        "adaptive", "End drafts at a probability that follows the acceptance rate (Draft & Verify)."
    ),
    _controller("product", "End drafts at a joint probability of their tokens."),
    _strategy("clasp", "Skip the blocks whose removal changes the hidden states least (CLaSp)."),
    _strategy("random", "Try random masks, as a baseline."),
    _strategy(
        "swift", "Try random masks, and masks of a Gaussian process over their scores (SWIFT)."
    ),
    Experiment(
        "options",
        "adapt",
        "lab generate --adapt [--adapt-share SHARE] [--adapt-state FILE]",
        "Try other masks while generating, and switch to better ones. SHARE: largest share of the "
        "time to spend on trying, default 0.03. FILE: resume from it, and save to it.",
    ),
    Experiment(
        "options",
        "unverified",
        "lab generate --unverified --exit-layer N",
        "Generate with a mask alone, without verification: not the model's text.",
    ),
)
