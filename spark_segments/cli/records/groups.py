"""`segments groups …`: groups of readers, as kafka-consumer-groups shows and moves them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from spark_segments.cli import completion
from spark_segments.cli.arguments import named_offset, numbers, offsets_at
from spark_segments.cli.command_options import (
    ANY_TOPICS,
    DRY_RUN,
    OUTPUT,
    TOPICS,
    YES,
    LogOptions,
    argument,
    flag,
    option,
    with_options,
)
from spark_segments.cli.confirmation import confirm
from spark_segments.cli.lazy_commands import group_of, panels
from spark_segments.cli.output import Output, ShownTime, print_json, print_rows, print_table
from spark_segments.config import selected_topics
from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError, SegmentsError, UnknownTopicError
from spark_segments.face.logdir import LogDir
from spark_segments.log import Group, PartitionState, Position, Snapshot

if TYPE_CHECKING:
    from spark_segments.face.topic import Topic
    from spark_segments.log import Positions

COMMANDS = panels(
    {
        "Commands": {
            "list": "records.groups:list_groups",
            "show": "records.groups:show",
            "reset": "records.groups:reset",
            "delete": "records.groups:delete",
        }
    }
)

app = typer.Typer(
    cls=group_of(COMMANDS, {"describe": "segments groups show", "reset-offsets": "segments groups reset"}),
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _groups() -> None:
    """List, show, reset and delete groups of readers."""


GROUP = argument("GROUP", "The group's id.", autocompletion=completion.groups)

LIST_COLUMNS = ["group", "topic", "partitions", "lag", "committed_ms"]
COLUMNS = ["topic", "partition", "position", "log_end", "lag", "problem"]
RESET_COLUMNS = ["topic", "partition", "position", "new_position", "log_end", "lag", "note"]


@with_options
def list_groups(location: LogOptions, output: Output = OUTPUT) -> None:
    """Lists the groups that have positions.

    With --output wide or json it has, for each topic of a group, the lag over
    all partitions and the time of the group's last commit.

    Example: segments groups list /data/log
    Example: segments groups list /data/log --output wide
    """
    log = location.open()
    groups = log.groups()
    if output is Output.TEXT:
        for group in groups:
            print(group)
        return
    rows = _group_rows(log, groups)
    if output is Output.JSON:
        print_json({"groups": groups, "topics": [dict(zip(LIST_COLUMNS, row, strict=True)) for row in rows]})
        return
    shown = ([*row[:-1], None if row[-1] is None else ShownTime(row[-1])] for row in rows)
    print_table([*LIST_COLUMNS[:-1], "committed"], shown)


def _group_rows(log: LogDir, groups: Sequence[str]) -> list[tuple[Any, ...]]:
    """LIST_COLUMNS of each topic that a group reads. A topic that is deleted, or another of its name, has no lag."""
    positions = {group: log.group(group).positions() for group in groups}
    topics = {name for of_group in positions.values() for name in of_group.offsets}
    snapshots = [log.topic(name).snapshot for name in topics if log.is_there(name)]
    lags: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for group in groups:
        for lag in log.group(group).lags(snapshots):
            lags[lag.group, lag.topic].append(lag.lag)
    rows = []
    for group, of_group in positions.items():
        for name, offsets in sorted(of_group.offsets.items()):
            behind = lags.get((group, name))
            last_ms = max(of_group[name, partition].committed_ms for partition in offsets)
            rows.append((group, name, len(offsets), sum(behind) if behind else None, last_ms or None))
    return rows


@with_options
def show(
    location: LogOptions,
    group: str = GROUP,
    topic: list[str] | None = ANY_TOPICS,
    csv: bool = flag("Print topic,partition,offset, which kafka-consumer-groups --from-file reads."),
    output: Output = OUTPUT,
) -> None:
    """Shows the positions of a group beside the log ends, and its lag.

    The position is the next offset that the group reads. A problem says why a
    reader cannot go on at this position.

    Example: segments groups show /data/log billing
    """
    log = location.open()
    positions = _positions(log, log.group(group))
    chosen = selected_topics({name for name, _ in positions}, topic or None)
    snapshots = {name: _snapshot(log, name) for name in chosen}
    rows = [
        _position_row(group, name, partition, position, snapshots[name])
        for (name, partition), position in sorted(positions.items())
        if name in snapshots
    ]
    if csv:
        for row in rows:
            print(f"{row['topic']},{row['partition']},{row['position']}")
    elif output is Output.JSON:
        print_json({"group": group, "positions": rows})
    elif rows:
        columns = COLUMNS if any(row["problem"] for row in rows) else COLUMNS[:-1]
        print_rows(columns, rows)
    else:
        print(f"Group {group} has no positions in {', '.join(topic or [])}.")


def _snapshot(log: LogDir, topic: str) -> Snapshot | None:
    """The topic; None where it is deleted: a group keeps its positions, and the list says what they wait for."""
    try:
        return log.topic(topic).snapshot
    except UnknownTopicError:
        return None


def _position_row(
    group: str, topic: str, partition: int, position: Position, snapshot: Snapshot | None
) -> dict[str, Any]:
    end: int | None = None
    problem: str | None = f"Topic {topic} is not there"
    if snapshot is not None:
        state = PartitionState.of(snapshot, partition)
        # A topic that was deleted and created again has other records at these offsets: their distance is no lag.
        if position.topic_id == snapshot.topic_id:
            end = state.log_end
        loss = position.loss_in(state, (topic, partition), f"group {group}")
        problem = None if loss is None else loss.message
    return {
        "topic": topic,
        "partition": partition,
        "position": position.offset,
        "log_end": end,
        "lag": None if end is None else max(0, end - position.offset),
        "committed_ms": position.committed_ms,
        "metadata": position.metadata,
        "problem": problem,
    }


@dataclass(frozen=True, slots=True)
class Move:
    """A position of a group and where it is to go."""

    topic: str
    partition: int
    position: int | None
    new_position: int
    log_end: int
    lag: int
    note: str | None


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a group goes on: one of --to, --to-time and --shift-by. `positions`: those before."""

    to: str | None
    to_time: str | None
    shift_by: int | None
    positions: Positions

    def moves(self, topic: Topic, snapshot: Snapshot, partitions: Collection[int] | None) -> Iterator[Move]:
        """The moves in these partitions of a topic, or in all."""
        bounds = snapshot.offset_bounds()
        chosen = sorted(bounds if partitions is None else partitions)
        for number in chosen:
            snapshot.check_partition(number)
        firsts = {} if self.to_time is None else offsets_at(topic, self.to_time)
        for number in chosen:
            log_start, log_end = bounds[number]
            target, note = self._offset(snapshot.topic, number, log_start, log_end, firsts)
            position = self.positions.get((snapshot.topic, number))
            before = None if position is None else position.offset
            yield Move(snapshot.topic, number, before, target, log_end, log_end - target, note)

    def _offset(
        self, topic: str, partition: int, log_start: int, log_end: int, firsts: Mapping[int, int | None]
    ) -> tuple[int, str | None]:
        """(the offset, why it is not the one that was asked for)"""
        if self.shift_by is not None:
            return _shifted(self.positions, topic, partition, self.shift_by, log_start, log_end)
        if self.to is not None:
            return _target(self.to, f"{topic}-{partition}", log_start, log_end), None
        first = firsts[partition]
        if first is None:
            # Everything is older than that time: any lower offset would read it again.
            return log_end, "the log end: no record is so late"
        return first, None


@dataclass(frozen=True, slots=True)
class PositionOptions:
    """--to, --to-time and --shift-by, of which one says where a group goes on."""

    to: str | None = option("Where the group goes on.", metavar="OFFSET|earliest|latest")
    to_time: str | None = option("At the first record not older: ms since 1970 or ISO.", metavar="TIME")
    shift_by: int | None = option("So many offsets on, or back where it is negative.", metavar="N")

    def check(self) -> None:
        """Raises InvalidOptionError for none of them, or several."""
        if [self.to, self.to_time, self.shift_by].count(None) != 2:
            raise InvalidOptionError("Where does the group go on?", expected="one of --to, --to-time and --shift-by")


@with_options
def reset(
    target: PositionOptions,
    location: LogOptions,
    group: str = GROUP,
    topic: list[str] = TOPICS,
    partitions: str | None = option("These partitions only.", metavar="N,N"),
    create: bool = flag("Make the group if there is none."),
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    output: Output = OUTPUT,
) -> None:
    """Moves the positions of a group in topics: to an offset, a time, or by a number of offsets.

    It shows where each position goes, and on a terminal asks first. A running
    reader of the group cannot commit afterwards, and says so.

    Example: segments groups reset /data/log billing orders --to earliest
    Example: segments groups reset /data/log billing orders --shift-by -100 --yes
    """
    target.check()
    log = location.open()
    handle = log.group(group)
    positions = handle.positions() if create else _positions(log, handle)
    snapshots = {name: log.topic(name).snapshot for name in log.named(topic)}
    numbers_chosen = None if partitions is None else numbers(partitions)
    moves: list[Move] = []
    rule = _Target(target.to, target.to_time, target.shift_by, positions)
    for name, snapshot in snapshots.items():
        moves += rule.moves(log.topic(name), snapshot, numbers_chosen)
    if output is Output.JSON:
        print_json({"group": group, "dry_run": dry_run, "positions": [asdict(move) for move in moves]})
    else:
        columns = RESET_COLUMNS if any(move.note for move in moves) else RESET_COLUMNS[:-1]
        print_table(columns, ([getattr(move, name) for name in columns] for move in moves))
    if dry_run:
        return
    confirm(f"Move {len(moves)} positions of group {group}?", yes)
    # Against the positions that were shown: a commit by a reader meanwhile is an error, and is not overwritten.
    handle.commit(positions, _new_positions(moves, snapshots))


def _new_positions(moves: Sequence[Move], snapshots: Mapping[str, Snapshot]) -> dict[str, dict[int, Position]]:
    """{topic: {partition: position}} where the moves go."""
    new_positions: dict[str, dict[int, Position]] = {name: {} for name in snapshots}
    for move in moves:
        state = PartitionState.of(snapshots[move.topic], move.partition)
        new_positions[move.topic][move.partition] = state.position(move.new_position)
    return new_positions


@with_options
def delete(location: LogOptions, group: str = GROUP, dry_run: bool = DRY_RUN, yes: bool = YES) -> None:
    """Forgets all positions of a group. On a terminal it asks first.

    Positions whose file is damaged go, too. A reader that goes on in the
    group cannot commit what it read before.

    Example: segments groups delete /data/log billing --yes
    """
    log = location.open()
    handle = log.group(group)
    try:
        positions = _positions(log, handle)
        text = f"{len(positions)} positions in {', '.join(sorted({topic for topic, _ in positions}))}"
    except SegmentsError as error:
        if isinstance(error, InvalidOptionError):
            raise
        text = f"what it has ({error})"
    if dry_run:
        print(f"Group {group} would forget {text}.")
        return
    confirm(f"Group {group} forgets {text}. Go on?", yes)
    handle.delete()
    print(f"Deleted group {group}.")


def _positions(log: LogDir, group: Group) -> Positions:
    """The positions of a group. Raises InvalidOptionError where it has none: no reader ever committed in it."""
    positions = group.positions()
    if not positions:
        groups = log.groups()
        shown = ", ".join(groups[:20]) + (", …" if len(groups) > 20 else "")
        raise InvalidOptionError(
            "No such group", path=log.uri, found=group.id, hint=f"There are: {shown or 'no groups'}"
        )
    return positions


def _target(to: str, where: str, log_start: int, log_end: int) -> int:
    offset = named_offset(to, log_start, log_end)
    if offset is not None:
        return offset
    if not (to.isascii() and to.isdigit()):
        raise InvalidOptionError("The text is no offset", expected="a number, earliest or latest", found=to)
    if not log_start <= int(to) <= log_end:
        side = "below the log start" if int(to) < log_start else "above the log end"
        raise OffsetOutOfRangeError(
            f"The offset is {side} of {where}", expected=f"{log_start} to {log_end}, earliest or latest", found=to
        )
    return int(to)


def _shifted(
    positions: Positions, topic: str, partition: int, by: int, log_start: int, log_end: int
) -> tuple[int, str | None]:
    before = positions.get((topic, partition))
    if before is None:
        raise InvalidOptionError(
            f"Group {positions.group} has no position in {topic}-{partition} to shift", hint="Use --to, or --partitions"
        )
    target = before.offset + by
    # Clipped to the log: nothing can be read below its start, and a group above its end would skip the next appends.
    if target < log_start:
        return log_start, f"the log start: {target} is below it"
    if target > log_end:
        return log_end, f"the log end: {target} is above it"
    return target, None
