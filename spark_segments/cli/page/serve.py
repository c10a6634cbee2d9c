"""`segments page`: the page of a log directory and a browser for its records, served to this machine alone.

It only reads. A request that names another host is refused, so that no site in a browser can reach it by a name of its
own (DNS rebinding); no page may be framed, and scripts run by their hash alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from spark_segments.cli.command_options import ConfiguredLogOptions, option, with_options
from spark_segments.cli.interrupts import until_interrupted
from spark_segments.cli.jobs.explain import explained
from spark_segments.cli.page.browse import MOST_TOGETHER, WHOLE_BYTES, RowFilter, browse, cursor_of
from spark_segments.cli.page.log_state import (
    TOPICS_A_PAGE,
    Begin,
    TopicsShown,
    growth,
    largest,
    log_warnings,
    read_topics,
    sizes_now,
)
from spark_segments.cli.page.record_pages import error_page, explain_page, record_page, records_page
from spark_segments.cli.page.render import page as front_page
from spark_segments.cli.page.render import script_hash, topics_page
from spark_segments.cli.page.topic_table import TopicLines
from spark_segments.cli.records.value_text import FormatOptions, guessed
from spark_segments.errors import InvalidOptionError, SegmentsError, UnknownTopicError, ValueFormatError
from spark_segments.quantities import moment, moment_ms, wall_ms

if TYPE_CHECKING:
    from spark_segments.face.history import Size
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Snapshot

LOOPBACK = "127.0.0.1"
REQUESTS_AT_A_TIME = 4
MOST_FIELDS = 20
"""Of a query."""
_NAMES = (LOOPBACK, "localhost")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
PARTITIONS_BESIDE_A_TABLE = 100
"""Up to so many partitions stand on the first page, below the table of topics; more have a page for each topic."""
HOUR_MS = 3_600_000
_GUESSES = 1000  # topics whose guessed formats are remembered


@with_options
def page(
    location: ConfiguredLogOptions,
    values: FormatOptions,
    port: int = option("The port; 0 takes any that is free.", default=8765, min=0, max=65535),
) -> None:
    """Serves the page of a log directory, always current, with a browser for its records.

    It listens on 127.0.0.1 and only reads. Everybody with an account on this
    machine can open it. Ctrl-C ends it.

    Values are shown as text, as JSON, or decoded where a schema is known:
    by --value-format, or guessed from the first records of a topic.

    Example: segments page /data/log --port 8765
    """
    with server(location.open(), port, values.of_values()) as http_server:
        print(f"Serving {location.log_dir} at http://{LOOPBACK}:{http_server.server_port}/ until Ctrl-C", flush=True)
        with until_interrupted():
            http_server.serve_forever()
        print("Ended.")


def server(log: LogDir, port: int, formats: Mapping[str, str] | None = None) -> ThreadingHTTPServer:
    """The server, bound to a port of 127.0.0.1 (0: any), not serving yet. Raises InvalidOptionError for a port
    that cannot be had.
    """
    pages = Pages(log, dict(formats or {}), TopicLines(log))
    pages.warm()

    class Bound(_Handler):
        pages_of = pages

    try:
        http_server = ThreadingHTTPServer((LOOPBACK, port), Bound)
    except OSError as error:
        raise InvalidOptionError(
            f"Port {port} of {LOOPBACK} cannot be had ({error.strerror})", hint="--port 0 takes any that is free"
        ) from None
    http_server.daemon_threads = True
    return http_server


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    status: HTTPStatus
    text: str
    policy: str = _POLICY


@dataclass(slots=True)
class Pages:
    """The pages of a log directory, by path and query. Between requests guesses of formats are kept, and by the version
    of their topics lines of the table and growth.
    """

    log: LogDir
    formats: dict[str, str]
    table: TopicLines
    _guesses: dict[str, tuple[dict[str, str], list[str]]] = field(default_factory=dict)
    _grown: tuple[set[tuple[str, int]], dict[str, list[Size]]] | None = None
    _guessing: Lock = field(default_factory=Lock)

    def warm(self) -> None:
        """Makes the first page and a page of a topic: no request waits for kernels, or for all lines of the table. An
        error is left to requests.
        """
        with contextlib.suppress(SegmentsError, OSError):
            self._front({})
            for topic in self.log.directories()[:TOPICS_A_PAGE]:
                try:
                    offsets = self.log.topic(topic).offsets()
                except UnknownTopicError:
                    continue  # it was deleted
                if any(start < end for start, end in offsets.values()):
                    self._records({"topic": topic, "partition": str(min(offsets))})
                    return

    def answer_to(self, target: str) -> Answer:
        """The page of a request's target, which may be any text."""
        try:
            parts = urlsplit(target)
            fields = parse_qs(parts.query, max_num_fields=MOST_FIELDS)
        except ValueError as error:  # of an address that is none, or too many fields
            return Answer(HTTPStatus.BAD_REQUEST, error_page("This is no address of the page", str(error)))
        return self.answer(parts.path, {name: values[-1] for name, values in fields.items()})

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        """The page of a path, or the page of an error."""
        routes: dict[str, Callable[[Mapping[str, str]], Answer]] = {
            "/": self._front,
            "/topic": self._topic,
            "/records": self._records,
            "/record": self._record,
            "/explain": self._explain,
        }
        route = routes.get(path)
        if route is None:
            return Answer(HTTPStatus.NOT_FOUND, error_page("Not found", "There is no such page."))
        try:
            return route(query)
        except UnknownTopicError as error:
            return Answer(HTTPStatus.NOT_FOUND, error_page("Not found", str(error)))
        except InvalidOptionError as error:
            return Answer(HTTPStatus.BAD_REQUEST, error_page("This cannot be shown", str(error)))
        except (SegmentsError, OSError) as error:
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, error_page("This cannot be read", str(error)))

    def _front(self, query: Mapping[str, str]) -> Answer:
        """The table of topics, with all their partitions where these are few."""
        now_ms = wall_ms()
        shown, lines = self.table.read(Begin(query.get("topic", "")), now_ms)
        if shown.is_all and sum(line.partitions for line in lines) <= PARTITIONS_BESIDE_A_TABLE:
            return self._strips(shown, now_ms)
        sizes = {line.topic: line.size_bytes for line in lines}
        return _scripted(topics_page(self.log.uri, lines, now_ms, **self._state(shown, now_ms, sizes)))

    def _topic(self, query: Mapping[str, str]) -> Answer:
        """The partitions of a topic, from a partition on."""
        name = _topic(query)
        first = _number(query, "partition", 0)
        snapshot = self.log.topic(name).snapshot  # raises UnknownTopicError
        if first:
            snapshot.check_partition(first)
        shown = read_topics(self.log, Begin(name, first), most_topics=1)
        if shown.next is not None and shown.next.topic != name:
            shown = dataclasses.replace(shown, next=None)
        return self._strips(shown, wall_ms())

    def _strips(self, shown: TopicsShown, now_ms: int) -> Answer:
        return _scripted(
            front_page(
                self.log.uri,
                shown.topics,
                now_ms,
                served=True,
                **self._state(shown, now_ms, sizes_now(snapshot for snapshot, _ in shown.topics)),
            )
        )

    def _state(self, shown: TopicsShown, now_ms: int, log_bytes: Mapping[str, int]) -> dict[str, Any]:
        """What a page says of the log directory besides topics."""
        snapshots = [snapshot for snapshot, _ in shown.topics]
        warnings, lags = log_warnings(self.log, snapshots, now_ms)
        return {
            "kafka": self.log.is_kafka,
            "warnings": [*warnings, *shown.unreadable],
            "lags": lags,
            "grown": self._growth(snapshots, log_bytes),
            "part": None if shown.is_all else shown,
        }

    def _growth(self, snapshots: Sequence[Snapshot], log_bytes: Mapping[str, int]) -> dict[str, list[Size]]:
        """As `growth`, read once for the versions of the largest topics: earlier versions open slowly."""
        names = set(largest(log_bytes))
        versions = {(topic.topic_id, topic.version) for topic in snapshots if topic.topic in names}
        if self._grown is None or self._grown[0] != versions:
            self._grown = (versions, growth(self.log, log_bytes))
        return self._grown[1]

    def _records(self, query: Mapping[str, str]) -> Answer:
        topic = _topic(query)
        time = query.get("time", "").strip()
        # A time says more: the page of a record fills in its offset.
        offset = "" if time else query.get("offset", "").strip()
        notes: list[str] = []
        partition = self._partition(topic, query, offset, notes)
        until_ms = moment_ms(time) if time else None
        if until_ms is not None:
            notes.append(f"Up to {moment(until_ms)}.")
        selection: dict[str, Any] = {"until_ms": until_ms, "only": _row_filter(query)}
        if offset and partition is not None:
            selection["before"] = {partition: _number(query, "offset") + 1}
        selection |= {name: cursor_of(query[name]) for name in ("before", "after") if query.get(name)}
        formats = self._formats(topic, notes)
        try:
            page = browse(self.log, topic, partition, formats=formats, **selection)
        except ValueFormatError as error:
            notes.append(f"Shown as bytes: {error}")
            page = browse(self.log, topic, partition, **selection)
        text = records_page(self.log.uri, page, wall_ms(), notes, {"offset": offset, "time": time})
        policy = f"{_POLICY}; connect-src 'self'; script-src '{script_hash('records.js')}'"
        return Answer(HTTPStatus.OK, text, policy)

    def _partition(self, topic: str, query: Mapping[str, str], offset: str, notes: list[str]) -> int | None:
        """The partition of a list of records; None where all are shown together. Where the query has none, an offset
        and a topic of very many partitions need one: the first, and `notes` say so.
        """
        partition = _number(query, "partition") if query.get("partition", "").strip() else None
        numbers = self.log.topic(topic).offsets()
        can_be_together = 1 < len(numbers) <= MOST_TOGETHER and not offset
        if partition is not None or can_be_together:
            return partition
        first = min(numbers)
        if offset and len(numbers) > 1:
            notes.append(f"An offset is of one partition, here of {first}.")
        return first

    def _record(self, query: Mapping[str, str]) -> Answer:
        topic = _topic(query)
        partition = _number(query, "partition", 0)
        offset = _number(query, "offset")
        selection: dict[str, Any] = {
            "after": {partition: offset},
            "most_records": 1,
            "shown_bytes": (WHOLE_BYTES, WHOLE_BYTES),
        }
        try:
            page = browse(self.log, topic, partition, formats=self._formats(topic, []), **selection)
        except ValueFormatError:
            page = browse(self.log, topic, partition, **selection)
        if not page.rows or page.rows[0].offset != offset:
            start, end = page.bounds[partition]
            log_ends = f"the log is from {start:,} to {end:,} (exclusive)"
            text = f"{topic}-{partition} has no record at offset {offset:,}: {log_ends}."
            return Answer(HTTPStatus.NOT_FOUND, error_page("Not found", text, topic, partition))
        return Answer(HTTPStatus.OK, record_page(self.log.uri, page, wall_ms(), kafka=self.log.is_kafka))

    def _explain(self, query: Mapping[str, str]) -> Answer:
        """What `segments explain` says of a record."""
        topic = _topic(query)
        partition = _number(query, "partition", 0)
        offset = _number(query, "offset")
        _, text = explained(self.log.topic(topic), partition, offset, None, (), every_ms=HOUR_MS)
        return Answer(HTTPStatus.OK, explain_page(topic, partition, offset, text))

    def _formats(self, topic: str, notes: list[str]) -> dict[str, str]:
        """The formats that were given, with guesses for the others, which `notes` then name."""
        with self._guessing:
            if topic not in self._guesses:
                if len(self._guesses) >= _GUESSES:
                    self._guesses.clear()
                guess = guessed(self.log, topic, self.formats)
                if not any(start < end for start, end in self.log.topic(topic).offsets().values()):
                    return guess[0]  # nothing to guess from yet
                self._guesses[topic] = guess
            formats, guess_notes = self._guesses[topic]
        notes += guess_notes
        return formats


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; every other method is refused by the base class."""

    pages_of: Pages
    server_version = "segments"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30
    _free = BoundedSemaphore(REQUESTS_AT_A_TIME)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: paths have topics and offsets, and the terminal is the user's."""

    def _answer(self, *, body: bool) -> None:
        if not self._is_for_us():
            answer = Answer(HTTPStatus.FORBIDDEN, error_page("Refused", f"This server is {LOOPBACK} alone."))
        else:
            with self._free:
                answer = self.pages_of.answer_to(self.path)
        data = answer.text.encode(errors="replace")
        self.send_response(answer.status)
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(data)),
            "Content-Security-Policy": answer.policy,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _is_for_us(self) -> bool:
        """Whether the Host header names this server: a page of another name that leads here must not read it."""
        hosts = self.headers.get_all("Host") or []
        name, _, port = (hosts[0] if len(hosts) == 1 else "").partition(":")
        ours = self.server.server_port  # type: ignore[attr-defined]
        return name.lower() in _NAMES and port in (str(ours), "" if ours == 80 else "-")


def _scripted(text: str) -> Answer:
    return Answer(HTTPStatus.OK, text, f"{_POLICY}; script-src '{script_hash()}'")


def _row_filter(query: Mapping[str, str]) -> RowFilter:
    row_filter = RowFilter(query.get("find", ""), query.get("field", "").strip(), query.get("key", ""))
    if row_filter.field and "=" not in row_filter.field:
        raise InvalidOptionError(
            "This is no field with its text", expected="user.city=Berlin", found=row_filter.field[:40]
        )
    return row_filter


def _topic(query: Mapping[str, str]) -> str:
    if "topic" not in query:
        raise InvalidOptionError("Which topic?", expected="topic=…", found="none")
    return query["topic"]


def _number(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = query.get(name, "" if default is None else str(default)).strip().replace(",", "")
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidOptionError(f"The {name} is no number", expected="digits", found=text[:40])
    return min(int(text), 2**63 - 1)
