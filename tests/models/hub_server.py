"""A small hub on loopback: the routes of the Hugging Face hub that pull and search need."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_the_test"


@dataclass
class Repo:
    """card: the model card's metadata. private: for TOKEN only. gated: refused with every token."""

    files: dict[str, bytes]
    card: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False
    n_downloads: int = 0


@dataclass
class Hub:
    """cut: bytes of each file after which a connection breaks, once. lies: other bytes than the
    ones announced. gone: files that are not there any more after such a break."""

    repos: dict[str, Repo]
    url: str = ""
    cut: dict[str, int] = field(default_factory=dict)
    lies: dict[str, bytes] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range


@contextmanager
def serving(repos: dict[str, Repo]) -> Iterator[Hub]:
    hub = Hub(repos)

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        self.hub.asked.append((self.command, self.path, self.headers["Range"]))
        path, _, query = self.path.partition("?")
        if path == "/api/models":
            return self._send(json.dumps(self._found(parse_qs(query))).encode(), with_body)
        match = re.match(r"(?:/api/models)?/([\w.-]+/[\w.-]+)", path)
        repo = self.hub.repos.get(match[1]) if match else None
        known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        if repo is None or match is None or (repo.private and not known):
            self._fail(401, "RepoNotFound")
        elif path == f"/api/models/{match[1]}":
            self._send(json.dumps(_about(match[1], repo)).encode(), with_body)
        elif repo.gated:
            self._fail(403, "GatedRepo")
        elif "/tree/" in path:
            self._send(json.dumps(_tree(repo)).encode(), with_body)
        else:
            self._file(repo, path.partition("/resolve/")[2].partition("/")[2], with_body)

    def _found(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        """Answer a search in the hub's form: without files, cards and private repositories."""
        assert (query["filter"], query["sort"]) == (["gguf"], ["downloads"])
        [word] = query["search"]
        found = [
            {"id": name, "likes": 0, "downloads": repo.n_downloads, "tags": ["gguf", *_tags(repo)]}
            for name, repo in self.hub.repos.items()
            if word in name and not repo.private
        ]
        return sorted(found, key=lambda each: -each["downloads"])[: int(query["limit"][0])]

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes, with_body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _file(self, repo: Repo, name: str, with_body: bool) -> None:
        start = int((self.headers["Range"] or "bytes=0-")[len("bytes=") :].rstrip("-"))
        if name not in repo.files or (name in self.hub.gone - self.hub.cut.keys()):
            return self._fail(404, "EntryNotFound")
        announced = repo.files[name]
        body = self.hub.lies.get(name, announced) if with_body else announced
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(announced).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        if with_body:
            cut = self.hub.cut.pop(name, None)
            self.wfile.write(body[start:cut])
            self.close_connection = cut is not None


def _about(name: str, repo: Repo) -> dict[str, Any]:
    return {
        "id": name,
        "sha": COMMIT,
        "private": repo.private,
        "gated": "manual" if repo.gated else False,
        "tags": _tags(repo),
        "cardData": repo.card,
        "siblings": [
            {
                "rfilename": file,
                "size": len(content),
                "blobId": hashlib.sha1(content).hexdigest(),
                "lfs": {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 130,
                },
            }
            for file, content in repo.files.items()
        ],
    }


def _tags(repo: Repo) -> list[str]:
    return [f"license:{repo.card['license']}"] if "license" in repo.card else []


def _tree(repo: Repo) -> list[dict[str, Any]]:
    return [
        {
            "type": "file",
            "path": file,
            "size": len(content),
            "oid": hashlib.sha1(content).hexdigest(),
            "lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)},
        }
        for file, content in repo.files.items()
    ]
