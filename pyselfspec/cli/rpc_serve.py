"""pyselfspec rpc-serve: lend this machine to a model on another one."""

from __future__ import annotations

import ipaddress
import signal
import socket

import click
import cloup

from ..errors import ArgumentError
from ..runtime import rpc
from ..runtime._lib import lent_devices
from ..runtime.context import N_THREADS_MAX
from ..util import paths
from ..util.machine import usable_cores
from ._options import verbose_option

HOST = "127.0.0.1"


@cloup.command(name="rpc-serve")
@cloup.option("--host", default=HOST, show_default=True, help="Address to listen on.")
@cloup.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=rpc.PORT,
    show_default=True,
    help="Port to listen on.",
)
@cloup.option(
    "-t",
    "--threads",
    type=click.IntRange(1, N_THREADS_MAX),
    help="CPU threads.  [default: all cores]",
)
@cloup.option(
    "--cache", is_flag=True, help="Keep large weights on disk, so that they travel only once."
)
@verbose_option
def command(host: str, port: int, threads: int | None, cache: bool) -> None:
    """Lend this machine's GPUs, or its CPU, to a model elsewhere.

    There, give --rpc HOST:PORT to any command that loads a model. One program is served at a time.

    Whoever reaches the port can use and crash this process, and read what passes through: there is
    no password and no encryption. Listen on networks that you trust only.

    \b
    pyselfspec rpc-serve --host 192.168.1.7
    """
    address = _address(host)
    folder = paths.cache("rpc") if cache else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    devices = ", ".join(lent_devices())
    click.echo(f"lending {devices} at {address}:{port}; Ctrl-C ends it", err=True)
    if not ipaddress.ip_address(address).is_loopback:
        click.echo(
            f"Warning: whoever reaches {address}:{port} can use this process; open it on networks "
            "that you trust only",
            err=True,
        )
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # C never comes back to Python
    cached = None if folder is None else str(folder)
    try:
        rpc.serve(address, port, threads or usable_cores(), cached)
    except OSError as error:
        raise ArgumentError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}; give another --port"
        ) from error


def _address(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        raise ArgumentError(f"--host {host} is no address of this machine") from None
