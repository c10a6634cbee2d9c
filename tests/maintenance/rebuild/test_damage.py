"""Each file of a manifest, cut, overwritten, emptied and gone: a repair rebuilds it, by command and in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.errors import StorageError, UnknownTopicError
from spark_segments.maintenance import verify
from verification.rebuild.lost import (
    TOPIC,
    again,
    all_files,
    append,
    commit_file,
    copy,
    is_usable,
    lose_manifest,
    new_log,
    numbers,
)
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HOW: dict[str, Callable[[Path], object]] = {
    "cut": _cut,
    "junk": lambda path: path.write_bytes(b"\x00\xffjunk{" * 20),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
}


def commit(which: int) -> Callable[[LogDir], list[Path]]:
    return lambda log: [commit_file(log, which % (log.topic(TOPIC).snapshot.version + 1))]


def checkpoint(log: LogDir) -> list[Path]:
    """The checkpoint, once vacuum has taken the commits before it."""
    copied = max(int(path.name[:20]) for path in Path(log.uri, "_manifest", TOPIC, "_delta_log").glob("*.parquet"))
    for version in range(copied):
        commit_file(log, version).unlink(missing_ok=True)
    return sorted(Path(log.uri, "_manifest", TOPIC, "_delta_log").glob("*.checkpoint.parquet"))


def rows(kind: str) -> Callable[[LogDir], list[Path]]:
    def files(log: LogDir) -> list[Path]:
        state = log.topic(TOPIC).manifest.state()
        return [Path(log.uri, "_manifest", TOPIC, file.path) for file in state.files if file.kind == kind]

    return files


FILES: dict[str, Callable[[LogDir], list[Path]]] = {
    "the first commit": commit(0),
    "a commit": commit(2),
    "the last commit": commit(-1),
    "checkpoint": checkpoint,
    "rows of the topic": rows("topic"),
    "rows of partitions": rows("partition"),
    "rows of segments": rows("segment"),
    "rows of transactions": rows("transaction"),
}


def damaged(root: Path, name: str, how: str) -> LogDir:
    log = new_log(root)
    append(log, 0, txn=("app", 1))
    append(log, 10)
    if name == "checkpoint":
        copy(log)
    append(log, 20)
    for path in FILES[name](log):
        HOW[how](path)
    return again(log)


@pytest.mark.cases(8)
@pytest.mark.parametrize("by", ["command", "Python"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_manifest_is_rebuilt_by_a_repair(tmp_path, capsys, name, how, by):
    log = damaged(tmp_path, name, how)
    if by == "command":
        with pytest.raises(SystemExit) as ended:
            main(["verify", log.uri, TOPIC, "--repair"])
        assert ended.value.code == 0, capsys.readouterr()
    else:
        report = verify(log, topics=[TOPIC], repair=True)
        [rebuilt] = report.details["rebuilt"]
        assert (rebuilt["topic"], rebuilt["is_exact"]) == (TOPIC, True) and report.findings == []
    assert numbers(again(log)) == [*range(30)]
    is_usable(log)


def test_a_dry_run_says_what_would_be_rebuilt_and_changes_nothing(tmp_path):
    log = damaged(tmp_path, "a commit", "junk")
    before = all_files(log)
    report = verify(log, topics=[TOPIC], repair=True, dry_run=True)
    assert [line["topic"] for line in report.details["rebuilt"]] == [TOPIC] and all_files(log) == before


def test_python_rebuilds_a_manifest_that_is_lost_whole(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    lose_manifest(log)
    verify(again(log), topics=[TOPIC], repair=True)
    assert numbers(again(log)) == [*range(10)]


def test_a_repair_of_an_unknown_topic_says_so(tmp_path):
    log = new_log(tmp_path)
    with pytest.raises(UnknownTopicError):
        verify(log, topics=["nothing"], repair=True)


def test_a_store_that_fails_is_no_damaged_manifest(tmp_path):
    log = again(new_log(tmp_path))
    before = all_files(log)

    def failing(path, go):
        if "/_manifest/" in str(path):
            raise OSError("SLOW_DOWN")
        return go()

    with pytest.raises(StorageError, match="SLOW_DOWN"):
        verify(opened(log, PlayedFiles(read=failing)), topics=[TOPIC], repair=True)
    assert all_files(log) == before
