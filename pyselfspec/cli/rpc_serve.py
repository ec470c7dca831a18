"""pyselfspec rpc-serve: let another machine run models on the devices of this one."""

from __future__ import annotations

import ipaddress
import signal
import socket

import click
import cloup

from ..errors import ArgumentError
from ..runtime import rpc
from ..runtime.ffi.devices import offered_devices
from ..util import paths
from ..util.machine import usable_cores
from ._machine import threads_settings
from ._options import verbose_option
from ._types import Integer

HOST = "127.0.0.1"


@cloup.command(name="rpc-serve")
@cloup.option("--host", default=HOST, help="Address to listen on.")
@cloup.option("--port", type=Integer(1, 65535), default=rpc.PORT, help="Port to listen on.")
@cloup.option("-t", "--threads", **threads_settings("Number of CPU threads."))
@cloup.option(
    "--cache",
    is_flag=True,
    help="Keep large weights in the user's cache folder, so that they are sent only once.",
)
@verbose_option
def command(host: str, port: int, threads: int | None, cache: bool) -> None:
    """Let another machine run models on this one.

    Offers the GPUs of this machine, or its CPU if it has none. On the other machine, give
    --rpc HOST:PORT to any command that loads a model. Serves one command at a time.

    There is no password and no encryption: anyone who can reach the port can use this process,
    crash it, and read the data. Listen only on networks that you trust.

    \b
    pyselfspec rpc-serve --host 192.168.1.7
    """
    try:
        address = socket.gethostbyname(host)
    except OSError:
        raise ArgumentError(
            f"--host {host} is not an address of this machine; give one, or 127.0.0.1"
        ) from None
    folder = paths.cache("rpc") if cache else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    devices = ", ".join(offered_devices())
    click.echo(f"serving {devices} at {address}:{port}; Ctrl-C stops the server", err=True)
    if not ipaddress.ip_address(address).is_loopback:
        click.echo(
            f"Warning: anyone who can reach {address}:{port} can use this process; listen only on "
            "networks that you trust",
            err=True,
        )
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # C code does not return to Python
    cached = None if folder is None else str(folder)
    try:
        rpc.serve(address, port, threads or usable_cores(), cached)
    except OSError as error:
        raise ArgumentError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port"
        ) from error
