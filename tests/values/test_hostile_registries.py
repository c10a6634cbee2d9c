"""Registries that answer nonsense, slowly, endlessly or from elsewhere: one RegistryError, no credentials given away.

The servers are sockets of this test: they send the bytes that a case has, whatever was asked.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_segments.errors import InvalidOptionError, RegistryError
from spark_segments.values.registries import open_registry
from spark_segments.values.registries.registry import RecordsRegistry, Schema
from verification.world.small_limits import Limits

SECRET = "user:correct-horse-battery"


class Server:
    """A server of raw bytes. `requests`: what clients sent, headers and all."""

    def __init__(self, reply: Callable[[socket.socket, str], None]) -> None:
        self.requests: list[str] = []
        self._reply = reply

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        listening = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=self._serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            thread.join()

    def _serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            request = b""
            while b"\r\n\r\n" not in request:
                piece = connection.recv(65536)
                if not piece:
                    return
                request += piece
            self.requests.append(request.decode())
            self._reply(connection, request.decode().split()[1])


def of_bytes(data: bytes) -> Server:
    return Server(lambda connection, path: connection.sendall(data))


def of_body(body: bytes, status: str = "200 OK") -> Server:
    return of_bytes(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body))


@pytest.fixture(autouse=True)
def hurried(limits: Limits) -> None:
    limits(REGISTRY_WAIT_SECONDS=0.001)


NONSENSE = {
    "nothing": b"",
    "a page": b"<html>Welcome to the proxy</html>",
    "a number": b"7",
    "null": b"null",
    "a text": b'"schema"',
    "a list": b"[]",
    "no schema": b"{}",
    "a schema that is no text": b'{"schema": 7}',
    "a kind that nobody knows": b'{"schema": "x", "schemaType": "XML"}',
    "references that are none": b'{"schema": "x", "references": [7]}',
    "a reference without a version": b'{"schema": "x", "references": [{"name": "a", "subject": "b"}]}',
    "a reference to no name": b'{"schema": "x", "references": [{"name": 1, "subject": 2, "version": 3}]}',
    "a nest": b"[" * 200_000,
    "no UTF-8": b'{"schema": "\xff\xfe"}',
    "a number beyond all bounds": b'{"schema": "x", "id": %s}' % (b"9" * 5000),
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
def test_an_answer_that_is_nonsense_is_a_registry_error(body):
    with of_body(body).running() as address, pytest.raises(RegistryError) as caught:
        open_registry(address).schema(7)
    assert address in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"7", b'{"a": 1}', b"[1, 2]", b'[{"subject": "x"}]', b'["x"]', b'[["x"]]', b'"text"', b"true"]
)
def test_a_list_of_subjects_that_is_nonsense_is_a_registry_error(body):
    with of_body(body).running() as address, pytest.raises(RegistryError):
        open_registry(address).subjects()


@pytest.mark.parametrize("body", [b'{"id": "7"}', b'{"id": -1}', b'{"id": 4294967296}', b'{"id": true}', b"[7]", b"{}"])
def test_an_id_that_is_none_is_never_written(body):
    with of_body(body).running() as address, pytest.raises(RegistryError):
        open_registry(address).register("orders-value", Schema("AVRO", '"long"'))


BROKEN = {
    "cut before its end": b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"schema":',
    "cut in a chunk": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{"schema":',
    "cut in its head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "of no protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "empty": b"",
    "of chunks that are none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "with endless heads": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500,
    "that leads to itself": b"HTTP/1.1 302 Found\r\nLocation: /subjects\r\nContent-Length: 0\r\n\r\n",
    "that leads nowhere": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_is_broken_on_its_way_is_a_registry_error(data):
    with of_bytes(data).running() as address, pytest.raises(RegistryError):
        open_registry(address).schema(7)


def test_an_answer_that_was_cut_is_asked_for_again():
    whole = b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"schema": "\\"long\\""}'
    answers = [whole[:-9], whole[:-1], whole]
    server = Server(lambda connection, path: connection.sendall(answers.pop(0)))
    with server.running() as address:
        assert open_registry(address).schema(7).text == '"long"'
    assert len(server.requests) == 3


def test_what_a_server_refuses_is_not_asked_again():
    server = of_body(b'{"message": "no such thing"}', "422 Unprocessable")
    with server.running() as address, pytest.raises(RegistryError, match="422 no such thing"):
        open_registry(address).schema(7)
    assert len(server.requests) == 1


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"], ids=["its head", "its body"]
)
def test_an_answer_of_a_byte_now_and_then_has_a_deadline(head, limits):
    limits(REGISTRY_SECONDS=1.0)
    ended = threading.Event()

    def drip(connection: socket.socket, path: str) -> None:
        connection.sendall(head)
        while not ended.wait(0.05):
            connection.sendall(b"H")

    try:  # without a deadline this test has no end
        with Server(drip).running() as address, pytest.raises(RegistryError, match="in time"):
            open_registry(address).schema(7)
    finally:
        ended.set()


def test_an_answer_without_an_end_takes_little_memory():
    def endless(connection: socket.socket, path: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n[")
        while True:
            connection.sendall(b"[],[]," * 100_000)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Server(endless).running() as address, pytest.raises(RegistryError, match="no end"):
        open_registry(address).schema(7)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def test_credentials_follow_no_redirect_to_another_host():
    other = of_body(b'{"schema": "\\"long\\""}')
    with other.running() as elsewhere:
        redirect = f"HTTP/1.1 307 Go\r\nLocation: {elsewhere}/x\r\nContent-Length: 0\r\n\r\n".encode()
        first = of_bytes(redirect)
        with first.running() as address:
            registry = open_registry(address, {"basic.auth.user.info": SECRET})
            assert registry.schema(7).text == '"long"'
    assert "authorization: basic" in first.requests[0].lower()
    assert "authorization" not in other.requests[0].lower()


def test_a_registry_that_moved_is_named_when_it_wants_credentials():
    other = of_body(b"{}", "401 Unauthorized")
    with other.running() as elsewhere:
        redirect = f"HTTP/1.1 301 Go\r\nLocation: {elsewhere}/x\r\nContent-Length: 0\r\n\r\n".encode()
        with of_bytes(redirect).running() as address, pytest.raises(RegistryError) as caught:
            open_registry(address, {"bearer.auth.token": SECRET}).schema(7)
    assert elsewhere.removeprefix("http://") in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("token", ["a\r\nX: y", "\u20ac", "a\0b"])
def test_a_token_that_no_header_can_have_is_refused_without_being_shown(token):
    with pytest.raises(InvalidOptionError) as caught:
        open_registry("http://127.0.0.1:1", {"bearer.auth.token": SECRET + token})
    assert "correct" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["http://[", "http://", "http://u:pa/ss@host", "http://u:pass@host:port", "http://:0"]
)
def test_an_address_that_is_none_is_refused_without_being_shown(address):
    with pytest.raises(InvalidOptionError) as caught:
        open_registry(address)
    assert "pa" not in str(caught.value).replace("password", "").replace("spark", "")


SUBJECTS = [
    b"{",
    b"[]",
    b"7",
    b'{"subjects": []}',
    b'{"subjects": {"x": 7}}',
    b'{"subjects": {"x": {}}}',
    b'{"subjects": {"x": {"versions": [7]}}}',
    b'{"subjects": {"x": {"versions": {"one": 7}}}}',
    b'{"subjects": {"x": {"versions": {"1": "7"}}}}',
    b'{"subjects": {"x": {"versions": {"1": -7}}}}',
    b'{"subjects": {"x": {"versions": {"1": 7}, "compatibility": 7}}}',
    b'{"references": {"7": [{"name": "a"}]}}',
    b'{"references": [7]}',
    b"\xff",
    b"[" * 200_000,
]


@pytest.mark.parametrize("text", SUBJECTS, ids=range(len(SUBJECTS)))
@pytest.mark.parametrize(
    "use",
    [
        lambda registry: registry.subjects(),
        lambda registry: registry.schema(7),
        lambda registry: registry.version("x"),
        lambda registry: registry.register("x", Schema("AVRO", '"long"')),
    ],
    ids=["subjects", "schema", "version", "register"],
)
def test_a_broken_file_of_subjects_is_a_registry_error(tmp_path, text, use):
    (tmp_path / "subjects.json").write_bytes(text)
    (tmp_path / "7.avsc").write_text('"int"')
    with pytest.raises(RegistryError, match=r"subjects\.json"):
        use(open_registry(str(tmp_path)))
    assert (tmp_path / "subjects.json").read_bytes() == text


def test_a_schema_file_that_is_no_text_is_a_registry_error(tmp_path):
    (tmp_path / "7.avsc").write_bytes(b"\xff")
    with pytest.raises(RegistryError, match="schema 7"):
        open_registry(str(tmp_path)).schema(7)


KEY = {"keytype": "SCHEMA", "subject": "x", "version": 1}
VALUE = {"subject": "x", "version": 1, "id": 7, "schema": '"long"'}


@pytest.mark.parametrize(
    "record",
    [
        (b"{", b"{}"),
        (b"7", b"{}"),
        (json.dumps(KEY).encode(), b"["),
        (json.dumps(KEY).encode(), b"7"),
        (json.dumps(KEY).encode(), json.dumps(VALUE | {"id": "7"}).encode()),
        (json.dumps(KEY | {"version": "1"}).encode(), json.dumps(VALUE).encode()),
        (json.dumps(KEY | {"subject": [1]}).encode(), json.dumps(VALUE).encode()),
        (json.dumps(KEY | {"subject": 7}).encode(), json.dumps(VALUE).encode()),
        (b'{"keytype": "DELETE_SUBJECT", "subject": "x"}', b'{"version": "all"}'),
        (b"\xff", None),
    ],
    ids=range(10),
)
def test_a_record_of_schemas_that_is_nonsense_is_a_registry_error(record):
    good = (json.dumps(KEY).encode(), json.dumps(VALUE).encode())
    with pytest.raises(RegistryError, match="record 1 of _schemas"):
        RecordsRegistry([good, record])


@pytest.mark.proof
def test_the_http_library_is_imported_for_a_request_alone(tmp_path):
    code = (
        "import sys; from spark_segments.values.typed import open_registry; "
        "open_registry('http://127.0.0.1:1'); print('urllib3' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
