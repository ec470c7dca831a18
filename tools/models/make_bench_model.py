"""Makes a benchmark model of about any size out of the bundled demo, with no download.

    python tools/models/make_bench_model.py --params 0.5B --type q4_k_m

The demo is widened, which keeps its text and its acceptance, and quantized, which changes them a
little. A file with all weights as F16 is beside the result meanwhile.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from gguf import GGMLQuantizationType

sys.path.append(str(Path(__file__).resolve().parents[2]))

from pyselfspec.convert.quantize import TYPES, quantize
from pyselfspec.convert.stream import Source, read_model
from pyselfspec.convert.widen import n_params, widen
from pyselfspec.errors import SelfSpecError
from pyselfspec.gguf.file import check
from pyselfspec.util.paths import DEMO
from tools.models.random_gguf import parse_count

FACTORS = range(2, 65)


def nearest_factor(source: Source, wanted: int) -> int:
    """The factor whose parameters come nearest to those wanted, by their ratio."""
    return min(FACTORS, key=lambda factor: abs(math.log(n_params(source, factor) / wanted)))


def make(source: Source, factor: int, type_name: str, out: Path) -> None:
    with TemporaryDirectory(prefix=".unfinished-", dir=out.parent) as folder:
        wide = Path(folder) / "wide.gguf"
        widen(source, factor, GGMLQuantizationType.F16).write(wide)
        quantize(wide, out, type_name)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--params", default="0.5B", help="About how many parameters.")
@click.option(
    "--type", "type_name", type=click.Choice(list(TYPES), case_sensitive=False), default="q4_k_m"
)
@click.option("--model", type=click.Path(path_type=Path), default=DEMO, help="What to widen.")
@click.option("--out", type=click.Path(path_type=Path), help="[default: bench-PARAMS-TYPE.gguf]")
def main(params: str, type_name: str, model: Path, out: Path | None) -> None:
    """Write the nearest widening of the demo, quantized."""
    out = out or Path(f"bench-{params}-{type_name}.gguf")
    try:
        wanted = parse_count(params)
        if wanted < 1:
            raise ValueError("--params is 0: give a count such as 0.5B")
        source = read_model(model)
        factor = nearest_factor(source, wanted)
        make(source, factor, type_name, out)
    except (SelfSpecError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror or error}") from error
    file = check(out)
    click.echo(
        f"{out}: {file.n_params / 1e9:.3g} B parameters, {file.n_layer} blocks of {file.n_embd}, "
        f"{model.stem} {factor} times as wide, {file.file_type}, {file.n_bytes / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
