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
from ..runtime import _lib
from ..serve.settings import (
    GRACE_S,
    HOST,
    N_BYTES,
    N_QUEUE,
    N_SLOTS,
    PORT,
    TIMEOUT_S,
    Room,
    Settings,
)
from ._drafting import (
    controller_from,
    describes_mask,
    draft_from,
    draft_options,
    drafter_options_from,
    mask_from,
)
from ._options import (
    FiniteRange,
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

KEY_VARIABLE = "PYSELFSPEC_API_KEY"
MIB = 1 << 20
MIB_MAX = 1024.0  # of a request
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def _origins(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    for origin in given:
        if not ORIGIN.fullmatch(origin):
            raise click.BadParameter(f"{origin!r} is not an origin, like https://example.org")
    return given


def _alias(_ctx: click.Context, _param: click.Parameter, given: str | None) -> str | None:
    if given is not None and not given.strip():
        raise click.BadParameter("it is empty")
    return given


serve_options = cloup.option_group(
    "Server",
    cloup.option("--host", default=HOST, show_default=True, help="Address to listen on."),
    cloup.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=PORT,
        show_default=True,
        help="Port to listen on, 0 for any that is free.",
    ),
    cloup.option(
        "--slots",
        "-np",
        "--parallel",
        type=click.IntRange(1, 64),
        default=N_SLOTS,
        show_default=True,
        help="Texts to write at once; they share the context of -c.",
    ),
    cloup.option(
        "--queue",
        type=click.IntRange(min=0),
        default=N_QUEUE,
        show_default=True,
        help="Requests that may wait for a slot; others are refused.",
    ),
    cloup.option(
        "--timeout",
        type=FiniteRange(min=0, min_open=True),
        default=TIMEOUT_S,
        show_default=True,
        help="Seconds for a whole answer, waiting included.",
    ),
    cloup.option(
        "--max-body",
        type=FiniteRange(0, MIB_MAX, min_open=True),
        default=N_BYTES / MIB,
        show_default=True,
        help="MiB of a request at most.",
    ),
    cloup.option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        help=f"File with the key that requests need.  [default: ${KEY_VARIABLE}, or none]",
    ),
    cloup.option(
        "--cors",
        metavar="ORIGIN",
        multiple=True,
        callback=_origins,
        help="Web pages that may ask, like https://example.org; may be given several times.",
    ),
    cloup.option(
        "--alias",
        callback=_alias,
        help="Name of the model in answers.  [default: its file's]",
    ),
    chat_template_option,
    cloup.option(
        "--grace",
        type=FiniteRange(min=0),
        default=GRACE_S,
        show_default=True,
        help="Seconds to finish answers when the server is told to end.",
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
    """Answer OpenAI's clients, several at once, and show a page at /.

    Every answer is the one that the model gives alone. Requests may say how they are drafted, see
    docs/serving.md. SIGTERM and Ctrl-C finish what there is and end.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".

    \b
    pyselfspec serve model.gguf
    pyselfspec serve model.gguf --port 8000 --slots 8 --draft ngram
    """
    try:
        from ..serve import server
        from ..serve.jobs import Drafting
        from ..speculate.together import warning_of
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"{error.name} is not installed: pip install 'pyselfspec[serve]'"
        ) from None
    if draft_from(options) is None and describes_mask(options):
        raise click.UsageError("--draft off drafts nothing, so it takes no mask")
    controller, sampling = controller_from(options), sampling_from(options)
    key = _key(options["api_key_file"])
    template = template_from(options["template"])
    with (
        server.listening(options["host"], options["port"]) as listener,
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
        drafting = Drafting(
            draft=draft_from(options),
            options=drafter_options_from(loaded.n_layer, options),
            mask=mask_from(loaded.n_layer, options),
            profile=options["profile"] == "auto",
            controller=controller,
        )
        room = Room(ctx_size(loaded, options), options["slots"], options["queue"])
        host, port = listener.getsockname()[:2]

        def ready() -> None:
            if room.n_slots > 1 and (warning := warning_of(service.engine.context)):
                click.echo(f"Warning: {warning}; -np 1 writes one at a time", err=True)
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            if as_json:
                click.echo(json.dumps({"model": settings.name, "url": url}))
            click.echo(f"Page: {url}\nAPI:  {url}/v1, model {settings.name}", err=True)
            if key is None and not server.is_loopback(host):
                click.echo(
                    f"Warning: anyone who can reach {host}:{port} can use this server; give a key, "
                    f"with --api-key-file or ${KEY_VARIABLE}",
                    err=True,
                )
            click.echo("Ctrl-C stops the server.", err=True)

        with server.serving(
            loaded,
            settings,
            room=room,
            drafting=drafting,
            template=template,
            **context_params(options),
        ) as service:
            server.run(
                service,
                listener,
                grace_s=options["grace"],
                ready=ready,
                log_requests=_lib.is_verbose(),
            )


def _key(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    key = read_text(str(path)).strip()
    if not key:
        raise ArgumentError(f"{path} holds no key")
    return key
