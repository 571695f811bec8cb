"""A stand-in for the Hugging Face hub: a real HTTP server with the parts of its API that ``huggingface_hub`` calls.

Repositories are folders in memory, with a commit for every upload. Small files come inside of the commit, large ones
through git LFS, as at the hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_stand_in"


@dataclass
class Repository:
    """Files by commit; the last commit is ``main``."""

    private: bool
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)

    def commit(self, files: dict[str, bytes]) -> str:
        digest = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits.append((digest, files))
        return digest

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((one for one in self.commits if one[0] == revision), None)


@dataclass
class Hub:
    """What the server holds, and what it was asked."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path).strip("/")
        self.hub.requests.append(f"{self.command} /{path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(iter(self._chunk, b""))
        self._route(path.split("/"), parse_qs(parts.query), body)

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline(), 16)
        content = self.rfile.read(size)
        self.rfile.readline()
        return content

    def _route(self, path: list[str], query: dict[str, list[str]], body: bytes) -> None:
        if path[0] != "api" and self.command in ("GET", "HEAD") and len(path) >= 5 and path[2] == "resolve":
            return self._file("/".join(path[:2]), path[3], "/".join(path[4:]))
        if path[0] == "objects":
            return self._object(path[1], body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and self.command == "POST":
            return self._send({"error": "Invalid username or password."}, status=401)
        if path == ["api", "whoami-v2"]:
            return self._send({"type": "user", "name": "someone", "orgs": [], "auth": {"type": "access_token"}})
        if path == ["api", "validate-yaml"]:
            return self._send({"errors": [], "warnings": []})
        if path == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if path[:2] == ["api", "models"] and len(path) >= 4:
            return self._model("/".join(path[2:4]), path[4:], body)
        if path[-4:] == ["info", "lfs", "objects", "batch"]:
            return self._batch(json.loads(body))
        self._send({"error": f"not in the stand-in: {self.path}"}, status=404)

    def _create(self, given: dict[str, Any]) -> None:
        name = f"{given.get('organization') or 'someone'}/{given['name']}"
        if name in self.hub.repositories:
            return self._send({"error": "You already created this model repo", "url": self._url(name)}, status=409)
        made = self.hub.repositories[name] = Repository(
            given.get("visibility") == "private" or bool(given.get("private"))
        )
        made.commit({".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
        self._send({"url": self._url(name), "name": name, "id": name})

    def _model(self, name: str, what: list[str], body: bytes) -> None:
        found = self.hub.repositories.get(name)
        if found is None or (found.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            return self._send({"error": "Repository not found"}, status=401, code="RepoNotFound")
        if what[:1] == ["preupload"]:
            files = json.loads(body)["files"]
            kinds = [
                {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular"}
                for one in files
            ]
            return self._send({"files": [{**one, "shouldIgnore": False, "oid": None} for one in kinds]})
        if what[:1] == ["commit"]:
            return self._commit(name, found, body)
        revision = what[1] if what[:1] in (["revision"], ["tree"]) else "main"
        there = found.at(revision)
        if there is None:
            return self._send({"error": "Revision not found"}, status=404, code="RevisionNotFound")
        commit, files = there
        if what[:1] == ["tree"]:
            return self._send([self._entry(path, content) for path, content in files.items()])
        siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
        about = {"_id": "0", "id": name, "modelId": name, "sha": commit, "private": found.private, "tags": []}
        self._send({**about, "siblings": siblings, "downloads": 0, "likes": 0, "usedStorage": 0})

    def _commit(self, name: str, found: Repository, body: bytes) -> None:
        files = dict(found.commits[-1][1])
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                files.pop(value["path"], None)
        commit = found.commit(files)
        self._send(
            {"success": True, "commitOid": commit, "commitUrl": f"{self._url(name)}/commit/{commit}", "hookOutput": ""}
        )

    def _batch(self, given: dict[str, Any]) -> None:
        objects = []
        for one in given["objects"]:
            upload = {"upload": {"href": f"{self.hub.address}/objects/{one['oid']}", "header": {}}}
            objects.append({**one, **({} if one["oid"] in self.hub.objects else {"actions": upload})})
        self._send({"transfer": "basic", "objects": objects}, kind="application/vnd.git-lfs+json")

    def _object(self, oid: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            return self._send({"error": "the content is not what was announced"}, status=400)
        self.hub.objects[oid] = body
        self._send({})

    def _file(self, name: str, revision: str, path: str) -> None:
        found = self.hub.repositories.get(name)
        if found is None:
            return self._send({"error": "Repository not found"}, status=401, code="RepoNotFound")
        there = found.at(revision)
        if there is None or path not in there[1]:
            return self._send({"error": "Entry not found"}, status=404, code="EntryNotFound")
        content = there[1][path]
        self.send_response(200)
        self.send_header("X-Repo-Commit", there[0])
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        return {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": path}

    def _url(self, name: str) -> str:
        return f"{self.hub.address}/{name}"

    def _send(self, answer: Any, *, status: int = 200, code: str = "", kind: str = "application/json") -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run the server at a free port of the loopback."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
