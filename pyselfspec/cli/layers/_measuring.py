"""Options and the progress bar of the commands that score masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
from rich.progress import MofNCompleteColumn

from ...masks import profiles
from ...masks.profiles import Profile
from ...masks.space import Unit
from ...runtime.model import Model
from ...selection import objectives
from ...selection.chunks import N_CHUNK
from ...selection.measured_gain import measured_gain
from ...selection.options import ScanOptions
from ...selection.scanning import ScanResult
from ...selection.searching import SearchResult
from ...util import paths
from ...util.progress import OnProgress
from .._machine import DeviceOptions
from .._options import MAX_TEXT, command_line, read_text, results_option
from .._progress import stages
from .._types import Integer, Number, option, rare

R = TypeVar("R", ScanResult, SearchResult)


def _chunks_help() -> str:
    names = objectives.names()
    defaults = (f"{objectives.load(name).about.n_chunks} for {name}" for name in names)
    return f"Number of chunks of text to score.  [default: {', '.join(defaults)}]"


def objective_option(default: str) -> Any:
    return option(
        "--objective",
        type=click.Choice(objectives.names()),
        default=default,
        help="How to score a mask. agreement: share of tokens for which the masked model picks the "
        "full model's token. expected-speed: speed-up computed from agreement and the times of "
        "passes. measured-speed: speed of generation with the mask. perplexity: perplexity of the "
        "masked model.",
    )


def unit_option() -> Any:
    return rare(
        "--unit",
        type=click.Choice([unit.value for unit in Unit]),
        default=Unit.BOTH.value,
        help="Unit to skip: an attention sublayer (attn), a feed-forward sublayer (ffn), either of "
        "them (both), or a whole block (block).",
    )


def share_option(default: float) -> Any:
    return rare(
        "--share",
        type=Number(0, 1, min_open=True),
        default=default,
        help="Largest share of the units to skip.",
    )


@dataclass(frozen=True, slots=True)
class MeasuringOptions(DeviceOptions):
    """How masks are scored, and where the scores are kept."""

    title: ClassVar[str] = "Text and results"
    chunks: int | None = option("--chunks", type=Integer(1), help=_chunks_help())
    n_ctx: int | None = rare(
        "--chunk-size",
        type=Integer(4),
        help=f"Number of tokens in a chunk; the second half is scored.  [default: {N_CHUNK}]",
    )
    window: int = rare(
        "--window",
        type=Integer(1),
        default=objectives.WINDOW,
        help="Number of tokens in a masked pass, for --objective agreement.",
    )
    text_file: str | None = option(
        "--text",
        metavar="FILE",
        help="File with the text to score on, - for stdin.  [default: text that the model "
        "generates]",
    )
    seed: int = rare(
        "--seed",
        type=Integer(0),
        default=0,
        help="Seed of all random choices, including the text that the model generates.",
    )
    results: Path | None = results_option("in the user's data folder, by model and text")
    cache_mib: int = rare(
        "--cache-mib",
        type=Integer(0),
        default=objectives.CACHE_BYTES // 2**20,
        help="Memory for hidden states that masks share, in MiB; 0 for none.",
    )
    no_profile: bool = option(
        "--no-profile", is_flag=True, help="Do not replace the model's profile with the result."
    )

    def scan_options(self) -> ScanOptions:
        file = self.text_file
        return ScanOptions(
            text=None if file is None else read_text(file, MAX_TEXT),
            text_name=file,
            chunks=self.chunks,
            n_ctx=self.n_ctx,
            window=self.window,
            seed=self.seed,
            results=self.results,
            cache_bytes=self.cache_mib * 2**20,
            context=self.context_params(),
            command=command_line(),
        )

    def run(self, model: str, task: Callable[..., R]) -> tuple[R, Outcome]:
        """Run a task, scan() or search(); return what it finds and the fate of its best mask."""
        options = self.scan_options()
        with self.open_model(model) as loaded, stages(MofNCompleteColumn()) as follow:
            found = task(loaded, progress=follow, **options)
            best = None if self.no_profile else found.profile
            return found, save_if_faster(best, loaded, options, follow)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fate of the best mask. profile: the file that holds it. measured: its speed over that of
    plain decoding. note: both, for the line about the mask."""

    profile: Path | None = None
    measured: float | None = None
    note: str = ""

    def fields(self, model: str, found: ScanResult | SearchResult) -> dict[str, Any]:
        """Return what was found, and the outcome, as data for JSON."""
        return {
            "model": paths.shown(model),
            "strategy": found.strategy,
            "objective": found.objective,
            "results": paths.shown(str(found.results)),
            "profile": None if self.profile is None else str(self.profile),
            "measured_speed": self.measured,
        }


def save_if_faster(
    found: Profile | None, model: Model, options: ScanOptions, progress: OnProgress
) -> Outcome:
    """Measure the gain of a mask, and make it the model's profile if there is one.

    found: None if no mask is expected to be faster.
    """
    if found is None:
        return Outcome()
    measured = measured_gain(model, found.mask, progress=progress, **options)
    note = f" · measured {measured:.2f}x · "
    if found.mask == profiles.mask_for(model):
        note += "the same mask as before"
        if measured <= 1:
            note += "; layers profile remove takes it back"
        return Outcome(profiles.path_of(model.fingerprint), measured, note)
    if measured <= 1:
        return Outcome(None, measured, f"{note}not saved: no gain here")
    return Outcome(profiles.save(found), measured, f"{note}saved as profile")
