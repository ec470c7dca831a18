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


class ManyOptions(cloup.Command):
    """A command with the options that most people need in --help, and all of them in --help-all."""

    def __init__(self, *args: Any, params: list[click.Parameter], **extra: Any) -> None:
        super().__init__(*args, params=[*params, _help_all()], **extra)

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
