"""Faults in rows: each is planted, and gives (path or None, partition) of the finding that must be there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.maintenance.verification.topics import NOW_MS
from verification.world.manifest_rows import Partition, Segment

RowFault = Callable[[list[Segment], list[Partition]], tuple[str | None, int | None]]
ROW_FAULTS: dict[str, tuple[str, RowFault, bool]] = {}


def row_fault(name: str, topic: str = "orders", *, deep: bool = False) -> Callable[[RowFault], RowFault]:
    def register(fault: RowFault) -> RowFault:
        ROW_FAULTS[name] = (topic, fault, deep)
        return fault

    return register


def change(live: list, number: int, **values) -> None:
    live[number] = dataclasses.replace(live[number], **values)


def figure(name: str, by: int) -> None:
    @row_fault(f"{name} of a row", deep=True)
    def _(live, partitions):
        change(live, 1, **{name: getattr(live[1], name) + by})
        return live[1].path, 0


figure("records", 1)
figure("batches", -1)
figure("max_timestamp_ms", 1)
figure("offset_of_max_timestamp", -1)
figure("first_batch_max_timestamp_ms", -1)
figure("tombstones", 1)


@row_fault("a least timestamp that is not the least", deep=True)
def _(live, partitions):
    change(live, 1, min_timestamp_ms=live[1].max_timestamp_ms + 1)
    return live[1].path, 0


@row_fault("a delete horizon that no batch has", deep=True)
def _(live, partitions):
    change(live, 0, delete_horizon_ms=NOW_MS)
    return live[0].path, 0


@row_fault("a delete horizon that is passed over", "latest", deep=True)
def _(live, partitions):
    number = next(n for n, row in enumerate(live) if row.delete_horizon_ms is not None)
    change(live, number, delete_horizon_ms=None)
    return live[number].path, 0


@row_fault("the size of a log")
def _(live, partitions):
    change(live, 0, log_bytes=live[0].log_bytes - 100)
    return live[0].path, 0


@row_fault("the size of an index")
def _(live, partitions):
    change(live, 0, index_bytes=live[0].index_bytes - 8)
    return live[0].index_path, 0


@row_fault("a segment that overlaps the one before")
def _(live, partitions):
    change(live, 1, base_offset=live[1].base_offset - 1)
    return live[1].path, 0


@row_fault("a segment that is not named")
def _(live, partitions):
    del live[1]
    return live[1].path, 0


@row_fault("a first segment that is not named")
def _(live, partitions):
    del live[0]
    return live[0].path, 0


@row_fault("a last segment that is not named")
def _(live, partitions):
    last = max(number for number, row in enumerate(live) if row.partition == 0)
    del live[last]
    return live[last - 1].path, 0


@row_fault("a partition without its segments")
def _(live, partitions):
    live[:] = [row for row in live if row.partition != 1]
    return None, 1


@row_fault("segments of a partition that is not there")
def _(live, partitions):
    del partitions[1]
    return None, 1


@row_fault("a partition number that is left out")
def _(live, partitions):
    change(partitions, 1, partition=2)
    return None, None


@row_fault("a path of another partition")
def _(live, partitions):
    path = next(row.path for row in live if row.partition == 1)
    change(live, 0, path=path)
    return path, 0


@row_fault("a path that leads out of the log directory")
def _(live, partitions):
    change(live, 0, path="../../etc/00000000000000000000.log")
    return live[0].path, 0


@row_fault("a path whose name is none")
def _(live, partitions):
    change(live, 0, path="orders-0/records.log")
    return live[0].path, 0


@row_fault("a file base offset below its file's name", "txn")
def _(live, partitions):
    change(live, 1, file_base_offset=3)
    return live[1].path, 0


@row_fault("a segment moved in the log", deep=True)
def _(live, partitions):
    change(live, 0, file_base_offset=7)
    return live[0].path, 0


@row_fault("a state that there is none of")
def _(live, partitions):
    change(live, 0, state="open")
    return live[0].path, 0


@row_fault("a removed row without its time")
def _(live, partitions):
    change(live, 0, state="removed")
    return live[0].path, 0


@row_fault("a sealed segment behind the active one")
def _(live, partitions):
    number = next(number for number, row in enumerate(live) if row.state == "chunk")
    change(live, 0, state="chunk")
    return live[min(1, number)].path, 0


@row_fault("a negative size")
def _(live, partitions):
    change(live, 0, records=-3)
    return live[0].path, 0


@row_fault("a log start behind the log end")
def _(live, partitions):
    change(partitions, 0, log_start_offset=10**6)
    return None, 0


@row_fault("a first dirty offset behind the log end")
def _(live, partitions):
    change(partitions, 1, first_dirty_offset=10**6)
    return None, 1


@row_fault("a last stable offset behind the log end")
def _(live, partitions):
    change(partitions, 1, last_stable_offset=10**6)
    return None, 1


@row_fault("a log end behind the last segment's")
def _(live, partitions):
    change(partitions, 1, log_end_offset=10**6)
    return max((row for row in live if row.partition == 1), key=lambda row: row.base_offset).path, 1


@row_fault("leader epochs that fall", "multiappend")
def _(live, partitions):
    change(partitions, 0, leader_epochs=((2, 0), (1, 700)), leader_epoch=1)
    return None, 0


@row_fault("a leader epoch that is not the last", "multiappend")
def _(live, partitions):
    change(partitions, 0, leader_epoch=9)
    return None, 0


@row_fault("leader epochs that are not those of the batches", "multiappend", deep=True)
def _(live, partitions):
    change(partitions, 0, leader_epochs=((1, 0), (2, 1200)))
    return live[0].path, 0


@row_fault("a producer snapshot that is damaged", "txn")
def _(live, partitions):
    change(partitions, 0, producer_snapshot=partitions[0].producer_snapshot[:-1])
    return None, 0
