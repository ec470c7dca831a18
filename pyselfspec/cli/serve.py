"""pyselfspec serve: a server with the APIs of OpenAI and Anthropic, for one model or several."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import click
import cloup

from .. import hub
from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.embedding import pooling_of
from ..runtime.ffi import load
from ..runtime.sampling import SamplingParams
from ..speculate.batching import warning_of
from ..util import memory
from ..util.extras import install_command
from ._drafting import DraftOptions
from ._help import ManyOptions
from ._machine import MachineOptions
from ._model import LATEST, latest_model, optional_model
from ._options import template_from, verbose_option
from ._sampling import SamplingOptions
from ._server_options import KEY_VARIABLE, MIB, ServerOptions
from ._types import takes

ORPHAN_S = 20.0  # of a model's process without the server that started it


@cloup.command(name="serve", cls=ManyOptions)
@optional_model(LATEST, lambda: None)  # --model and --models-dir name others
@takes(options=ServerOptions, sampling=SamplingOptions, machine=MachineOptions, drafts=DraftOptions)
@verbose_option
@cloup.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object.")
def command(
    model: str | None,
    options: ServerOptions,
    sampling: SamplingOptions,
    machine: MachineOptions,
    drafts: DraftOptions,
    as_json: bool,
) -> None:
    """Serve OpenAI's and Anthropic's APIs, with a page at /.

    Programs for these APIs use it as they are, see docs/clients.md. Several requests are answered
    at once, each with the text that it would get alone.

    \b
    pyselfspec serve model.gguf
    pyselfspec serve model.gguf --port 8000 --slots 8 --draft ngram
    pyselfspec serve --model small=a.gguf --model large=b.gguf
    """
    try:
        from ..serve import server  # noqa: F401  # or a line that tells how to install it
    except ModuleNotFoundError as error:
        raise ArgumentError(f"{error.name} is not installed: {install_command('serve')}") from None
    drafts.check()
    named, alone = options.models or options.models_dir, options.only_model
    source = click.get_current_context().get_parameter_source("model")
    if named and source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(
            f"{model} is given beside --model or --models-dir; name it as --model NAME=MODEL"
        )
    if named and alone is None:
        _serve_several(options, machine.ctx_size, as_json=as_json)
    else:
        name = alone or model or latest_model()
        _serve_one(name, options, sampling.params(), machine, drafts, as_json=as_json)


def _serve_one(
    model: str,
    options: ServerOptions,
    sampling: SamplingParams,
    machine: MachineOptions,
    drafts: DraftOptions,
    *,
    as_json: bool,
) -> None:
    from ..serve import server

    if options.with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    settings = options.settings("", sampling)
    template = template_from(options.template)  # its errors come before the model is loaded
    with (
        server.open_listener(options.host, options.port) as listener,
        machine.model(model, options.slots) as loaded,
    ):
        named = loaded.path.stem if hub.find(model) is None else model
        settings = replace(settings, name=options.alias or named)
        capacity = options.capacity(machine.n_ctx(loaded, options.slots))
        opened: AbstractContextManager[Any]
        if (options.pooling or pooling_of(loaded.file)) is not None:
            opened = server.open_embedding_service(
                loaded,
                settings,
                capacity=capacity,
                n_threads=machine.threads,
                pooling=options.pooling,
            )
        else:
            opened = server.open_service(
                loaded,
                settings,
                capacity=capacity,
                drafting=drafts.config(loaded.n_layer),
                template=template,
                mmproj=options.mmproj,
                **machine.context_params(),
            )
        with opened as service:

            def ready() -> None:
                host, port = listener.getsockname()[:2]
                context = service.engine.context
                if capacity.n_slots > 1 and isinstance(context, Context):
                    if warning := warning_of(context):
                        advice = "-np 1 answers one request at a time"
                        click.echo(f"Warning: {warning}; {advice}", err=True)
                is_open = not settings.keys and not server.is_loopback(host)
                _announce(
                    host,
                    port,
                    settings.name,
                    is_open=is_open,
                    as_json=as_json,
                    to_users=not options.with_parent,
                )

            made = server.make_server(
                service,
                listener,
                grace_s=options.grace,
                ready=ready,
                log_requests=load.is_verbose(),
            )
            server.run(made, listener)


def _serve_several(options: ServerOptions, n_ctx: int | None, *, as_json: bool) -> None:
    """Serve several models, each in a process of its own."""
    from ..serve import server
    from ..serve.router.models import listed
    from ..serve.router.server import make_server

    most, free = options.max_memory, memory.available()
    settings = options.settings("", SamplingParams())
    found = listed(options.models, options.models_dir, n_ctx, options.slots, options.pooling)
    settings = replace(settings, name=found[0].name)
    with server.open_listener(options.host, options.port) as listener:
        host, port = listener.getsockname()[:2]

        def ready() -> None:
            is_open = not settings.keys and not server.is_loopback(host)
            names = ", ".join(each.name for each in found)
            _announce(host, port, names, is_open=is_open, as_json=as_json)

        made = make_server(
            found,
            _options_of_all(sys.argv),
            settings,
            listener,
            max_bytes=free if most is None else round(most * 1024 * MIB),
            keep_s=options.keep_alive,
            grace_s=options.grace,
            ready=ready,
        )
        server.run(made, listener)


def _options_of_all(argv: Sequence[str]) -> list[str]:
    """Return the options of this command that the processes of all models get too."""
    own = {"-m", "--model", "--models-dir", "--max-memory", "--keep-alive", "--host", "--port"}
    own |= {"--alias", "--cors"}
    given = iter(argv[argv.index("serve") + 1 :] if "serve" in argv else ())
    kept = []
    for each in given:
        name, sign, _ = each.partition("=")
        if name in own:
            if not sign:
                next(given, None)
        elif each != "--json" and (name == "-mg" or not each.startswith("-m")):  # -mNAME=MODEL
            kept.append(each)
    return kept


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, or has closed our stdin; after
    ORPHAN_S seconds in any case."""
    while os.read(sys.stdin.fileno(), 1):  # sys.stdin's own lock would abort Python's end
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_S)
    os._exit(1)


def _announce(
    host: str, port: int, name: str, *, is_open: bool, as_json: bool, to_users: bool = True
) -> None:
    """Print the addresses of the server.

    name: of the model. is_open: whether other machines can use the server without a key. to_users:
    whether users see them, and not only the server of several models that started this one.
    """
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if as_json:
        click.echo(json.dumps({"model": name, "url": url}))
    if not to_users:
        return
    click.echo(f"Page: {url}\nAPI:  {url}/v1, model {name}", err=True)
    if is_open:
        click.echo(
            f"Warning: anyone who can reach {host}:{port} can use this server; set a key with "
            f"--api-key-file or ${KEY_VARIABLE}",
            err=True,
        )
    click.echo("Ctrl-C stops the server.", err=True)
