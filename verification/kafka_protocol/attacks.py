"""python -m verification.kafka_protocol.attacks --seconds N: a server in a small address space, and strangers at their
worst.

`segments serve`, with TLS and users, has 1 GiB of addresses. Two honest readers read from it, alone and then beside
all attacks at once: 1,000 consumers that wait, clients that do not take their answers, names repeated 20,000 times,
requests that begin and never end, members of groups that are dropped, silent and half-begun connections, 2,000 groups,
logins that fail. Each attack comes from an address of its own of 127.0.0.0/8, and nothing leaves this machine.

It ends with 1 where readers have less than half of their speed; a consumer that waits costs a reader 10 ms a fetch; the
server has grown to its limit, has logged a fault, or ended; salts say who is a user; or the log directory has files
eight days later that it did not have before.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from spark_segments import LogDir
from spark_segments.format.batches import scan_batches
from spark_segments.maintenance import vacuum
from verification.kafka_protocol.requests import answer_of, request
from verification.kafka_protocol.serving import self_signed
from verification.world.clock import store_clock

FETCH, METADATA, OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP = 1, 3, 8, 10, 11
SASL_HANDSHAKE, DESCRIBE_CONFIGS, SASL_AUTHENTICATE = 17, 32, 36
MIB = 1 << 20
_RECORDS, _VALUE = 60_000, "x" * 1000
_READERS = ("127.0.0.1", "127.0.0.2")
_ALONE_SECONDS = 10
_FETCHES = 200  # of which the median is the cost of a consumer that waits
_MOST_IDLE_COST_SECONDS = 0.010
_RETENTION_MINUTES = 0.5
_EXPIRY_SECONDS = 120
_WEEK_AND_A_DAY_MS = 8 * 24 * 60 * 60 * 1000
_USERS = {"anna": "tea", "mallory": "poison"}
_ENDED = (OSError, AssertionError)  # what a client sees of a connection that the server has ended


@dataclass(slots=True)
class _Place:
    """Where the server is. `tls`: a client's context."""

    port: int
    certificate: str
    _tls: ssl.SSLContext | None = None

    def connected(self, address: str) -> socket.socket:
        """A connection from an address."""
        return socket.create_connection(("127.0.0.1", self.port), 20, source_address=(address, 0))

    def encrypted(self, address: str) -> ssl.SSLSocket:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self.certificate)
        return self._tls.wrap_socket(self.connected(address), server_hostname="127.0.0.1")

    def logged_in(self, address: str, user: str = "mallory") -> ssl.SSLSocket:
        made = self.encrypted(address)
        _asked(made, SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = f"\0{user}\0{_USERS[user]}".encode()
        assert not _asked(made, SASL_AUTHENTICATE, 1, {"auth_bytes": token}).error_code
        return made


def _asked(connection: socket.socket, key: int, version: int, values: Mapping[str, Any], times: int = 1) -> Any:
    connection.sendall(request(key, version, values, times=times))
    return answer_of(connection, key, version)


def _fetch(offset: int, most_bytes: int, wait_seconds: float = 0.0) -> Mapping[str, Any]:
    bounds = {"max_bytes": most_bytes, "partition_max_bytes": most_bytes, "min_bytes": 1}
    found = {"topic": "plain", "fetch_offset": offset, "max_wait": timedelta(seconds=wait_seconds), **bounds}
    return found | {"replica_id": -1, "current_leader_epoch": -1}


def _batches(connection: socket.socket, offset: int, most_bytes: int) -> bytes:
    [[partition]] = [each.partitions for each in _asked(connection, FETCH, 4, _fetch(offset, most_bytes)).responses]
    assert not partition.error_code, partition.error_code
    return bytes(partition.records or b"")


def _read(place: _Place, address: str, goes_on: Any, ended: Any, read_bytes: Any, longest: Any) -> None:
    """An honest reader: all records in their order, again and again. Whatever is wrong ends it with an error."""
    with place.logged_in(address, "anna") as connection:
        offset = 0
        while not ended.is_set():
            goes_on.wait()
            begun = time.monotonic()
            data = _batches(connection, offset, MIB)
            longest.value = max(longest.value, time.monotonic() - begun)
            batches = scan_batches(data, path="fetched").batches
            assert int(batches.base_offset[0]) <= offset <= int(batches.last_offset[-1])
            offset = (int(batches.last_offset[-1]) + 1) % _RECORDS
            read_bytes.value += len(data)


@dataclass(slots=True)
class _Attack:
    """An attack under way, from an address. `counts`: what it did. It goes on until `ended`, or has done its worst."""

    place: _Place
    address: str
    ended: threading.Event
    open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    counts: Counter[str] = field(default_factory=Counter)

    def times(self, most: int, pause_seconds: float) -> Iterator[int]:
        """Numbers up to `most`, with pauses: attacks are to break bounds, not to win a race for two cores."""
        for number in range(most):
            if self.ended.wait(pause_seconds):
                return
            yield number


def _wait_as_consumers(attack: _Attack) -> None:
    for _ in range(1000):
        idle = attack.open.enter_context(attack.place.logged_in(attack.address))
        idle.sendall(request(FETCH, 4, _fetch(_RECORDS, MIB, wait_seconds=3600)))
        attack.counts["consumers that wait"] += 1


def _take_no_answers(attack: _Attack) -> None:
    for number in attack.times(100, 0.2):
        slow = attack.open.enter_context(attack.place.logged_in(f"{attack.address[:-1]}{number % 4}"))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(request(FETCH, 4, _fetch(0, 16 * MIB)) * 2)
        attack.counts["clients that take no answer"] += 1


def _repeat_names(attack: _Attack) -> None:
    names = {
        "topics": "plain",
        "name": "plain",
        "resource_name": "plain",
        "resource_type": 2,
        "configuration_keys": None,
    }
    frames = [
        (METADATA, 1, request(METADATA, 1, names, times=20_000)),
        (DESCRIBE_CONFIGS, 1, request(DESCRIBE_CONFIGS, 1, names, times=5000)),
    ]
    with attack.place.logged_in(attack.address) as connection:
        for number in attack.times(200, 0.5):
            key, version, frame = frames[number % len(frames)]
            connection.sendall(frame)
            answer_of(connection, key, version)
            attack.counts["requests of repeated names"] += 1


def _begin_requests(attack: _Attack) -> None:
    for number in attack.times(1000, 0.05):
        begun = (attack.place.encrypted if number % 2 else attack.place.logged_in)(attack.address)
        attack.open.enter_context(begun)
        begun.sendall(struct.pack(">i", 4 * MIB) + bytes(5 if number % 10 else 2 * MIB))
        attack.counts["requests that never end"] += 1


def _join_and_drop(attack: _Attack) -> None:
    values = {"protocol_type": "consumer", "name": "range", "metadata": bytes(4 * MIB - 5000)}
    values |= {"session_timeout": timedelta(seconds=1800), "rebalance_timeout": timedelta(seconds=1)}
    for number in attack.times(200, 0.3):
        with attack.place.logged_in(attack.address) as dropped:
            dropped.sendall(request(JOIN_GROUP, 2, {**values, "group_id": f"joined-{number}"}))
            attack.counts["members that are dropped"] += 1
        with attack.place.logged_in(attack.address) as stranger:
            for name in (f"unknown-{number}", f"./plain{'/' * number}"):
                _asked(stranger, METADATA, 1, {"topics": name, "name": name})
                attack.counts["names of no topic"] += 1


def _say_nothing(attack: _Attack) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    for number in attack.times(4000, 0.01):
        silent = attack.open.enter_context(attack.place.connected(attack.address))
        silent.sendall(hello if number % 2 else b"")
        attack.counts["silent connections"] += 1


def _make_groups(attack: _Attack) -> None:
    values = {"generation_id_or_member_epoch": -1, "member_id": "", "name": "plain", "topics": "plain"}
    values |= {"committed_offset": 1, "committed_metadata": "m" * 4096, "generation_id": -1, "retention_time_ms": -1}
    with attack.place.logged_in(attack.address) as connection:
        _asked(connection, FIND_COORDINATOR, 1, {"key": "made", "key_type": 0})
        for number in attack.times(2000, 0.005):
            made = _asked(connection, OFFSET_COMMIT, 3, {**values, "group_id": f"made-{number}"})
            [[partition]] = [each.partitions for each in made.topics]
            attack.counts["groups that are refused" if partition.error_code else "groups"] += 1


def _fail_to_log_in(attack: _Attack) -> None:
    salts: dict[str, set[bytes]] = {}
    for number in attack.times(100, 0.2):
        user = ("anna", "berta", "carla")[number % 3]
        with attack.place.encrypted(attack.address) as stranger:
            _asked(stranger, SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
            first = _asked(stranger, SASL_AUTHENTICATE, 1, {"auth_bytes": f"n,,n={user},r=nonce".encode()}).auth_bytes
            salts.setdefault(user, set()).add(bytes(first).split(b",")[1])
        with attack.place.encrypted(attack.address) as stranger:
            _asked(stranger, SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            stranger.sendall(request(SASL_AUTHENTICATE, 1, {"auth_bytes": b"\0anna\0coffee"}))
            assert answer_of(stranger, SASL_AUTHENTICATE, 1).error_code
            attack.counts["logins that fail"] += 1
    if [len(each) for each in salts.values()] != [1, 1, 1] or len(set.union(*salts.values())) != 3:
        attack.counts["SALTS THAT TELL WHO IS A USER"] += 1


_ATTACKS: Mapping[str, Callable[[_Attack], None]] = {
    "127.0.0.20": _take_no_answers,
    "127.0.0.31": _repeat_names,
    "127.0.0.32": _begin_requests,
    "127.0.0.33": _join_and_drop,
    "127.0.0.34": _say_nothing,
    "127.0.0.35": _make_groups,
    "127.0.0.36": _fail_to_log_in,
}


def _run(run: Callable[[_Attack], None], attack: _Attack) -> None:
    """An attack until it ends. Who loses its connection begins again."""
    while not attack.ended.is_set():
        try:
            run(attack)
            return
        except _ENDED:
            attack.counts["connections that were ended or refused"] += 1
            attack.ended.wait(0.5)


def _files(log: LogDir) -> dict[str, int]:
    """{path: bytes} of the log directory, but for the lease of servers."""
    return {one.path: one.size for one in log.storage.list(recursive=True) if not one.path.startswith("_serve/")}


def _files_at(time_ms: int, log: LogDir) -> dict[str, int]:
    """What vacuum leaves then: of a group that is gone, its last file waits until it is alone."""
    with store_clock(lambda: time_ms):
        for _ in range(2):
            vacuum(log)
    return _files(log)


def _status(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) << 10


def _median_seconds(place: _Place) -> float:
    """What a small fetch takes."""
    took = []
    with place.logged_in(_READERS[0], "anna") as connection:
        for _ in range(_FETCHES):
            begun = time.monotonic()
            assert _batches(connection, 0, 10_000)
            took.append(time.monotonic() - begun)
    return statistics.median(took)


class _Readers:
    """The honest readers, each a process of its own."""

    def __init__(self, place: _Place) -> None:
        context = multiprocessing.get_context("spawn")
        self._goes_on, self._ended = context.Event(), context.Event()
        self._read = [context.Value("q", 0) for _ in _READERS]
        self._longest = [context.Value("d", 0.0) for _ in _READERS]
        shared = zip(_READERS, self._read, self._longest, strict=True)
        self._processes = [
            context.Process(target=_read, args=(place, address, self._goes_on, self._ended, read, longest))
            for address, read, longest in shared
        ]
        for process in self._processes:
            process.start()

    def measured(self, seconds: float) -> tuple[float, float]:
        """Lets them read. (bytes a second of both, the longest fetch)"""
        self._goes_on.set()
        before, begun = self._sum(), time.monotonic()
        while (left := begun + seconds - time.monotonic()) > 0 and all(one.is_alive() for one in self._processes):
            time.sleep(min(left, 0.5))
        speed = (self._sum() - before) / (time.monotonic() - begun)
        self._goes_on.clear()
        longest = max(one.value for one in self._longest)
        for one in self._longest:
            one.value = 0.0
        return speed, longest

    def begin(self) -> None:
        """Returns once each has read something."""
        self._goes_on.set()
        while not all(one.value for one in self._read) and all(one.is_alive() for one in self._processes):
            time.sleep(0.1)

    def _sum(self) -> int:
        return sum(one.value for one in self._read)

    def end(self) -> list[str]:
        """Ends them. What was wrong."""
        self._ended.set()
        self._goes_on.set()
        for process in self._processes:
            process.join(60)
        return [f"a reader ended with {one.exitcode}" for one in self._processes if one.exitcode]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.attacks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seconds", type=int, default=60, help="of all attacks at once")
    parser.add_argument("--address-space", type=int, default=1 << 30, help="of the server, in bytes")
    arguments = parser.parse_args()
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, min(most, 16_384)), most))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        log = LogDir.create(f"{directory}/log")
        log.create_topic("plain", config={"compression.type": "uncompressed"})
        log.topic("plain").append([{"value": _VALUE}] * _RECORDS)
        self_signed(directory)
        users, errors = directory / "users", directory / "errors"
        users.write_text("".join(f"{user}:{password}\n" for user, password in _USERS.items()))
        command = [
            "prlimit",
            f"--as={arguments.address_space}",
            sys.executable,
            "-m",
            "spark_segments",
            "serve",
            log.uri,
        ]
        command += ["--port", "0", "--tls-cert", str(directory / "certificate.pem"), "--tls-key"]
        command += [str(directory / "key.pem"), "--users", str(users), "--offsets-retention-minutes"]
        with errors.open("wb") as file:
            server = subprocess.Popen(
                [*command, str(_RETENTION_MINUTES)], stdout=subprocess.PIPE, stderr=file, text=True
            )
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline().partition("127.0.0.1:")[2].split()[0])
            broken = _attacked(log, _Place(port, str(directory / "certificate.pem")), server.pid, arguments)
        finally:
            server.terminate()
            is_ended = server.wait(60) == 0
        broken += [] if is_ended else [f"the server ended with {server.returncode}"]
        lines = errors.read_text(errors="replace").splitlines()
        faults = [line for line in lines if line.startswith("Traceback")]
        broken += [f"{len(faults)} faults in the log"] if faults else []
        if broken:
            print("\n".join(line[:200] for line in lines[-40:]))
        hungry = sum("gets no memory" in line for line in lines)
        print(f"the server's log: {len(lines)} lines, {len(faults)} faults, {hungry} of no memory")
    for text in broken:
        print(f"BROKEN: {text}")
    return 1 if broken else 0


def _attacked(log: LogDir, place: _Place, process: int, arguments: argparse.Namespace) -> list[str]:
    """What was broken."""
    begun, later_ms = time.monotonic(), time.time_ns() // 1_000_000 + _WEEK_AND_A_DAY_MS
    before = _files_at(later_ms, log)
    ended, broken = threading.Event(), list[str]()
    readers = _Readers(place)
    readers.begin()
    alone, longest = readers.measured(_ALONE_SECONDS)
    print(
        f"alone: readers {alone / MIB:.1f} MiB/s, longest fetch {longest * 1000:.0f} ms; {_memory(process)}", flush=True
    )
    quiet = _median_seconds(place)
    idle = _Attack(place, "127.0.0.10", ended)
    _wait_as_consumers(idle)
    beside = _median_seconds(place)
    print(
        f"a fetch: {quiet * 1000:.2f} ms alone, {beside * 1000:.2f} ms beside {idle.counts.total()} consumers that "
        f"wait; {_memory(process)}",
        flush=True,
    )
    if beside - quiet >= _MOST_IDLE_COST_SECONDS:
        broken.append(f"consumers that wait cost {(beside - quiet) * 1000:.1f} ms a fetch")
    attacks = [_Attack(place, address, ended) for address in _ATTACKS]
    threads = [
        threading.Thread(target=_run, args=(run, attack))
        for run, attack in zip(_ATTACKS.values(), attacks, strict=True)
    ]
    for thread in threads:
        thread.start()
    under, longest = readers.measured(arguments.seconds)
    ended.set()
    for thread in threads:
        thread.join()
    done = sum((attack.counts for attack in (idle, *attacks)), Counter[str]())
    print(
        f"under attack: {_speed(under, longest)}; {_memory(process)}; {_size(_files(log))}",
        flush=True,
    )
    print("; ".join(f"{count} {what}" for what, count in sorted(done.items())))
    for attack in (idle, *attacks):
        attack.open.close()
    if under < alone / 2:
        broken.append(f"readers have {under / alone:.2f} of their speed")
    broken += [what for what in done if what.isupper()] + readers.end()
    gone_by = time.monotonic() + _EXPIRY_SECONDS
    while (left := log.groups()) and time.monotonic() < gone_by:
        time.sleep(1)
    resident = _status(process, "VmHWM")
    broken += [f"{len(left)} groups are left"] if left else []
    broken += [f"{resident} bytes in memory"] if resident >= arguments.address_space else []
    after = _files_at(later_ms, log)
    print(
        f"on disk: {_size(before)} before, {_size(after)} eight days after; {_memory(process)}; "
        f"{time.monotonic() - begun:.0f} s",
        flush=True,
    )
    if more := sorted(after.keys() - before.keys()):
        broken.append(f"{len(more)} files more than before, such as {more[0]}")
    return broken


def _speed(bytes_a_second: float, longest_seconds: float) -> str:
    return f"readers {bytes_a_second / MIB:.1f} MiB/s, their longest fetch {longest_seconds * 1000:.0f} ms"


def _memory(process: int) -> str:
    resident, addresses = (_status(process, name) >> 20 for name in ("VmHWM", "VmPeak"))
    return f"the server had up to {resident} MiB resident, {addresses} MiB of addresses"


def _size(files: Mapping[str, int]) -> str:
    return f"{len(files)} files of {sum(files.values()) / MIB:.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())
