"""Help texts in two lengths: --help leaves out the options that few need, --help-all shows all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import cloup

SHOWS_ALL = "pyselfspec.shows_all"  # in the meta of a context: its help has all options
HELP_ALL = "help_all"


class Rare(cloup.Option):
    """An option that few need. The help text of --help leaves it out."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.meta.get(SHOWS_ALL) else None


OTHERS = {  # options of other programs, and what they are here
    "--format": "--json-schema",
    "--n-ctx": "--ctx-size",
    "--no-mmap": "--load-mode",
    "--num-ctx": "--ctx-size",
    "--out": "--results",
    "--spec-type": "--draft",
}


class ManyOptions(cloup.Command):
    """A command with the options that most people need in --help, and all of them in --help-all."""

    def __init__(self, *args: Any, params: list[click.Parameter], **extra: Any) -> None:
        super().__init__(*args, params=[*params, _help_all()], **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True  # so that the error below is ours
        try:
            extra = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            ours = OTHERS.get(error.option_name)
            if ours is None or not any(ours in param.opts for param in self.params):
                raise
            raise click.UsageError(f"{error.message} Did you mean {ours!r}?", ctx) from None
        if extra and not ctx.resilient_parsing:
            takes_text = any(param.name == "text" for param in self.params)
            advice = "; put text of several words in quotes" if takes_text else ""
            raise click.UsageError(f"unexpected: {' '.join(extra)}{advice}", ctx)
        return extra

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = self.option_groups
        self.option_groups = [each for each in groups if each.get_help_records(ctx)]
        try:
            super().format_params(ctx, formatter)
        finally:
            self.option_groups = groups

    def get_ungrouped_options(self, ctx: click.Context) -> Sequence[click.Option]:
        options = super().get_ungrouped_options(ctx)
        return sorted(options, key=lambda each: each.name == HELP_ALL)  # it is on the last line


def _help_all() -> click.Option:
    def show(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
        if given and not ctx.resilient_parsing:
            ctx.meta[SHOWS_ALL] = True
            click.echo(ctx.get_help())
            ctx.exit()

    return cloup.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show all options, including the rare ones.",
    )
