"""The model of a command: its first argument, or -m, or a default."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import cloup
from click.shell_completion import CompletionItem

from .. import hub
from ..chat import installed
from ..errors import UnknownModelError
from ..hub.demo import NAME as DEMO_NAME
from ._types import together


def complete_model(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return downloaded models and GGUF files; if none fits, let the shell complete file names."""
    folder = os.path.dirname(incomplete)
    try:
        files = sorted(os.path.join(folder, p.name) for p in Path(folder).glob("*.gguf"))
    except OSError:  # no permission to read the folder
        files = []
    fits = [name for name in (*hub.installed(), *files) if name.startswith(incomplete)]
    return [CompletionItem(fit) for fit in fits] or [CompletionItem(incomplete, type="file")]


def complete_from(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem[str]]]:
    """Return a completer of these names."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]

    return complete


def latest_model() -> str:
    """Return the chat model that was used or pulled last, and name it on stderr."""
    name = installed.latest().name
    click.echo(f"model: {name} (used or pulled last)", err=True)
    return name


def _demo_model() -> str:
    """Return the bundled model, and name it on stderr."""
    click.echo(f"model: {DEMO_NAME} (bundled; for another one, give MODEL)", err=True)
    return DEMO_NAME


def _arguments(ctx: click.Context) -> list[str]:
    return [p.name for p in ctx.command.params if isinstance(p, click.Argument) and p.name]


class _ModelOption(cloup.Option):
    """Takes the model of llama.cpp's users, who type -m, as the first of the arguments."""

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> Any:
        named = opts.pop(self.name, None)
        if isinstance(named, str):
            places = _arguments(ctx)
            typed = [opts[each] for each in places if isinstance(opts.get(each), str)]
            if len(typed) == len(places):
                raise click.UsageError(
                    f"-m {named} already names the model; leave it out, or {typed[0]!r}", ctx
                )
            opts.update(zip(places, [named, *typed], strict=False))
        return super().handle_parse_result(ctx, opts, args)


def _refuse_repository(ctx: click.Context, _param: click.Parameter, given: str | None) -> None:
    if given is not None:
        name = shlex.quote(hub.name_to_pull(given))
        raise click.UsageError(
            f"-hf {given}: type pyselfspec models pull {name}, then {ctx.command_path} {name}"
        )


def _refuse_draft_model(_ctx: click.Context, _param: click.Parameter, given: str | None) -> None:
    if given is not None:
        draft = shlex.quote(f"ngram+model:{given}")
        raise click.UsageError(f"for {given} as a draft model, type --draft {draft}")


_HIDDEN: dict[str, Any] = {"expose_value": False, "hidden": True}
model_option = cloup.option("-m", "--model", "named", cls=_ModelOption, is_eager=True, **_HIDDEN)
# Options of llama.cpp that have another form here.
_refused_options = together(
    cloup.option("-hf", "-hfr", "--hf-repo", callback=_refuse_repository, **_HIDDEN),
    cloup.option("-md", "--model-draft", "--draft-model", callback=_refuse_draft_model, **_HIDDEN),
)


def optional_model(default: str, choose: Callable[[], str | None]) -> Callable[..., Any]:
    """Return the argument MODEL of a command that also works without one.

    default: what ``choose`` returns, for the help text.
    """

    def value(ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
        if ctx.resilient_parsing:
            return name
        if name is None:
            return choose()
        if len(_arguments(ctx)) > 1:  # the second one is text
            _require_no_text(name)
        return name

    argument = cloup.argument(
        "model",
        envvar="PYSELFSPEC_MODEL",
        required=False,
        shell_complete=complete_model,
        callback=value,
        help="GGUF file, or a name that pyselfspec models list shows; also as -m MODEL.  "
        f"[default: $PYSELFSPEC_MODEL, else {default}]",
    )
    return together(argument, _refused_options)


def _require_no_text(model: str) -> None:
    """Raise an error that says where text goes, if this can only be text."""
    where = "text goes after MODEL, or with -p"
    if " " in model.strip() and not Path(model).exists():
        raise click.UsageError(f"{model!r} is not a file; {where}")
    try:
        hub.model_path(model)
    except UnknownModelError as error:
        raise UnknownModelError(f"{error}; {where}") from error


LATEST = "the chat model that was used or pulled last"
model_argument = together(optional_model(LATEST, latest_model), model_option)
model_or_demo_argument = together(optional_model(DEMO_NAME, _demo_model), model_option)
