"""What the commands that measure masks share: a model, a text, an objective, a file of results."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import BUILD_ID, __version__, plots
from ..costs.by_bytes import ByteCosts
from ..costs.calibration import mask_costs
from ..errors import ArgumentError
from ..gguf import fingerprint
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..masks.profiles import Profile
from ..masks.space import Unit
from ..runtime.context import Context
from ..runtime.model import Model
from ..selection import chunks, own_text
from ..selection.masked_passes import CACHE_BYTES
from ..selection.match import WINDOW, Match
from ..selection.measuring import Objective
from ..selection.measuring import Progress as Done
from ..selection.perplexity import Perplexity
from ..selection.results import ResultFile
from ..selection.scan_report import Point
from ..util import paths
from ..util.files import require_target
from ._options import F, context_params, device_options, model_params, open_model, read_text
from ._options import together as _together

T = TypeVar("T")

N_CHUNKS = {"match": 4, "ppl": 15}  # default; match tells as much with fewer
N_KEPT = 16  # chunks whose K/V a search keeps

measuring_options = _together(
    click.option(
        "--chunks",
        "n_chunks",
        type=click.IntRange(min=1),
        help=f"Chunks of text to score.  [default: {N_CHUNKS['match']} for match, "
        f"{N_CHUNKS['ppl']} for ppl]",
    ),
    click.option(
        "-c",
        "--ctx-size",
        "n_ctx",
        type=click.IntRange(min=4),
        help=f"Tokens in a chunk; the second half is scored.  [default: {chunks.N_CHUNK}]",
    ),
    click.option(
        "--window",
        type=click.IntRange(min=1),
        default=WINDOW,
        show_default=True,
        help="Tokens in a masked pass of match.",
    ),
    click.option("--text", "text_file", help="File with text to score on, - for stdin."),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Of the text that the model writes itself where match is given none.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="File of results, taken up again when it exists.  [default: in the user's data "
        "folder, by model and text]",
    ),
    click.option(
        "--cache-mib",
        type=click.IntRange(min=0),
        default=CACHE_BYTES // 2**20,
        show_default=True,
        help="Memory for hidden states that masks share, 0 for none.",
    ),
    device_options,
    click.option("--no-profile", is_flag=True, help="Keep the profile of the model as it is."),
)


def space_options(share: float, *, unit_help: str, share_help: str) -> Callable[[F], F]:
    """--unit and --share, of which parts masks are made and how many they skip."""
    return _together(
        click.option(
            "--unit",
            type=click.Choice([unit.value for unit in Unit]),
            default=Unit.BOTH.value,
            show_default=True,
            help=f"{unit_help}; both: attention and feed-forward parts, each alone.",
        ),
        click.option(
            "--share",
            type=click.FloatRange(0, 1, min_open=True),
            default=share,
            show_default=True,
            help=share_help,
        ),
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything a measurement needs, open."""

    model: Model
    context: Context
    objective: Objective
    n_chunks: int
    results: ResultFile
    costs: ByteCosts
    texts: Sequence[tuple[int, ...]]


@contextmanager
def opened(
    model: str, objective: str, options: Mapping[str, Any], *, keep: bool = False
) -> Iterator[Bench]:
    """Open the model, cut the text, open or take up the file of results.

    keep: keep the K/V of all chunks, for masks that come one by one.
    """
    n_chunks = options["n_chunks"] or N_CHUNKS[objective]
    text = _text(options["text_file"])
    with open_model(model, **model_params(options)) as loaded:
        loaded.require_tokenizer("scans need one to read text")
        n_ctx = options["n_ctx"] or min(chunks.N_CHUNK, loaded.n_ctx_train)
        tokens = loaded.tokenize(text, parse_special=False)
        cut = chunks.cut(tokens, n_ctx, loaded.start_token)
        if len(cut) < n_chunks:
            raise ArgumentError(
                f"the text has {len(cut)} chunks of {n_ctx} tokens, {n_chunks} are asked for; "
                "give a longer text, fewer --chunks or a smaller -c"
            )
        n_kept = min(n_chunks, N_KEPT) if keep else 1
        with ExitStack() as stack:
            context = stack.enter_context(_context(loaded, objective, n_ctx, n_kept, options))
            header = _header(context, objective, n_ctx, text, options)
            path = options["out"] or _default_path(header)
            results = stack.enter_context(ResultFile(path, header))
            cut = cut[:n_chunks]
            if header["seed"] is not None:
                cut = list(_own(context, cut, header["seed"], results))
            cache_bytes = options["cache_mib"] * 2**20
            scorer: Objective = (
                Match(
                    context, cut, window=options["window"], n_kept=n_kept, cache_bytes=cache_bytes
                )
                if objective == "match"
                else Perplexity(context, cut, cache_bytes=cache_bytes)
            )
            yield Bench(loaded, context, scorer, n_chunks, results, mask_costs(context), cut)


def _text(path: str | None) -> str:
    text = chunks.sample_text() if path is None else read_text(path)
    if "\0" in text:
        raise ArgumentError(f"{path} is no text: it has NUL characters")
    return text


def _context(
    model: Model, objective: str, n_ctx: int, n_kept: int, options: Mapping[str, Any]
) -> Context:
    n_windows = options["window"] if objective == "match" else 0
    n_free = n_ctx if n_kept > 1 else 0  # for searches that look at the text themselves
    return model.context(
        n_ctx=n_kept * n_ctx + n_windows + n_free,
        n_batch=max(min(n_ctx, chunks.N_CHUNK), n_kept + 1),
        n_seq_max=n_kept + 1,
        **context_params(options),
    )


def _header(
    context: Context, objective: str, n_ctx: int, text: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    loaded, is_match = context.model, objective == "match"
    return {
        "version": __version__,
        "build": BUILD_ID,
        "model": loaded.path.name,
        "model_sha256": loaded.fingerprint,
        "n_layer": loaded.n_layer,
        "objective": objective,
        "n_ctx": n_ctx,
        "window": options["window"] if is_match else None,
        "attention": context.attention,
        "text": options["text_file"] or "sample",
        "text_sha256": fingerprint.of_text(text),
        "seed": options["seed"] if is_match and options["text_file"] is None else None,
        "command": command_line(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _default_path(header: Mapping[str, Any]) -> Path:
    what = ("build", "model_sha256", "objective", "n_ctx", "window")
    names = (*what, "attention", "text_sha256", "seed")
    key = hashlib.sha256(json.dumps([header[name] for name in names]).encode()).hexdigest()
    folder = paths.data("scans")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{Path(header['model']).stem}-{header['objective']}-{key[:12]}.jsonl"


def _own(
    context: Context, cut: Sequence[tuple[int, ...]], seed: int, results: ResultFile
) -> Iterator[tuple[int, ...]]:
    """Chunks with a second half of the model's own, written once per file."""
    with progress_bar() as bar:
        for i, chunk in enumerate(bar.track(cut, description="writing text")):
            own = results.text(i)
            if own is None:
                own = own_text.continued(context, chunk, seed + i)
                results.add_text(i, own)
            yield own


def progress_bar() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    )


def followed(steps: Generator[Done, None, T], results: ResultFile) -> T:
    """Run a measurement to its end with a progress bar; says how to go on when it is cut off."""
    try:
        with progress_bar() as bar:
            task = bar.add_task("scoring masks")
            while True:
                try:
                    done = next(steps)
                except StopIteration as end:
                    value: T = end.value
                    return value
                bar.update(task, completed=done.n_done, total=done.n_total)
    except KeyboardInterrupt:
        interrupted(results)
        raise


def command_line() -> str:
    return shlex.join(["pyselfspec", *sys.argv[1:]])


def profile_of(bench: Bench, point: Point, source: str) -> Profile:
    return Profile(
        model=bench.model.path.name,
        fingerprint=bench.model.fingerprint,
        mask=point.mask,
        source=f"{source}, {bench.results.path.name}",
        version=__version__,
        build=BUILD_ID,
        date=time.strftime("%Y-%m-%d"),
        command=command_line(),
        agreement=point.score.agreement,
        n_tokens=point.score.n,
        cost=point.cost,
        speed=point.speed,
        draft_max=point.n_draft,
    )


def known_masks(model: Model) -> list[LayerMask]:
    """What would be drafted with otherwise, so that nothing worse takes its place."""
    masks = (profiles.mask_for(model), model.draft_mask)
    return list(dict.fromkeys(mask for mask in masks if mask is not None))


def interrupted(results: ResultFile) -> None:
    click.echo(f"stopped; {results.path} has the results, the same command goes on", err=True)


def picture_callback(
    _ctx: click.Context, _param: click.Parameter, path: Path | None
) -> Path | None:
    return None if path is None else plots.require(path)


def target_callback(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        require_target(path)
    return path
