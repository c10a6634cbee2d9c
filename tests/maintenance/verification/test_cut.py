"""A damaged .log: which offsets are lost, and what is left once its damaged batches are taken out."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.errors import CorruptBatchError, InvalidOptionError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.maintenance import compact, erase, roll, verify
from verification.world.topics import column

RECORDS, PER_BATCH = 400, 10


def flipped(data: bytearray, batches: BatchTable, row: int) -> None:
    """A byte of the batch's records."""
    data[int(batches.byte_position[row] + batches.size[row]) - 3] ^= 0x40


def without_header(data: bytearray, batches: BatchTable, row: int) -> None:
    """The batch does not say its size any more."""
    start = int(batches.byte_position[row])
    data[start : start + 61] = bytes(61)


def cut_off(data: bytearray, batches: BatchTable, row: int) -> None:
    """The file ends within the batch."""
    del data[int(batches.byte_position[row]) + 70 :]


def damage(path: Path, damages: list[tuple]) -> set[int]:
    """Damages batches of a .log, each by (how, row). The offsets that are lost by it."""
    data = bytearray(path.read_bytes())
    batches = scan_batches(bytes(data)).batches
    lost: set[int] = set()
    for how, row in damages:
        how(data, batches, row)
        last = -1 if how is cut_off else row
        lost |= set(range(int(batches.base_offset[row]), int(batches.last_offset[last]) + 1))
    path.write_bytes(data)
    return lost


@pytest.fixture
def log(tmp_path) -> LogDir:
    """A topic of a segment that has 40 batches, with an entry in its .index for each, and of a chunk behind it."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 2, {"index.interval.bytes": "1"})
    for first in range(0, RECORDS + 50, PER_BATCH):
        numbers = range(first, first + PER_BATCH)
        rows = {"key": [b"%d" % (n % 7) for n in numbers], "value": [b"value %d" % n * 3 for n in numbers]}
        rows["timestamp"] = pa.array([1_700_000_000_000_000 + n for n in numbers], pa.timestamp("us", "UTC"))
        log.topic("t").append(pa.table({**rows, "partition": pa.array([0] * PER_BATCH, pa.int32())}))
        if first + PER_BATCH == RECORDS:
            roll(log)
    return log


def sealed(log: LogDir) -> Path:
    """The .log of the segment."""
    return Path(log.uri) / log.topic("t").snapshot.live_of(0)[0].path


def records(log: LogDir) -> dict[int, bytes]:
    rows = log.topic("t").scan(columns=["offset", "value"]).to_table().to_pylist()
    return {row["offset"]: row["value"] for row in rows}


@pytest.mark.cases(1)
@pytest.mark.parametrize("how", [flipped, without_header, cut_off])
@pytest.mark.parametrize("row", [0, 17, 39])
def test_what_is_lost_is_named_and_taken_out_as_a_hole(log, how, row):
    before = records(log)
    offsets = damage(sealed(log), [(how, row)])
    start, end = min(offsets), max(offsets) + 1
    with pytest.raises(CorruptBatchError):
        records(log)
    report = verify(log, deep=True)
    [lost] = report.details["lost"]
    assert (lost["partition"], lost["start_offset"], lost["end_offset"]) == (0, start, end)
    with pytest.raises(InvalidOptionError, match="repair, too"):
        verify(log, cut=True)
    planned = verify(log, repair=True, cut=True, dry_run=True)
    assert planned.details["lost"] == [lost] and planned.details["uncorrected"]
    cut = verify(log, repair=True, cut=True)
    assert cut.details["uncorrected"] == 0
    assert records(log) == {offset: value for offset, value in before.items() if not start <= offset < end}
    [hole] = log.topic("t").describe()["holes"]
    assert (hole["start_offset"], hole["end_offset"]) == (start, end) and "damaged" in hole["reason"]
    assert verify(log, deep=True).ok
    assert verify(log, repair=True, cut=True).topics and len(log.topic("t").describe()["holes"]) == 1


@pytest.mark.proof
def test_of_a_missing_log_everything_is_lost(log):
    before = records(log)
    sealed(log).unlink()
    assert verify(log, repair=True, cut=True).details["uncorrected"] == 0
    assert records(log) == {offset: value for offset, value in before.items() if offset >= RECORDS}
    [finding] = verify(log, deep=True).findings  # until vacuum has the row
    assert finding.message == "A file was deleted while readers of an older snapshot may need it"


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(8))
def test_any_damage_leaves_every_other_batch(log, seed):
    chance, before = random.Random(seed), records(log)
    rows = sorted(chance.sample(range(40), chance.randint(2, 6)), reverse=True)
    first = chance.choice([flipped, without_header, cut_off])
    damages = [(first, rows[0]), *((chance.choice([flipped, without_header]), row) for row in rows[1:])]
    lost = damage(sealed(log), damages)
    verify(log, repair=True, cut=True)
    assert records(log) == {offset: value for offset, value in before.items() if offset not in lost}
    assert verify(log, deep=True).ok


@pytest.mark.proof
def test_a_person_can_be_erased_once_the_damage_is_taken_out(log):
    damage(sealed(log), [(flipped, 3)])
    with pytest.raises(CorruptBatchError):
        erase(log, topics=["t"], keys=[b"5"])
    verify(log, repair=True, cut=True)
    erase(log, topics=["t"], keys=[b"5"])
    keys = column(log, "t", "key")
    assert keys == [b"%d" % (n % 7) for n in range(RECORDS + 50) if n % 7 != 5 and not 30 <= n < 40]
    log.topic("t").alter({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    assert compact(log).ok and verify(log, deep=True).ok


def test_the_command_names_what_is_lost_and_asks(log, capsys):
    damage(sealed(log), [(flipped, 3)])
    for arguments, code, words in [
        (["--deep"], 3, "lost: t-0: offsets 30 to 39, at most 10 records, of damaged batches in t-0/"),
        (["--repair", "--cut"], 1, "expected --yes"),
        (["--repair", "--cut", "--yes"], 0, "hole: t-0: offsets 30 to 39"),
        (["--deep"], 0, "no faults"),
    ]:
        with pytest.raises(SystemExit) as end:
            main(["verify", log.uri, *arguments])
        shown = capsys.readouterr()
        assert (end.value.code or 0) == code and words in shown.out + shown.err
