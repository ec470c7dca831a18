"""pyselfspec layers profile: manage the masks saved for models, in our and in other formats."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
import cloup

from ... import BUILD_ID, __version__
from ...errors import ArgumentError
from ...masks import formats as mask_formats
from ...masks import profiles
from ...masks.profiles import Profile
from ...runtime.model import Model
from ...util import paths, records
from ...util.files import replacing
from .._model import complete_model, model_option, model_or_demo_argument
from .._options import command_line, json_option, out_option, read_text


@cloup.group(name="profile")
def command() -> None:
    """Show, import, export and remove the profiles of models.

    A profile is the mask that drafts use for a model by default: the set of sublayers to skip.
    """


@command.command(name="list")
@json_option
def list_all(as_json: bool) -> None:
    """List all profiles."""
    found = profiles.every()
    if as_json:
        click.echo(json.dumps({"profiles": [records.to_dict(profile) for profile in found]}))
    elif not found:
        click.echo("no profiles yet; make one with pyselfspec scan-layers MODEL", err=True)
    else:
        click.echo("\n".join(_line(profile) for profile in found))


@command.command()
@model_or_demo_argument
@json_option
def show(model: str, as_json: bool) -> None:
    """Show the profile of a model."""
    with Model(model) as loaded:
        profile = _existing(loaded)
    facts = records.to_dict(profile)
    if as_json:
        click.echo(json.dumps(facts))
        return
    facts = {key: value for key, value in facts.items() if value is not None}
    facts |= {"mask": profile.mask.to_json()}
    width = max(map(len, facts))
    click.echo("\n".join(f"{key:{width}}  {value}" for key, value in facts.items()))


@command.command()
@model_or_demo_argument
@cloup.option(
    "--format",
    "form",
    type=click.Choice(mask_formats.FORMATS),
    default="mask",
    help="Format of the mask: mask (pyselfspec's own), skip-layers (Draft & Verify, SWIFT), "
    "attn-mlp (ccs96307/fast-llm-inference) or numbers (llama.cpp PR 3565).",
)
@out_option("the mask", "stdout")
def export(model: str, form: str, out: Path | None) -> None:
    """Print the mask of a model's profile, or write it to a file."""
    with Model(model) as loaded:
        profile = _existing(loaded)
    text = mask_formats.write(profile.mask, form, Path(profile.model).stem)
    if out is None:
        click.echo(text)
        return
    with replacing(out) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")


@command.command(name="import")
@cloup.argument(
    "model",
    shell_complete=complete_model,
    help="GGUF file, or a name that pyselfspec models list shows; also as -m MODEL.",
)
@model_option
@cloup.argument("file", help="File with a mask in any format that export writes, - for stdin.")
@cloup.option("--entry", help="Name of the mask, for a file that has several.")
@json_option
def import_mask(model: str, file: str, entry: str | None, as_json: bool) -> None:
    """Save the mask in a file as the profile of a model."""
    with Model(model) as loaded:
        mask = mask_formats.read(read_text(file), loaded.n_layer, entry)
        profile = Profile(
            model=paths.shown(loaded.path.name),
            fingerprint=loaded.fingerprint,
            mask=mask,
            source=f"import, {paths.shown(file)}" + (f", {entry}" if entry else ""),
            version=__version__,
            build=BUILD_ID,
            date=time.strftime("%Y-%m-%d"),
            command=paths.shown(command_line()),
        )
    profiles.save(profile)
    click.echo(json.dumps(records.to_dict(profile)) if as_json else _line(profile))


@command.command()
@model_or_demo_argument
def remove(model: str) -> None:
    """Remove the profile of a model."""
    with Model(model) as loaded:
        if not profiles.remove(loaded):
            raise _missing(loaded)


def _existing(model: Model) -> Profile:
    profile = profiles.find(model)
    if profile is None:
        raise _missing(model)
    return profile


def _missing(model: Model) -> ArgumentError:
    return ArgumentError(
        f"{model.path.name} has no profile; make one with pyselfspec scan-layers, or import one "
        "with pyselfspec layers profile import"
    )


def _line(profile: Profile) -> str:
    mask = profile.mask
    expected = "" if profile.speed is None else f" · expected {profile.speed:.2f}x"
    return (
        f"{profile.model} · skips {len(mask.skip_attn)} attention, {len(mask.skip_ffn)} "
        f"feed-forward sublayers of {mask.n_layer} blocks{expected} · {profile.source}, "
        f"{profile.date}"
    )
