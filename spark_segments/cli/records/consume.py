"""`segments consume`: prints records, as Kafka's console consumer does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_segments.ahead import reading_threads
from spark_segments.cli import completion
from spark_segments.cli.arguments import timestamp_ms
from spark_segments.cli.options import (
    FROM_TIME,
    ISOLATION_LEVEL,
    OUTPUT,
    TO_TIME,
    TOPIC,
    LogOptions,
    flag,
    option,
    with_options,
)
from spark_segments.cli.output import Output
from spark_segments.cli.records.follow import Follower, GroupReader, consume_rounds, last_records
from spark_segments.cli.records.record_text import LineTemplate, Properties, write_records
from spark_segments.cli.records.value_text import ConsoleOptions, guessed
from spark_segments.errors import InvalidOptionError
from spark_segments.log import offsets_for_times
from spark_segments.quantities import duration_ms

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Snapshot


@with_options
def consume(
    location: LogOptions,
    values: ConsoleOptions,
    topic: str = TOPIC,
    partition: int | None = option("Read this partition only."),
    offset: str = option(
        "The first offset; -N counts from the log end; also earliest, latest, s@TIME, e@TIME.",
        "-o",
        default="beginning",
        metavar="N|beginning|end",
    ),
    from_beginning: bool = flag("Begin at the log start, which is the default."),
    tail: int | None = option("Print the newest N records of all partitions, by time.", metavar="N", min=0),
    end_offset: int | None = option("Stop before this offset."),
    from_time: str | None = FROM_TIME,
    to_time: str | None = TO_TIME,
    max_messages: int | None = option("Stop after this number of records.", "-n", min=0),
    follow: bool = flag("Wait for more records, until Ctrl-C, SIGTERM or --max-messages."),
    poll_interval: str = option("With --follow: how often to look, such as 500ms.", default="1s", metavar="TIME"),
    group: str | None = option(
        "Begin at this group's positions, and commit what was printed.",
        metavar="NAME",
        autocompletion=completion.groups,
    ),
    template: str | None = option("How a record is printed, in kcat's letters.", "-f", metavar="TEXT"),
    isolation_level: str = ISOLATION_LEVEL,
    version: int | None = option("Read the topic as it was at this version."),
    quiet: bool = flag("Say nothing of formats that were guessed.", "-q"),
    output: Output = OUTPUT,
) -> None:
    """Prints the records in the topic, partition by partition, by offset. With --follow it waits for more.

    Properties choose the columns: print.key, print.value, print.offset,
    print.partition, print.timestamp, print.headers (true or false); and the
    text between them: key.separator, line.separator, null.literal. With
    --output json a record is a line that `append` takes.

    -f prints a record in the letters of kcat: %t topic, %p partition, %o
    offset, %T timestamp in ms, %k key, %v or %s value, %h headers; %K, %V and
    %S their lengths, -1 for null, %R that of the value as four bytes.

    TIME is milliseconds since 1970, an ISO time, today, yesterday, or such as
    `2 hours ago`; in UTC where there is no zone.

    At a terminal, control characters of a record are shown escaped; a pipe or a
    file gets its bytes.

    --value-format and --key-format name the formats of the bytes. Without
    them the first records are looked at: numbers and values in Confluent's
    wire format are decoded, other bytes are printed as text. A guess is
    announced on standard error. With --output json nothing is guessed.

    --follow reads on, round by round, over rolls, compaction and retention,
    and partitions that are added. --group NAME keeps positions: it begins
    where the group's last reader ended (elsewhere at --offset), and commits
    what was printed every 5 seconds and at the end. After a crash some records
    are printed again. Two readers of a partition in one group: the second
    commit fails.

    Example: segments consume /data/log orders -n 10 \\
      --from-time "2 hours ago" --property print.key=true
    Example: segments consume /data/log orders -o -10 -f '%p %o %k %v\\n'
    Example: segments consume /data/log orders --follow --group audit
    """
    log = location.open()
    handle = log.topic(topic, version)
    snapshot = handle.snapshot
    wanted = sorted(snapshot.offset_bounds()) if partition is None else [partition]
    for number in wanted:
        snapshot.check_partition(number)
    from_time, to_time, offset = _times_of(offset, from_time, to_time)
    if from_beginning and (offset != "beginning" or from_time or tail is not None):
        raise InvalidOptionError("The log start is not the only beginning", expected="one", found="--from-beginning")
    lines = None if template is None else LineTemplate.of(template)
    if lines is not None and (values.properties or output is Output.JSON):
        raise InvalidOptionError("Two options say how a record is printed", expected="-f, --property or --output json")
    formats, properties = values.split()
    shown = Properties.of(properties, ["print.json=true"] if output is Output.JSON else [])
    if not shown.flag("print.json"):  # JSON lines may be appended elsewhere: a guess would change their bytes
        formats, guesses = guessed(log, topic, formats)
        for guess in () if quiet else guesses:
            print(guess, file=sys.stderr)

    def scanned(offsets: dict[int, tuple[int, int]], columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        wanted_formats = formats if columns is None else None
        scan = handle.scan(offsets=offsets, columns=columns, isolation=isolation_level, formats=wanted_formats)
        return scan.batches(threads=reading_threads(log.storage))

    def read_at(number: int, start: int, end: int, at: int) -> Iterator[pa.RecordBatch]:
        nonlocal handle
        if handle.version != at:  # a round reads all its partitions of one version
            handle = log.topic(topic, version=at)
        return scanned({number: (start, end)})

    ranges = _ranges(log, snapshot, wanted, offset, end_offset, from_time, to_time)
    if follow or group is not None:
        if tail is not None or end_offset is not None or to_time or version is not None:
            raise InvalidOptionError(
                "A reader that follows, or reads in a group, ends at the log end",
                expected="no --tail, --end-offset, --to-time, --version or e@TIME",
            )
        reader = None if group is None else GroupReader(log, topic, group)
        starts = {number: start for number, (start, _) in ranges.items()}
        if reader is not None:
            starts |= reader.starts(log.topic(topic).snapshot, wanted)
        follower = Follower(
            log, topic, starts, read_at,
            all_partitions=partition is None, committed=isolation_level == "read_committed",
        )  # fmt: skip
        poll_seconds = duration_ms(poll_interval) / 1000 if follow else None
        write = partial(write_records, sys.stdout.buffer, properties=shown, limit=None, template=lines)
        consume_rounds(follower, write, group=reader, poll_seconds=poll_seconds, most=max_messages)
        return
    records: Iterator[pa.RecordBatch]
    if tail is None:
        records = scanned(ranges)
    else:
        filled = {number: ends for number, ends in ranges.items() if ends[0] < ends[1]}
        records = last_records(lambda number, start, end, names: scanned({number: (start, end)}, names), filled, tail)
    write_records(sys.stdout.buffer, records, shown, max_messages, lines)


def _ranges(
    log: LogDir,
    snapshot: Snapshot,
    wanted: Sequence[int],
    offset: str,
    end_offset: int | None,
    from_time: str | None,
    to_time: str | None,
) -> dict[int, tuple[int, int]]:
    """{partition: (first offset, end offset)} of what the options ask for. What is past the end is said on standard
    error.
    """
    bounds = snapshot.offset_bounds()

    def firsts(time: str | None) -> dict[int, tuple[int, int] | None]:
        return offsets_for_times(log.storage, snapshot, dict.fromkeys(bounds, timestamp_ms(time))) if time else {}

    starts, ends = firsts(from_time), firsts(to_time)
    ranges, past = {}, []
    for number in wanted:
        log_start, log_end = bounds[number]
        start = _start(offset, log_start, log_end)
        if from_time:
            start = log_end if (first := starts[number]) is None else first[0]
        end = log_end if end_offset is None else end_offset
        if to_time and (last := ends[number]) is not None:
            end = min(end, last[0])
        ranges[number] = (start, end)
        if start > log_end:
            past.append(f"{snapshot.topic}-{number} ends at {log_end}")
    if past:
        print(f"Offset {offset} is past the log end: {', '.join(past[:8])}", file=sys.stderr)
    if from_time and all(starts[number] is None for number in wanted):
        print(f"No record of {snapshot.topic} is of {from_time} or later", file=sys.stderr)
    return ranges


def _times_of(offset: str, from_time: str | None, to_time: str | None) -> tuple[str | None, str | None, str]:
    """(--from-time, --to-time, --offset) where the offset is a time in kcat's notation: s@ the first, e@ the end."""
    for prefix, given in (("s@", from_time), ("e@", to_time)):
        if offset.startswith(prefix):
            if given is not None:
                raise InvalidOptionError("Two options are that time", expected="one", found=f"{offset} and {given}")
            time = offset.removeprefix(prefix)
            return (time, to_time, "beginning") if prefix == "s@" else (from_time, time, "beginning")
    return from_time, to_time, offset


def _start(offset: str, log_start: int, log_end: int) -> int:
    if offset in ("beginning", "earliest"):
        return log_start
    if offset in ("end", "latest"):
        return log_end
    try:
        number = int(offset)
    except ValueError:
        raise InvalidOptionError("The text is no offset", expected="a number, beginning or end", found=offset) from None
    return number if number >= 0 else max(log_start, log_end + number)
