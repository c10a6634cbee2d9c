"""A small schema registry over loopback, with the part of Confluent's REST API that its clients use."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RegistryServer:
    """Schemas in memory. `user_info` is asked for where it is set; `records` are those of the topic _schemas."""

    def __init__(self, user_info: str | None = None) -> None:
        self.user_info = user_info
        self.contexts: dict[str, dict[int, dict[str, Any]]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.records: list[tuple[bytes, bytes]] = []
        self.failures = 0  # answers of 503 before the next right one
        self.requests = 0
        self._lock = threading.Lock()

    def register(self, subject: str, body: dict[str, Any]) -> int:
        with self._lock:
            kept = _kept(body)
            schemas = self.in_context(subject)
            schema_id = next((number for number, known in schemas.items() if known == kept), len(schemas) + 1)
            schemas[schema_id] = kept
            versions = self.subjects.setdefault(subject, [])
            if schema_id not in versions:
                versions.append(schema_id)
                key = {"keytype": "SCHEMA", "subject": subject, "version": len(versions), "magic": 1}
                value = {"subject": subject, "version": len(versions), "id": schema_id, **kept, "deleted": False}
                self.records.append((json.dumps(key).encode(), json.dumps(value).encode()))
            return schema_id

    def in_context(self, subject: str) -> dict[int, dict[str, Any]]:
        """The schemas by id in the context of a subject, such as `:.west:orders-value`."""
        return self.contexts.setdefault(subject.split(":")[1] if subject.startswith(":.") else "", {})

    def version(self, subject: str, version: int) -> dict[str, Any]:
        schema_id = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": schema_id, **self.in_context(subject)[schema_id]}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """The reply's JSON; KeyError and IndexError stand for 404."""
        path, _, query = path.partition("?")
        path = urllib.parse.unquote(path)
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            subject = dict(urllib.parse.parse_qsl(query)).get("subject", "")
            return self.in_context(subject)[int(found[1])]
        if found := re.fullmatch(r"/schemas/guids/([0-9a-f-]{36})", path):  # its answer has no id
            schemas = (schema for schemas in self.contexts.values() for schema in schemas.values())
            return {guid: schema for schema in schemas if (guid := schema["guid"])}[found[1]]
        if path == "/subjects":
            return sorted(self.subjects)
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\w+)", path):
            last = len(self.subjects[found[1]])
            return self.version(found[1], last if found[2] == "latest" else int(found[2]))
        if found := re.fullmatch(r"/subjects/([^/]+)/versions", path):
            if method == "POST":
                schema_id = self.register(found[1], body)
                return {"id": schema_id, "guid": self.in_context(found[1])[schema_id]["guid"]}
            return list(range(1, len(self.subjects[found[1]]) + 1))
        if found := re.fullmatch(r"/subjects/([^/]+)", path):  # is this schema registered?
            kept = _kept(body)
            for version, schema_id in enumerate(self.subjects[found[1]], 1):
                if self.in_context(found[1])[schema_id] == kept:
                    return self.version(found[1], version)
        raise KeyError(path)

    @contextmanager
    def running(self) -> Iterator[str]:
        """The address, while it runs."""
        connections: list[socket.socket] = []
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, connections))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
            for one in connections:  # of clients that keep them
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


def _kept(body: dict[str, Any]) -> dict[str, Any]:
    kept = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
    if kept.get("schemaType") == "AVRO":
        del kept["schemaType"]
    return {**kept, "guid": str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(kept, sort_keys=True)))}


def _handler(registry: RegistryServer, connections: list[socket.socket]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            registry.requests += 1
            wanted = registry.user_info and "Basic " + base64.b64encode(registry.user_info.encode()).decode()
            if registry.failures:
                registry.failures -= 1
                self._send(503, {"error_code": 503, "message": "not yet"})
            elif wanted and self.headers.get("Authorization") != wanted:
                self._send(401, {"error_code": 401, "message": "Unauthorized"})
            else:
                try:
                    self._send(200, registry.answer(self.command, self.path, body))
                except (KeyError, IndexError):
                    self._send(404, {"error_code": 40401, "message": "not found"})

        do_GET = do_POST = do_PUT = _answer

        def _send(self, code: int, value: Any) -> None:
            text = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
