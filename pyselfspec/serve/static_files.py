"""The page at /: static files, with headers that forbid scripts and styles from elsewhere.

The page gets all its data from the API.
"""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # the browser revalidates, so an upgrade shows at once
}


class Page(StaticFiles):
    """An ASGI app that serves the page's files; mount it at / after all routes of the API.

    paths: request paths of its files; no other path reaches the disk.
    """

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, html=True)
        names = (file.relative_to(FOLDER) for file in FOLDER.rglob("*") if file.is_file())
        self.paths = frozenset({"/", *(f"/{name.as_posix()}" for name in names)})

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
