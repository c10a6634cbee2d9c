"""`segments consume`: prints records, as Kafka's console consumer does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.ahead import reading_threads
from spark_segments.cli import completion
from spark_segments.cli.arguments import named_offset, offsets_at
from spark_segments.cli.command_options import (
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
from spark_segments.cli.output import Output, print_json
from spark_segments.cli.records.follow import Follower, GroupReader, consume_rounds, last_records
from spark_segments.cli.records.record_text import LineTemplate, Properties, write_records
from spark_segments.cli.records.value_text import ConsoleOptions, guessed
from spark_segments.errors import InvalidOptionError
from spark_segments.quantities import human_bytes, plural, span_ms
from spark_segments.values.format_options import has_one_encoding

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.face.topic import Topic
    from spark_segments.log import KeyCoverage


_TIME_PREFIXES = {"s@": "from_time", "e@": "to_time"}
"""{what kcat writes before a time in -o: the option that has the same meaning}"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Which records are read, in what way, and how they are printed."""

    partition: int | None = option("Read this partition only.")
    key: str | None = option("Print the records of this key. All partitions are read.", metavar="KEY")
    all_partitions: bool = flag("With --key: read all partitions, which is the default.")
    where: list[str] | None = option(
        "Print the records with this header, or field of the decoded value; again: of any of the values of a field, "
        "and of all fields.",
        metavar="FIELD=VALUE",
    )
    latest: bool = flag("With --key or --where: print the newest record of each key alone, as the view latest has it.")
    offset: str = option(
        "The first offset; -N counts from the log end; also earliest, latest, s@TIME, e@TIME.",
        "-o",
        default="beginning",
        metavar="N|beginning|end",
    )
    from_beginning: bool = flag("Begin at the log start, which is the default.")
    tail: int | None = option("Print the newest N records of all partitions, by time.", metavar="N", min=0)
    end_offset: int | None = option("Stop before this offset.")
    from_time: str | None = FROM_TIME
    to_time: str | None = TO_TIME
    times: str | None = option(
        "Exactly the records of these times, end exclusive, in whatever order they lie.", metavar="START..END"
    )
    max_messages: int | None = option("Stop after this number of records.", "-n", min=0)
    count: bool = flag("Print how many records there are, in place of the records.")
    follow: bool = flag("Wait for more records, until Ctrl-C, SIGTERM or --max-messages.")
    poll_interval: str = option("With --follow: how often to look, such as 500ms.", default="1s", metavar="DURATION")
    group: str | None = option(
        "Begin at this group's positions, and commit what was printed.",
        metavar="NAME",
        autocompletion=completion.groups,
    )
    template: str | None = option("How a record is printed, in kcat's letters.", "-f", metavar="TEXT")
    isolation_level: str = ISOLATION_LEVEL
    version: int | None = option("Read the topic as it was at this version.")
    quiet: bool = flag("Say nothing of formats that were guessed.", "-q")
    output: Output = OUTPUT

    def checked(self, topic: Topic) -> Reading:
        """The same, whose offset is none of kcat's times: s@ is --from-time, e@ --to-time. Raises InvalidOptionError
        for options that exclude each other, UnknownTopicError for a partition that the topic does not have.
        """
        if self.partition is not None:
            topic.snapshot.check_partition(self.partition)
        reading = self._with_times()
        reading._check_beginning()
        reading._check_end()
        reading._check_count()
        if reading.all_partitions and reading.key is None:
            raise InvalidOptionError("All partitions are read without a key", expected="--key")
        reading._check_latest()
        return reading

    def _with_times(self) -> Reading:
        for prefix, option_name in _TIME_PREFIXES.items():
            if not self.offset.startswith(prefix):
                continue
            time = getattr(self, option_name)
            if time is not None:
                found = f"{self.offset} and {time}"
                raise InvalidOptionError("Two options are that time", expected="one", found=found)
            text = self.offset.removeprefix(prefix)
            return replace(self, offset="beginning", **{option_name: text})  # type: ignore[arg-type]
        return self

    def _check_beginning(self) -> None:
        if self.from_beginning and (self.offset != "beginning" or self.from_time or self.tail is not None):
            raise InvalidOptionError(
                "The log start is not the only beginning", expected="one", found="--from-beginning"
            )

    def _check_end(self) -> None:
        """A group's positions say that all before them was read, so none may stand behind a record left out."""
        has_end = self.end_offset is not None or bool(self.to_time) or self.version is not None
        if has_end and (self.follow or self.group is not None):
            raise InvalidOptionError(
                "A reader that follows, or reads in a group, ends at the log end",
                expected="no --end-offset, --to-time, --version or e@TIME",
            )
        has_gaps = self.tail is not None or self.key is not None or self.times is not None or bool(self.where)
        if self.group is not None and has_gaps:
            expected = "no --tail, --key, --where and --times"
            raise InvalidOptionError("A group has read all before its positions", expected=expected)

    def _check_latest(self) -> None:
        if self.latest and self.key is None and not self.where:
            raise InvalidOptionError("--latest is the newest record of a key", expected="--key or --where")
        if self.latest and (self.follow or self.tail is not None):
            raise InvalidOptionError("The newest record of a key is one record", expected="no --follow and no --tail")

    def _check_count(self) -> None:
        is_printed = self.template is not None or self.tail is not None or self.group is not None or self.follow
        if self.count and is_printed:
            raise InvalidOptionError(
                "Records that are counted are not printed", expected="no -f, --tail, --group and --follow"
            )

    def partitions(self, topic: Topic) -> list[int]:
        """The partitions to read. Those of a key are all, too: each client has a partitioner that its user may choose
        (librdkafka's default is crc32 where Kafka's is murmur2), and a topic does not note the partitioner of its
        records.
        """
        return [*range(len(topic.offsets()))] if self.partition is None else [self.partition]

    @property
    def fields(self) -> dict[str, list[str]]:
        """{field: values} of --where. Raises InvalidOptionError for a text without a value."""
        fields: dict[str, list[str]] = {}
        for text in self.where or []:
            field, equals, value = text.partition("=")
            if not equals:
                expected = "FIELD=VALUE, such as header.trace-id=4bf92f or value.order.id=7"
                raise InvalidOptionError("The text is no condition", expected=expected, found=text)
            fields.setdefault(field, []).append(value)
        return fields

    def only_its_key(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records of the key. Raises InvalidOptionError where keys are of a type without text."""
        for batch in batches:
            if self.key is not None:
                keys = batch.column("key")
                try:
                    key = pa.scalar(self.key).cast(keys.type)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                    raise InvalidOptionError("The text is no key", expected=keys.type, found=self.key) from None
                batch = batch.filter(pc.equal(keys, key))
            yield batch

    def ranges(self, topic: Topic) -> dict[int, tuple[int, int]]:
        """{partition: (first offset, end offset)}. What is past the end is said on standard error."""
        bounds = topic.offsets()
        partitions = self.partitions(topic)
        starts = offsets_at(topic, self.from_time) if self.from_time else {}
        ends = offsets_at(topic, self.to_time) if self.to_time else {}
        ranges: dict[int, tuple[int, int]] = {}
        past_end: list[str] = []
        for number in partitions:
            log_start, log_end = bounds[number]
            start = self._start(log_start, log_end)
            if self.from_time:
                first = starts[number]
                # Without a record so late nothing is read: at the log start all older records would be printed.
                start = log_end if first is None else first
            end = log_end if self.end_offset is None else self.end_offset
            time_end = ends.get(number)
            if time_end is not None:
                end = min(end, time_end)
            ranges[number] = (start, end)
            if start > log_end:
                past_end.append(f"{topic.name}-{number} ends at {log_end}")
        if past_end:
            print(f"Offset {self.offset} is past the log end: {', '.join(past_end[:8])}", file=sys.stderr)
        if self.from_time and all(starts[number] is None for number in partitions):
            print(f"No record of {topic.name} is of {self.from_time} or later", file=sys.stderr)
        return ranges

    def _start(self, log_start: int, log_end: int) -> int:
        offset = named_offset(self.offset, log_start, log_end)
        if offset is not None:
            return offset
        try:
            number = int(self.offset)
        except ValueError:
            raise InvalidOptionError(
                "The text is no offset", expected="a number, beginning or end", found=self.offset
            ) from None
        if number >= 0:
            return number
        # Counted from the end, clipped: -10 of a topic of three records is all three, not an offset below the log.
        return max(log_start, log_end + number)


Read = Callable[..., Iterator[pa.RecordBatch]]
"""Reads records: takes {partition: (first offset, end offset)}, a version of the topic, names of columns."""

Write = Callable[..., int]
"""Prints the records of batches, at most `limit` (None: all), and returns how many."""


def reader_of(log: LogDir, topic: Topic, reading: Reading, formats: Mapping[str, str]) -> Read:
    """What reads records of a topic, with keys and values in these formats."""

    def read(
        offsets: Mapping[int, tuple[int, int]], version: int | None = None, columns: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        topic_at_version = topic if version is None else log.topic(topic.name, version=version)
        # A key whose value has one encoding is found by its bytes, by the index. Any other is compared once decoded.
        by_bytes = reading.key is not None and has_one_encoding(formats)
        compares_decoded = reading.key is not None and not by_bytes
        scan = topic_at_version.scan(
            offsets=dict(offsets),
            columns=[*columns, "key"] if columns is not None and compares_decoded else columns,
            view="latest" if reading.latest else None,
            isolation=reading.isolation_level,
            formats=formats if columns is None or compares_decoded or reading.where else None,
            times=reading.times,
            where=reading.fields,
        )
        if reading.key is not None and by_bytes:
            scan = scan.of_keys(topic_at_version.key_bytes(reading.key, formats), log.key_offsets)
        is_read_once = not reading.follow and reading.tail is None
        if is_read_once and not reading.quiet and scan.coverage is not None:
            print(coverage_line(scan.coverage), file=sys.stderr)
        batches = scan.batches(threads=reading_threads(log.storage))
        if compares_decoded:
            batches = reading.only_its_key(batches)
        return batches if columns is None else (batch.select(columns) for batch in batches)

    return read


def coverage_line(coverage: KeyCoverage) -> str:
    """What a look-up of a key looked at, on a line: an answer that says nothing may be a part of one."""
    facts = coverage.to_dict()
    line = f"the index answered for {plural(facts['indexed_offsets'], 'offset')}"
    line += f" ({plural(facts['runs'], 'run')}, {human_bytes(facts['index_bytes'])})"
    if facts["unreadable_runs"]:
        line += f", of which {plural(facts['unreadable_runs'], 'run')} could not be read"
    line += f"; {plural(facts['scanned_offsets'], 'offset')} scanned"
    return f"{line}: {facts['index_error']}" if facts["index_error"] else line


def counted(read: Read, reading: Reading, ranges: Mapping[int, tuple[int, int]]) -> int:
    """How many records a reading has that ends at the log end or before. Mostly the manifest says it."""
    count: int = sum(batch.num_rows for batch in read(ranges, columns=["offset"]))
    return count if reading.max_messages is None else min(count, reading.max_messages)


def bounded(read: Read, reading: Reading, ranges: Mapping[int, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    """The records of a reading that ends at the log end or before."""
    return read(ranges) if reading.tail is None else last_records(read, ranges, reading.tail)


@with_options
def consume(reading: Reading, location: LogOptions, values: ConsoleOptions, topic: str = TOPIC) -> None:
    """Prints the records in the topic, partition by partition, by offset. With --follow it waits for more.

    Properties choose the columns: print.key, print.value, print.offset,
    print.partition, print.timestamp, print.headers (true or false); and the
    text between them: key.separator, line.separator, null.literal. With
    --output json a record is a line that `append` takes.

    -f prints a record in the letters of kcat: %t topic, %p partition, %o
    offset, %T timestamp in ms, %k key, %v or %s value, %h headers; %K, %V and
    %S their lengths, -1 for null, %R that of the value as four bytes.

    TIME is milliseconds since 1970, an ISO time, today, yesterday, or such as
    `2 hours ago`; in UTC where there is no zone. --from-time and --to-time are
    Kafka's rule: offsets from the first record that is as late on, so a late
    record can be missing and an early one there. --times are exactly the
    records of a range.

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

    --key asks the index of the topic's keys, where `segments index` has made
    one, and scans what that does not have: the records are all that the key
    has, in whatever partition. A line on standard error says what was looked
    at. --latest prints the newest record alone. A key that writers put into
    several partitions themselves has one in each.

    --where does the same for a header or a field of the decoded value, where
    `segments index --on` has made an index: header.NAME=TEXT, or
    value.PATH=VALUE with --value-format. Given again, it asks for any of the
    values of a field, and for records that have all the fields. The first =
    ends the field's name. The formats have to be those of the index. With
    --latest the newest record of each key is printed, if it matches, and all
    is scanned.

    Example: segments consume /data/log orders -n 10 \\
      --from-time "2 hours ago" --property print.key=true
    Example: segments consume /data/log orders -o -10 -f '%p %o %k %v\\n'
    Example: segments consume /data/log orders --follow --group audit
    Example: segments consume /data/log orders --key ada@example.org
    Example: segments consume /data/log orders --key ada@example.org --latest
    Example: segments consume /data/log orders --where header.trace-id=4bf92f
    Example: segments consume /data/log orders --times yesterday..today --count
    """
    log = location.open()
    handle = log.topic(topic, reading.version)
    reading = reading.checked(handle)
    formats, write = _printing(log, topic, reading, values)
    read = reader_of(log, handle, reading, formats)
    ranges = reading.ranges(handle)
    if reading.count:
        _print_count(topic, counted(read, reading, ranges), reading.output)
    elif not reading.follow and reading.group is None:
        write(bounded(read, reading, ranges), limit=reading.max_messages)
    else:
        _follow(log, handle, reading, read, write, ranges)


def _printing(log: LogDir, topic: str, reading: Reading, values: ConsoleOptions) -> tuple[Mapping[str, str], Write]:
    """(formats of keys and values, what prints records). Guessed formats are announced on standard error."""
    template = None if reading.template is None else LineTemplate.of(reading.template)
    is_json = reading.output is Output.JSON
    if template is not None and (values.properties or is_json):
        raise InvalidOptionError("Two options say how a record is printed", expected="-f, --property or --output json")
    formats, property_texts = values.split()
    properties = Properties.of(property_texts, ["print.json=true"] if is_json else [])
    if not properties.flag("print.json"):  # JSON lines may be appended elsewhere: a guess would change their bytes
        formats, guesses = guessed(log, topic, formats)
        for guess in () if reading.quiet else guesses:
            print(guess, file=sys.stderr)
    return formats, partial(write_records, sys.stdout.buffer, properties=properties, template=template)


def _print_count(topic: str, count: int, output: Output) -> None:
    if output is Output.JSON:
        print_json({"topic": topic, "records": count})
    else:
        print(count)


def _follow(
    log: LogDir,
    topic: Topic,
    reading: Reading,
    read: Read,
    write: Write,
    ranges: Mapping[int, tuple[int, int]],
) -> None:
    """Prints the newest records where --tail asks for them, then round by round what follows."""
    group = None if reading.group is None else GroupReader(log, topic.name, reading.group)
    starts = {number: start for number, (start, _) in ranges.items()}
    remaining = reading.max_messages
    if reading.tail is not None:
        # The tail ends where the first round begins: at the last stable offset for committed reads. At the log end,
        # records of a transaction that is still open would be skipped for good.
        stable = topic.snapshot.offset_bounds(reading.isolation_level)
        starts = {number: max(start, stable[number][1]) for number, start in starts.items()}
        tail = {number: (ranges[number][0], start) for number, start in starts.items()}
        written = write(bounded(read, reading, tail), limit=remaining)
        if remaining is not None:
            remaining -= written
    if group is not None:
        starts |= group.starts(log.topic(topic.name).snapshot, [*ranges])
    follower = Follower(
        log,
        topic.name,
        starts,
        read,
        all_partitions=reading.partition is None,
        committed=reading.isolation_level == "read_committed",
    )
    poll_seconds = span_ms(reading.poll_interval) / 1000 if reading.follow else None
    consume_rounds(follower, partial(write, limit=None), group=group, poll_seconds=poll_seconds, most=remaining)
