"""`segments serve`: topics of a log directory for Kafka's own clients."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import logging
import os
import resource
import ssl
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_segments.cli.command_options import METRICS, ConfiguredLogOptions, flag, option, with_options
from spark_segments.cli.interrupts import until_interrupted
from spark_segments.config import parse_overrides
from spark_segments.errors import InvalidOptionError, MissingExtraError
from spark_segments.quantities import moment_ms, span_ms

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.serving.limits import Limits
    from spark_segments.kafka_protocol.serving.server import Server

_METRICS_SECONDS = 15.0
_LEAST_INTERVAL_MS = 10
_LINE_EVERY = 4  # of these
_LINES_A_SECOND = 20
_OTHER_FILES = 512
_STACK_BYTES = 1 << 20
_SWITCH_SECONDS = 0.001  # from one thread to the next: who answers much keeps others waiting for less
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Where the server listens, and where clients are told to come to."""

    host: str = option("The address to listen on.", default="127.0.0.1")
    port: int = option("The port; 0 takes any that is free.", default=9092, min=0, max=65535)
    advertised: str | None = option("Where clients are told to come to.", "--advertised-listener", metavar="HOST:PORT")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Which topics are shown, of which version, and how fresh."""

    interval: str = option("How often topics are read anew.", default="1s", metavar="DURATION")
    time: str | None = option("All topics as they were then: 2026-01-31T12:00Z.", metavar="WHEN")
    version: list[str] | None = option("These topics alone, as of a version.", metavar="TOPIC=VERSION")


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Who may come."""

    tls_cert: Path | None = option("The certificate, with its chain, as PEM.", exists=True)
    tls_key: Path | None = option("Its private key, as PEM.", exists=True)
    users: Path | None = option("Lines name:password, for SASL PLAIN and SCRAM.", exists=True)
    insecure: bool = flag("Serve other machines without TLS or without users.")


@with_options
def serve(
    listener: ListenerOptions,
    view: ViewOptions,
    access: AccessOptions,
    location: ConfiguredLogOptions,
    groups: str = option(
        "Which groups clients may join, move and delete: none, those that clients of a server made, or all.",
        default="own",
        metavar="read-only|own|all",
    ),
    retention_minutes: float = option(
        "How long groups stay that clients made and use no more.",
        "--offsets-retention-minutes",
        default=10_080,
        min=0,
        metavar="MINUTES",
    ),
    metrics: Path | None = METRICS,
) -> None:
    """Serves topics to Kafka's own clients, as a read-only cluster of one broker.

    Clients get the log's records, offsets, transactions and settings, read
    from its files or object store without a copy. Ctrl-C or SIGTERM ends it.
    It prints a line for each minute in which it answered requests.

    Clients cannot move groups that other readers made, unless --groups all
    lets them. It listens on 127.0.0.1. Any other --host needs --tls-cert,
    --tls-key and --users, or --insecure.

    Example: segments serve /data/log --port 9092
    """
    # Read when Arrow and numpy are imported. Rows of manifests are small buffers that stay for long, made by many
    # threads: mimalloc, Arrow's own choice, then holds six times their size, and takes 1 GiB of addresses.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from spark_segments.kafka_protocol.serving.credentials import Users
        from spark_segments.kafka_protocol.serving.limits import Limits
        from spark_segments.kafka_protocol.serving.server import Server
        from spark_segments.kafka_protocol.serving.server_options import ServerOptions
        from spark_segments.kafka_protocol.serving.views import Views
    except ModuleNotFoundError as error:
        raise MissingExtraError("kafka", "Commands of Kafka's protocol", str(error.name)) from error

    limits = _with_room(Limits(offsets_retention_minutes=retention_minutes))
    log = location.open()
    views = Views(
        log,
        interval_seconds=max(span_ms(view.interval), _LEAST_INTERVAL_MS) / 1000,
        timestamp_ms=None if view.time is None else moment_ms(view.time),
        versions={topic: _version(number) for topic, number in parse_overrides(view.version or []).items()},
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_FewLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(asctime)s %(message)s")
    options = ServerOptions(
        host=listener.host,
        port=listener.port,
        advertised=None if listener.advertised is None else _address(listener.advertised),
        tls=_tls(access.tls_cert, access.tls_key),
        users=None if access.users is None else Users.of_file(str(access.users)),
        insecure=access.insecure,
        groups=groups,
    )
    server = Server(views, options, limits)
    with server:
        print(f"Serving {location.log_dir} at {listener.host}:{server.port} until Ctrl-C", flush=True)
        ended = threading.Event()
        reporter = threading.Thread(target=_report, args=(server, log.uri, metrics, ended), daemon=True)
        reporter.start()
        with until_interrupted():
            server.serve()
        ended.set()
        reporter.join()
    print(f"Ended: {_line(server.state)}")


def _with_room(limits: Limits) -> Limits:
    """Has the process open as many files as it may, keep little memory for threads, and change between them often.

    Returns the limits with no more connections than there may be files, some of them aside.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit that it does not tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        files = most
    if files != resource.RLIM_INFINITY:
        limits = dataclasses.replace(limits, connections=min(limits.connections, max(files - _OTHER_FILES, files // 2)))
    threading.stack_size(_STACK_BYTES)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with contextlib.suppress(AttributeError, OSError):
        # glibc has 64 MiB of addresses for each of its arenas, and keeps large buffers, once freed, between small ones.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    return limits


class _FewLines(logging.Filter):
    """Lets a few lines a second pass, and says how many it did not: what clients do fills no disk."""

    def __init__(self) -> None:
        super().__init__()
        self._since = 0.0
        self._lines = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created - self._since >= 1.0:
            if self._left_out:
                record.msg = f"{record.getMessage()} ({self._left_out} lines before were left out)"
                record.args = ()
            self._since = record.created
            self._lines = 0
            self._left_out = 0
        self._lines += 1
        is_shown = self._lines <= _LINES_A_SECOND or record.levelno > logging.WARNING
        self._left_out += not is_shown
        return is_shown


def _report(server: Server, uri: str, metrics: Path | None, ended: threading.Event) -> None:
    """Writes the state of a server until it ends: as metrics every 15 seconds, as a line every minute with work."""
    import pyarrow

    from spark_segments.cli.metrics import serve_metrics, write_metrics

    shown: dict[str, int] = {}
    for number in itertools.count(1):
        is_last = ended.wait(_METRICS_SECONDS)
        pyarrow.default_memory_pool().release_unused()  # what threads have freed lies between what stays
        state = server.state
        if metrics is not None:
            try:
                write_metrics(metrics, serve_metrics(uri, state))
            except OSError as error:
                print(f"The metrics could not be written: {error}", file=sys.stderr, flush=True)
        if is_last:
            return
        if number % _LINE_EVERY == 0 and state != shown:
            print(_line(state), flush=True)
            shown = state


def _line(state: dict[str, int]) -> str:
    groups = f", {state['active_groups']} groups" if state["holds_groups"] else ""
    return (
        f"{state['open_connections']} connections{groups}; since the start {state['accepted_connections']} connections "
        f"and {state['refused_connections']} refused, {state['failed_logins']} failed logins, "
        f"{state['answered_requests']} requests, "
        f"{state['fetched_bytes']} bytes fetched"
    )


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise InvalidOptionError("A key without its certificate", expected="--tls-cert", found="--tls-key alone")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise InvalidOptionError("The certificate cannot be used", path=str(certificate), found=str(error)) from error
    return context


def _version(number: str) -> int:
    if not number.isascii() or not number.isdigit():
        raise InvalidOptionError("Not a version of a topic", expected="TOPIC=VERSION", found=number)
    return int(number)


def _address(text: str) -> tuple[str, int]:
    host, _, number = text.rpartition(":")
    if not host or not number.isascii() or not number.isdigit() or not 0 < int(number) < 65536:
        raise InvalidOptionError("Not an address", expected="HOST:PORT", found=text)
    return host.strip("[]"), int(number)
