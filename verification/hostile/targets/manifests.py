"""Manifests: commits of Delta's log, files of rows, recovery copies, and Delta's log as delta-rs opens it; groups."""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

from spark_segments import LogDir, Position
from spark_segments.log.groups import group_swap
from spark_segments.log.manifest.files import row_files
from spark_segments.log.manifest.files.delta.delta_log import manifest_directory
from spark_segments.log.manifest.recovery.playback import known_topic
from spark_segments.log.manifest.state.recovery_copy import read_recovery_copy
from spark_segments.storage import Storage
from verification.hostile.memory_files import storage_of
from verification.hostile.mutations import mutated
from verification.hostile.targets import Run
from verification.world.chunk_rows import TOPIC, TOPIC_ID, new_chunk, new_manifest
from verification.world.manifest_rows import Manifest
from verification.world.opened import opened


def _files(versions: int = 5) -> dict[str, bytes]:
    """The files of a small topic with a checkpoint and a recovery copy."""
    from verification.world.manifest_rows import commit_append

    with tempfile.TemporaryDirectory() as directory:
        manifest = new_manifest(Path(directory))
        for number in range(versions):
            commit_append(manifest, [new_chunk(0), new_chunk(number % 3)], (f"app-{number % 2}", number))
            if number == 2:
                manifest.merge_files()
        return files_below(Path(directory))


def _mutated_json(data: bytes, random: Random) -> bytes:
    """Half of the mutations leave JSON: members that are gone, of another type, or other texts and numbers."""
    if random.random() < 0.5:
        return mutated(data, random)
    lines = data.decode().splitlines()
    at = random.randrange(len(lines))
    value = json.loads(lines[at])
    _change(value, random)
    lines[at] = json.dumps(value)
    return "\n".join(lines).encode()


@contextmanager
def _rows_from_files() -> Iterator[None]:
    """Within its block rows are read from their files. What this process keeps of rows is as before behind it."""
    kept, row_files._cache = row_files._cache, row_files._RowCache(1)
    try:
        yield
    finally:
        row_files._cache = kept


_TEXTS = ["", "..", "../../x", "/etc/passwd", "%2e%2e%2fx", "a\0b", "9" * 30]
_OTHERS = [None, True, 0, -1, 2**63, 2**64, 1e400, *_TEXTS, [], {}, [[]], {"a": 1}]


def _change(value: object, random: Random, depth: int = 0) -> None:
    members = list(value.items()) if isinstance(value, dict) else []
    members = list(enumerate(value)) if isinstance(value, list) else members
    if not members:
        return
    key, inner = random.choice(members)
    if isinstance(inner, dict | list) and inner and depth < 4 and random.random() < 0.7:
        _change(inner, random, depth + 1)
    elif random.random() < 0.3:
        del value[key]  # type: ignore[attr-defined]
    else:
        value[key] = random.choice(_OTHERS)  # type: ignore[index]


def commits() -> Run:
    """Commits as this package reads them: look-ups, histories, times, transactions, the replay of a rebuild."""
    files = _files()
    commit_files = [path for path in files if "/_delta_log/" in path and path.endswith(".json")]

    def run(random: Random) -> None:
        path = random.choice(commit_files)
        changed = {**files, path: _mutated_json(files[path], random)}
        manifest = Manifest(storage_of(changed), TOPIC)
        way = random.randrange(5)
        versions = range(len(commit_files))
        if way == 0:
            manifest.log.find("no such id", versions)
        elif way == 1:
            manifest.history()
        elif way == 2:
            manifest.version_at(random.choice((0, 2**62)))
        elif way == 3:
            for version in versions:
                manifest.log.transactions(TOPIC_ID, version)
        else:
            known_topic(manifest.log)

    return run


def recovery_copies() -> Run:
    files = _files()
    indexes = [path for path in files if path.startswith("_recovery/") and path.endswith(".json")]
    others = [path for path in files if path.startswith("_recovery/")]

    @_rows_from_files()
    def run(random: Random) -> None:
        path = random.choice(indexes if random.random() < 0.7 else others)
        data = _mutated_json(files[path], random) if path.endswith(".json") else mutated(files[path], random)
        read_recovery_copy(storage_of({**files, path: data}), TOPIC)

    return run


def rows_of_parquet() -> Run:
    files = _files()
    prefix = f"{manifest_directory(TOPIC)}/"
    parquet = {path: data for path, data in files.items() if path.startswith(f"{prefix}kind=")}
    kinds = {path: path.removeprefix(f"{prefix}kind=").partition("/")[0] for path in parquet}

    @_rows_from_files()
    def run(random: Random) -> None:
        path = random.choice(list(parquet))
        data = parquet[path]
        if random.random() < 0.5:  # Parquet's metadata are at the end
            cut = random.randrange(len(data))
            data = data[:cut] + mutated(data[cut:], random)
        else:
            data = mutated(data, random, list(parquet.values()))
        file = row_files.RowFile(path.removeprefix(prefix), kinds[path], 0, 0, 0, {})
        [rows] = row_files.RowFiles(storage_of({path: data}), manifest_directory(TOPIC)).read_all([file])
        rows.validate(full=True)

    return run


def delta_logs() -> Run:
    files = _files()
    paths = [path for path in files if path.startswith(manifest_directory(TOPIC))]
    in_log = [path for path in paths if "/_delta_log/" in path]
    lay_out = _Directory(files)

    @_rows_from_files()
    def run(random: Random) -> None:
        path = random.choice(in_log if random.random() < 0.7 else paths)
        data = _mutated_json(files[path], random) if path.endswith(".json") else mutated(files[path], random)
        root = lay_out({path: data})
        if random.random() < 0.2:
            (root / random.choice(in_log)).unlink()
        manifest = Manifest(Storage(str(root)), TOPIC)
        snapshot = manifest.snapshot(random.choice((None, None, None, 2)))
        _ = snapshot.segments
        manifest.history()

    return run


def positions_of_groups() -> Run:
    """The files of a group: its positions, the check of them, another commit, and files that nobody needs any more."""
    with tempfile.TemporaryDirectory() as directory:
        log = LogDir.create(directory)
        log.create_topic(TOPIC, 2)
        log.topic(TOPIC).append([{"value": b"%d" % offset, "partition": offset % 2} for offset in range(20)])
        snapshot, group = log.topic(TOPIC).snapshot, log.group("audit")
        positions = group.positions()
        for offset in range(10):
            positions = group.commit(positions, {TOPIC: {0: offset, 1: 10 - offset}})
        files = {path: data for path, data in files_below(Path(directory)).items() if path.startswith("_groups/")}
    group_swap.TRIES, group_swap.LONGEST_PAUSE_SECONDS = 2, 0

    def run(random: Random) -> None:
        there = dict(files)
        path = random.choice(sorted(there)[-3:])
        body, end, check = there[path].partition(b"\n")
        way = random.random()
        if way < 0.3:
            there[path] = mutated(there[path], random)
        else:
            body = mutated(body, random) if way < 0.6 else _mutated_json(body, random).rstrip(b"\n")
            there[path] = body + (b'\n{"crc32":%d}\n' % zlib.crc32(body) if random.random() < 0.8 else end + check)
        if random.random() < 0.1:
            there[path.rpartition("/")[0] + "/99999999999999999999.json"] = there.pop(path)
        log = opened(storage_of(there))
        found = log.group("audit")
        log.groups()
        found.expired_files()
        positions = found.positions()
        moved = {TOPIC: {0: Position.at(snapshot, 0, random.randrange(3))}}
        assert found.commit(positions, moved).offsets[TOPIC][0] == found.positions().offsets[TOPIC][0]
        positions.starts(snapshot)

    return run


class _Directory:
    """Lays out a log directory on a local disk, where delta-rs reads it: `files`, some of them with other bytes."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)) / "log"

    def __call__(self, others: Mapping[str, bytes]) -> Path:
        shutil.rmtree(self._root, ignore_errors=True)
        for name, content in {**self._files, **others}.items():
            file = self._root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return self._root


def files_below(root: Path) -> dict[str, bytes]:
    """The bytes of all files below a directory, by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
