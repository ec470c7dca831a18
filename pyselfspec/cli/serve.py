"""pyselfspec serve: an OpenAI-compatible server for one model."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click
import cloup

from ..errors import ArgumentError
from ..runtime.ffi import load
from ..serve.settings import (
    GRACE_S,
    HOST,
    N_BYTES,
    N_QUEUE,
    N_SLOTS,
    PORT,
    TIMEOUT_S,
    Capacity,
    Settings,
)
from ._drafting import check_drafting, config_from, draft_options
from ._options import (
    chat_template_option,
    common_options,
    context_options,
    context_params,
    ctx_size,
    model_argument,
    model_params,
    open_model,
    read_text,
    template_from,
)
from ._sampling import sampling_from, sampling_options
from ._types import FILE, Integer, Number

KEY_VARIABLE = "PYSELFSPEC_API_KEY"
MIB = 1 << 20
MIB_MAX = 1024.0  # of a request
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def _origins(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    for origin in given:
        if not ORIGIN.fullmatch(origin):
            raise click.BadParameter(
                f"{origin!r} is not an origin; give scheme and host, like https://example.org"
            )
    return given


def _alias(_ctx: click.Context, _param: click.Parameter, given: str | None) -> str | None:
    if given is not None and not given.strip():
        raise click.BadParameter("the name is empty; give a name, or leave out --alias")
    return given


serve_options = cloup.option_group(
    "Server",
    cloup.option("--host", default=HOST, help="Address to listen on."),
    cloup.option(
        "--port",
        type=Integer(0, 65535),
        default=PORT,
        help="Port to listen on, 0 for any free one.",
    ),
    cloup.option(
        "--slots",
        "-np",
        "--parallel",
        type=Integer(1, 64),
        default=N_SLOTS,
        help="Number of requests to answer at once; they share the context (-c).",
    ),
    cloup.option(
        "--queue",
        type=Integer(0),
        default=N_QUEUE,
        help="Number of requests that may wait for a slot; further ones are refused.",
    ),
    cloup.option(
        "--timeout",
        type=Number(0, min_open=True),
        default=TIMEOUT_S,
        help="Longest time of a request in seconds, including the wait for a slot.",
    ),
    cloup.option(
        "--max-body",
        type=Number(0, MIB_MAX, min_open=True),
        default=N_BYTES / MIB,
        help="Largest size of a request in MiB.",
    ),
    cloup.option(
        "--api-key-file",
        type=FILE,
        help=f"File with the API key that requests need.  [default: ${KEY_VARIABLE}, else none]",
    ),
    cloup.option(
        "--cors",
        metavar="ORIGIN",
        multiple=True,
        callback=_origins,
        help="Allow requests from web pages of this origin (CORS), like https://example.org, or * "
        "for any; repeatable.",
    ),
    cloup.option(
        "--alias",
        callback=_alias,
        help="Name of the model in the API.  [default: the name of its file without .gguf]",
    ),
    chat_template_option,
    cloup.option(
        "--mmproj",
        type=FILE,
        help="Projector file of the model, with which it reads pictures in messages.",
    ),
    cloup.option(
        "--grace",
        type=Number(0),
        default=GRACE_S,
        help="Seconds to let running requests finish after SIGTERM or Ctrl-C.",
    ),
)


@cloup.command(name="serve")
@model_argument
@serve_options
@sampling_options
@context_options
@draft_options
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Run an OpenAI-compatible server with a web page at /.

    Answers several requests at once, each with the text that it would get alone. Requests can
    choose the drafter, see docs/serving.md.

    \b
    pyselfspec serve model.gguf
    pyselfspec serve model.gguf --port 8000 --slots 8 --draft ngram
    """
    try:
        from ..serve import server
        from ..speculate.batching import warning_of
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"{error.name} is not installed: pip install 'pyselfspec[serve]'"
        ) from None
    check_drafting(options)
    sampling = sampling_from(options)
    key = _key(options["api_key_file"])
    template = template_from(options["template"])
    with (
        server.open_listener(options["host"], options["port"]) as listener,
        open_model(model, **model_params(options)) as loaded,
    ):
        settings = Settings(
            name=options["alias"] or loaded.path.stem,
            key=key,
            origins=options["cors"],
            timeout_s=options["timeout"],
            n_bytes=round(options["max_body"] * MIB),
            sampling=sampling,
        )
        drafting = config_from(loaded.n_layer, options)
        capacity = Capacity(ctx_size(loaded, options), options["slots"], options["queue"])
        host, port = listener.getsockname()[:2]

        def ready() -> None:
            if capacity.n_slots > 1 and (warning := warning_of(service.engine.context)):
                click.echo(f"Warning: {warning}; -np 1 answers one request at a time", err=True)
            is_open = key is None and not server.is_loopback(host)
            _announce(host, port, settings.name, is_open=is_open, as_json=as_json)

        with server.open_service(
            loaded,
            settings,
            capacity=capacity,
            drafting=drafting,
            template=template,
            mmproj=options["mmproj"],
            **context_params(options),
        ) as service:
            server.run(
                service,
                listener,
                grace_s=options["grace"],
                ready=ready,
                log_requests=load.is_verbose(),
            )


def _announce(host: str, port: int, name: str, *, is_open: bool, as_json: bool) -> None:
    """Print the addresses of the server.

    name: of the model. is_open: whether other machines can use the server without a key.
    """
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if as_json:
        click.echo(json.dumps({"model": name, "url": url}))
    click.echo(f"Page: {url}\nAPI:  {url}/v1, model {name}", err=True)
    if is_open:
        click.echo(
            f"Warning: anyone who can reach {host}:{port} can use this server; set a key with "
            f"--api-key-file or ${KEY_VARIABLE}",
            err=True,
        )
    click.echo("Ctrl-C stops the server.", err=True)


def _key(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    key = read_text(str(path)).strip()
    if not key:
        raise ArgumentError(f"{path} is empty: write the API key into it")
    return key
