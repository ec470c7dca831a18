"""Devices of other machines, through servers of ggml's RPC backend.

llama.cpp ends the process when a server does not reply or speaks another version of the protocol,
so servers are probed here first.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..errors import ArgumentError, UnsupportedError
from .ffi.devices import remote_devices, rpc_serve

PORT = 50052  # llama.cpp's own
N_SERVERS_MAX = 16  # GGML_RPC_MAX_SERVERS
PROTOCOL = (7, 0)  # RPC_PROTO_MAJOR_VERSION and _MINOR_
REPLY_S = 5.0  # seconds to wait for a reply
_SERVER = re.compile(r"(?P<host>[\w.-]+):(?P<port>\d{1,5})")
_HELLO, _N_CAPS = 14, 24  # RPC_CMD_HELLO, RPC_CONN_CAPS_SIZE

_changing = threading.Lock()
_in_use: Counter[str] = Counter()  # models of this process by server


def parse(server: str) -> tuple[str, int]:
    """Return the host and port of "host:port". Raises ArgumentError for other text."""
    match = _SERVER.fullmatch(server)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise ArgumentError(f"{server!r} is not HOST:PORT; give e.g. 192.168.1.7:{PORT}")
    return match["host"], int(match["port"])


@contextmanager
def connected(servers: Sequence[str]) -> Iterator[list[int]]:
    """Yield the addresses of all devices of these servers, for one model.

    Raises ArgumentError for malformed or repeated servers, UnsupportedError for a server that does
    not reply, is busy or speaks another version of the protocol.
    """
    for server in servers:
        parse(server)
    if len(set(servers)) < len(servers) or len(servers) > N_SERVERS_MAX:
        raise ArgumentError(
            f"give at most {N_SERVERS_MAX} servers, each named once, got {', '.join(servers)}"
        )
    with _changing:
        for server in servers:
            if not _in_use[server]:  # a server of ours is busy
                _require_reply(server)
        devices = [device for server in servers for device in remote_devices(server)]
        _in_use.update(servers)
    try:
        yield devices
    finally:
        with _changing:
            _in_use.subtract(servers)


def version(server: str) -> tuple[int, int]:
    """Return the version of the protocol that a server speaks. Raises OSError without a reply."""
    with socket.create_connection(parse(server), timeout=REPLY_S) as connection:
        connection.sendall(struct.pack(f"<BQ{_N_CAPS}x", _HELLO, _N_CAPS))
        with connection.makefile("rb") as reply:
            (n_bytes,) = struct.unpack("<Q", reply.read(8).ljust(8, b"\0"))
            if n_bytes != 4 + _N_CAPS:
                raise ConnectionError("the reply is not that of an RPC server")
            major, minor = reply.read(n_bytes)[:2]
    return major, minor


def _require_reply(server: str) -> None:
    try:
        found = version(server)
    except TimeoutError:
        raise UnsupportedError(
            f"the server {server} does not reply; it serves one program at a time, and "
            "another may be using it"
        ) from None
    except (OSError, ValueError) as error:
        raise UnsupportedError(
            f"the server {server} cannot be used: {error}; start one there with: pyselfspec "
            "rpc-serve"
        ) from None
    if found[0] != PROTOCOL[0] or found[1] > PROTOCOL[1]:
        ours, theirs = (".".join(map(str, each)) for each in (PROTOCOL, found))
        raise UnsupportedError(
            f"the server {server} speaks version {theirs} of the protocol, not {ours}: use the "
            "same version of pyselfspec on both machines"
        )


def serve(host: str, port: int, n_threads: int, cache: str | None) -> None:
    """Serve this machine's GPUs, or its CPU where it has none, until the process ends.

    host: a numeric IPv4 address. cache: a folder that keeps large weights for the next time.
    Raises OSError when the port cannot be listened on.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        with suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
    rpc_serve(f"{host}:{port}", n_threads, cache)
    raise OSError("the server did not start")
