"""Forwards a request to the server of a model, and its response back, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import h11
from starlette.requests import Request

N_READ = 1 << 16
# Headers of a connection, not of what it carries.
OWN = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"host", b"expect"}
)


class Forwarded:
    """A response of the other server. Use `open`, then `pieces`, and close it in any case.

    Raises OSError where the other server cannot be reached, h11.RemoteProtocolError where it ends
    before its response does.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._http = h11.Connection(h11.CLIENT)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, request: Request, body: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Send a request; return status and headers of the response."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        headers = [(k, v) for k, v in request.scope["headers"] if k.lower() not in OWN]
        headers += [(b"host", b"127.0.0.1"), (b"content-length", str(len(body)).encode())]
        target = request.scope["raw_path"]
        if query := request.scope["query_string"]:
            target += b"?" + query
        sent = h11.Request(method=request.method, target=target, headers=headers)
        for part in (sent, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(part) or b"")
        await self._writer.drain()
        while not isinstance(event := await self._next(), h11.Response):
            pass
        return event.status_code, [(k, v) for k, v in event.headers if k.lower() not in OWN]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def _next(self) -> object:
        assert self._reader is not None
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(N_READ))
        return event

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
