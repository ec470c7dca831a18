"""pyselfspec serve: a server with the APIs of OpenAI and Anthropic, for one model or several."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from types import ModuleType
from typing import Any

import click
import cloup

from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.embedding import is_embedder
from ..runtime.ffi import load
from ..runtime.model import Model
from ..serve.settings import (
    CACHE_BYTES,
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
from ..speculate.batching import warning_of
from ..util import memory
from ._drafting import check_drafting, config_from, draft_options
from ._keys import KEY_VARIABLE, key_options, keys_from
from ._options import (
    chat_template_option,
    common_options,
    context_options,
    context_params,
    ctx_size,
    model_argument,
    model_params,
    open_model,
    template_from,
)
from ._sampling import sampling_from, sampling_options
from ._types import FILE, FOLDER, Integer, Number

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
    *key_options,
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
    cloup.option(
        "--model",
        "models",
        metavar="NAME=PATH",
        multiple=True,
        help="Serve this model under a name, loaded when a request asks for it; repeatable, in "
        "place of MODEL.",
    ),
    cloup.option(
        "--models-dir",
        type=FOLDER,
        help="Serve the GGUF files of this folder in the same way, by their names.",
    ),
    cloup.option(
        "--max-memory",
        type=Number(0, min_open=True),
        help="GiB that loaded models may take together, by estimate; the least recently used are "
        "unloaded first.  [default: what is free at the start]",
    ),
    cloup.option(
        "--keep-alive",
        type=Number(0),
        help="Seconds that such a model stays loaded after its last answer.  [default: until "
        "others need its memory]",
    ),
    cloup.option("--with-parent", is_flag=True, hidden=True),  # ends when stdin is closed
    chat_template_option,
    cloup.option(
        "--pooling",
        type=click.Choice(["none", "mean", "cls", "last", "rank"]),
        help="Serve embeddings, or with rank scores, made from the rows of a text in this way.  "
        "[default: as the model's file says, if it is made for them]",
    ),
    cloup.option(
        "--cache-ram",
        type=Number(0),
        default=CACHE_BYTES / MIB,
        help="MiB of memory for texts that the context has no room for, so that prompts which go "
        "on from them are not read again; 0 for none.",
    ),
    cloup.option(
        "--cache-dir",
        type=FOLDER,
        help="Folder in which such texts are kept for later runs with the same model.",
    ),
    cloup.option(
        "--slot-save-path",
        type=FOLDER,
        help="Folder in which clients may save the texts of slots, with POST /slots/{id}.",
    ),
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
    """Serve OpenAI's and Anthropic's APIs, with a page at /.

    Programs for chat completions, responses or messages use it as they are, see docs/clients.md.
    Several requests are answered at once, each with the text that it would get alone. Requests can
    choose the drafter, see docs/serving.md.

    \b
    pyselfspec serve model.gguf
    pyselfspec serve model.gguf --port 8000 --slots 8 --draft ngram
    pyselfspec serve --model small=a.gguf --model large=b.gguf
    """
    try:
        from ..serve import server
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"{error.name} is not installed: pip install 'pyselfspec[serve]'"
        ) from None
    check_drafting(options)
    if options["models"] or options["models_dir"]:
        _require_no_model(click.get_current_context())
        _serve_several(options, as_json=as_json)
        return
    if options["with_parent"]:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    sampling = sampling_from(options)
    keys = keys_from(options["api_key_file"])
    template_from(options["template"])  # its errors come before the model is loaded
    with (
        server.open_listener(options["host"], options["port"]) as listener,
        open_model(model, **model_params(options)) as loaded,
    ):
        settings = Settings(
            name=options["alias"] or loaded.path.stem,
            keys=keys,
            origins=options["cors"],
            timeout_s=options["timeout"],
            n_bytes=round(options["max_body"] * MIB),
            sampling=sampling,
        )
        capacity = Capacity(
            ctx_size(loaded, options),
            options["slots"],
            options["queue"],
            round(options["cache_ram"] * MIB),
            options["cache_dir"],
            options["slot_save_path"],
        )
        opened = _open(server, loaded, settings, capacity, options)
        with opened as service:

            def ready() -> None:
                host, port = listener.getsockname()[:2]
                context = service.engine.context
                if isinstance(context, Context) and (warning := _warning(capacity, context)):
                    click.echo(f"Warning: {warning}", err=True)
                is_open = not keys and not server.is_loopback(host)
                _announce(host, port, settings.name, is_open=is_open, as_json=as_json)

            server.run(
                service,
                listener,
                grace_s=options["grace"],
                ready=ready,
                log_requests=load.is_verbose(),
            )


def _require_no_model(command: click.Context) -> None:
    """Raise UsageError where a model is given beside those of --model or --models-dir."""
    if command.get_parameter_source("model") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(
            f"{command.params['model']} is given beside --model or --models-dir; name it as "
            "--model NAME=PATH"
        )


def _serve_several(options: dict[str, Any], *, as_json: bool) -> None:
    """Serve several models, each in a process of its own."""
    from ..serve import server
    from ..serve.router.models import listed
    from ..serve.router.server import make_server

    most, free = options["max_memory"], memory.available()
    keys = keys_from(options["api_key_file"])
    found = listed(options["models"], options["models_dir"], options["ctx_size"], options["slots"])
    settings = Settings(
        name=found[0].name,
        keys=keys,
        origins=options["cors"],
        timeout_s=options["timeout"],
        n_bytes=round(options["max_body"] * MIB),
    )
    with server.open_listener(options["host"], options["port"]) as listener:
        host, port = listener.getsockname()[:2]

        def ready() -> None:
            is_open = not keys and not server.is_loopback(host)
            names = ", ".join(each.name for each in found)
            _announce(host, port, names, is_open=is_open, as_json=as_json)

        with suppress(KeyboardInterrupt):
            make_server(
                found,
                _options_of_all(sys.argv),
                settings,
                listener,
                max_bytes=free if most is None else round(most * 1024 * MIB),
                keep_s=options["keep_alive"],
                grace_s=options["grace"],
                ready=ready,
            ).run(sockets=[listener])


def _options_of_all(argv: Sequence[str]) -> list[str]:
    """Return the options of this command that the processes of all models get too."""
    own = {"--model", "--models-dir", "--max-memory", "--keep-alive", "--host", "--port"}
    own |= {"--alias", "--cors"}
    given = iter(argv[argv.index("serve") + 1 :] if "serve" in argv else ())
    kept = []
    for each in given:
        name, sign, _ = each.partition("=")
        if name in own:
            if not sign:
                next(given, None)
        elif each != "--json":
            kept.append(each)
    return kept


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, or has closed our stdin."""
    while sys.stdin.buffer.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _open(
    server: ModuleType,
    model: Model,
    settings: Settings,
    capacity: Capacity,
    options: dict[str, Any],
) -> AbstractContextManager[Any]:
    """Return the service of a model, for a with block: of embeddings where it was made for them, or
    where the command asks for them."""
    if options["pooling"] is not None or is_embedder(model):
        return server.open_embedding_service(  # type: ignore[no-any-return]
            model,
            settings,
            capacity=capacity,
            n_threads=options["threads"],
            pooling=options["pooling"],
        )
    return server.open_service(  # type: ignore[no-any-return]
        model,
        settings,
        capacity=capacity,
        drafting=config_from(model.n_layer, options),
        template=template_from(options["template"]),
        mmproj=options["mmproj"],
        **context_params(options),
    )


def _warning(capacity: Capacity, context: Context) -> str | None:
    """Return why several slots may change the texts of each other, None if they do not."""
    found = warning_of(context) if capacity.n_slots > 1 else None
    return found and f"{found}; -np 1 answers one request at a time"


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
