"""Every operation that changes a topic or what lies beside it: what it does to the log, and what to the model.

An operation is a line of `OPERATIONS`: its name, what it does to the log, what to the model, and when it can be done.
What it does to the log returns what the model has to know: the records, the keys.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_segments import LogDir
from spark_segments.errors import (
    ErasedRecordsError,
    LogDirError,
    OffsetOutOfRangeError,
    SegmentsError,
    TransactionOrderError,
)
from spark_segments.kafka_protocol import ReplayOptions, capture, replay
from spark_segments.maintenance import (
    compact,
    erase,
    index,
    mirror,
    promote,
    restore,
    retain,
    roll,
    table,
    vacuum,
)
from verification.kafka_protocol.broker import make_topic
from verification.kafka_protocol.serving import serving
from verification.pairs.model import Partition, Record
from verification.pairs.world import (
    DAY_MS,
    HEADER,
    HOUR_MS,
    MINUTE_MS,
    Replayed,
    Row,
    SignedList,
    Table,
    World,
    check_equal,
    segments,
)
from verification.world.kafka_side import ABORT, COMMIT, TIME_MS, KafkaSide

MOST_PARTITIONS = 4

NOTE_LAG_MS = DAY_MS // 8
"""How far `at_ms` of `captured.<partition>` may lie behind, as docs/format/states.md has it: an eighth of
delete.retention.ms, which is a day in all topics here."""


def always(_: World) -> bool:
    return True


def nothing(_: World, __: Any) -> None:
    """The model does not change: readers see what they saw."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`on_log` does it, `on_model` gets what that returned. `when`: whether it can be done in this world. `is_spark`:
    Spark does it.
    """

    name: str
    on_log: Callable[[World], Any]
    on_model: Callable[[World, Any], None] = nothing
    when: Callable[[World], bool] = always
    is_spark: bool = False


# Appends


def append(world: World) -> Any:
    """A record of each key, and a second one of the first; their times are out of order."""
    keys = world.keys_now()
    ages = [world.chance.randrange(5) * MINUTE_MS for _ in keys]
    return world.append(world.rows([*keys, keys[0]], [*ages, 10 * MINUTE_MS]))


def append_late(world: World) -> Any:
    """Records that are ten minutes old, as of a device that was offline."""
    return world.append(late_rows(world))


def late_rows(world: World) -> list[Row]:
    keys = world.keys_now()
    return world.rows(keys, [10 * MINUTE_MS] * len(keys))


def append_old(world: World) -> Any:
    """Records of twenty days ago."""
    keys = world.keys_now()
    return world.append(world.rows(keys, [20 * DAY_MS] * len(keys)))


def append_tombstones(world: World) -> Any:
    keys = [key for key in world.keys if key is not None][:2]
    return world.append(world.rows(keys, [0] * len(keys), tombstones=True))


def append_once(world: World) -> Any:
    """With an idempotency key, and again: the second adds nothing."""
    rows = world.rows(world.keys_now()[:2], [0, 0])
    once = f"load/{world.made}"
    placed = world.append(rows, once=once)
    world.append(rows, once=once)
    world.has_unnamed_files = True
    return placed


def append_transactions(world: World) -> Any:
    """A transaction, the same again, and one that is older, which is refused."""
    rows = world.rows(world.keys_now()[:2], [0, 0])
    placed = world.append(rows, txn=("query", world.made))
    world.append(rows, txn=("query", world.made))
    world.has_unnamed_files = True
    try:
        world.append(rows, txn=("query", world.made - 1))
    except TransactionOrderError:
        return placed
    raise AssertionError("an older transaction is appended")


def append_by_stream(world: World) -> Any:
    """A micro-batch of a query whose sink is the topic. It goes on from its checkpoint."""
    assert world.spark is not None
    keys = world.keys_now()
    rows = world.rows(keys, [10 * MINUTE_MS] * len(keys))
    world.spark.write(world, world.as_table(rows))
    world.has_own_records = True
    return world.placed(rows)


def may_stream(world: World) -> bool:
    """Executors do not know the clock of a history."""
    return world.spark is not None and not world.is_log_append_time


def appended(world: World, records: Mapping[int, list[Record]]) -> None:
    world.model.append(records)


# Jobs


def later(world: World, span_ms: int) -> None:
    world.clock.go_on(span_ms)


def roll_all(world: World) -> None:
    """All active segments are due after an hour."""
    later(world, 2 * HOUR_MS)
    succeeded(roll(world.log, topics=[world.topic]))


def roll_small(world: World) -> None:
    """segment.bytes is lowered: what is rolled becomes several segments."""
    world.log.topic(world.topic).alter({"segment.bytes": "120"})
    roll_all(world)
    world.log.topic(world.topic).alter({"segment.bytes": None})


def compact_all(world: World) -> None:
    roll_all(world)
    succeeded(compact(world.log, topics=[world.topic], force=True))


def compacted(world: World, _: Any) -> None:
    world.model.compact(world.clock.now_ms())


def index_all(world: World) -> None:
    """The index of keys, which `consume --key` asks from then on."""
    succeeded(index(world.log, topics=[world.topic]))


def index_header(world: World) -> None:
    """An index on a header, which `consume --where` asks from then on."""
    succeeded(index(world.log, topics=[world.topic], on=[f"header.{HEADER}"]))


def drop_tombstones(world: World) -> None:
    """The way that docs/how-to/erasure.md has for a key that must not stay."""
    topic = world.log.topic(world.topic)
    topic.alter({"delete.retention.ms": str(MINUTE_MS)})
    compact_all(world)
    later(world, 2 * DAY_MS)
    for _ in range(2):
        succeeded(compact(world.log, topics=[world.topic], force=True))
    topic.alter({"delete.retention.ms": world.config["delete.retention.ms"]})


def dropped_tombstones(world: World, _: Any) -> None:
    world.model.compact(world.clock.now_ms() - 2 * DAY_MS)
    world.model.compact(world.clock.now_ms())
    world.model.drop_tombstones()


def let_expire(world: World) -> None:
    """Forty days pass, and maintain runs: nothing is younger than retention.ms."""
    later(world, 40 * DAY_MS)
    for report in world.log.maintain([world.topic]):
        succeeded(report)
    world.forget_versions()


def let_active_expire(world: World) -> None:
    """The same in a topic that gets little: segment.ms has not passed. The active segment is rolled all the same."""
    topic = world.log.topic(world.topic)
    topic.alter({"segment.ms": str(365 * DAY_MS)})
    let_expire(world)
    topic.alter({"segment.ms": world.config["segment.ms"]})


def expired(world: World, _: Any) -> None:
    compacted(world, _)
    world.model.expire(world.clock.now_ms(), is_rolled=True)


def let_old_expire(world: World) -> None:
    """retention.ms is ten days for one run."""
    roll_all(world)
    world.log.topic(world.topic).alter({"retention.ms": str(10 * DAY_MS)})
    succeeded(retain(world.log, topics=[world.topic]))
    world.log.topic(world.topic).alter({"retention.ms": str(world.model.retention_ms)})


def old_expired(world: World, _: Any) -> None:
    usual_ms, world.model.retention_ms = world.model.retention_ms, 10 * DAY_MS
    world.model.expire(world.clock.now_ms(), is_rolled=False)
    world.model.retention_ms = usual_ms


def retain_size(world: World) -> None:
    roll_all(world)
    world.log.topic(world.topic).alter({"retention.bytes": "150"})
    succeeded(retain(world.log, topics=[world.topic]))
    world.log.topic(world.topic).alter({"retention.bytes": None})


def let_size_empty(world: World) -> None:
    """retention.bytes=0 leaves nothing, of the active segment neither: a broker rolls it before it deletes it."""
    topic = world.log.topic(world.topic)
    topic.alter({"retention.bytes": "0", "segment.ms": str(365 * DAY_MS)})
    for report in world.log.maintain([world.topic]):
        succeeded(report)
    topic.alter({"retention.bytes": None, "segment.ms": world.config["segment.ms"]})
    world.forget_versions()


def emptied(world: World, _: Any) -> None:
    compacted(world, _)
    world.model.empty()


def retain_max_bytes(world: World) -> None:
    roll_all(world)
    succeeded(retain(world.log, max_bytes=200, min_retention_ms=0))


def shrunk(world: World, _: Any) -> None:
    world.model.shrink()


def delete_records(world: World) -> dict[int, int]:
    """Up to the middle of each partition."""
    bounds = world.log.topic(world.topic).offsets()
    before = {number: (start + end + 1) // 2 for number, (start, end) in bounds.items()}
    world.log.topic(world.topic).delete_records(before)
    return before


def delete_all_records(world: World) -> dict[int, int]:
    bounds = world.log.topic(world.topic).offsets()
    world.log.topic(world.topic).delete_records(dict.fromkeys(bounds, -1))
    return {number: end for number, (_, end) in bounds.items()}


def deleted_records(world: World, before: dict[int, int]) -> None:
    world.model.delete_records(before)


def vacuum_all(world: World) -> None:
    later(world, 2 * DAY_MS)
    succeeded(vacuum(world.log, topics=[world.topic]))
    world.forget_versions()


def erase_first(world: World) -> Erased:
    return _erase(world, [next(key for key in world.keys if key)])


def erase_last(world: World) -> Erased:
    """The key that nothing decodes, where keys are typed."""
    return _erase(world, [[key for key in world.keys if key][-1]])


def erase_history(world: World) -> Erased:
    erasure = _erase(world, [next(key for key in world.keys if key)], history=True)
    world.forget_versions()
    return erasure


@dataclass(frozen=True, slots=True)
class Erased:
    """`is_noted`: whether the topic remembers the erasure, and so asks each archive for its keys."""

    keys: list[bytes]
    is_noted: bool


def _erase(world: World, keys: list[bytes], **options: Any) -> Erased:
    before = world.states().get("erasures")
    succeeded(erase(world.log, topics=[world.topic], keys=keys, now_ms=world.clock.now_ms(), **options))
    return Erased(keys, world.states().get("erasures") != before)


def erased(world: World, erasure: Erased) -> None:
    """An erasure that finds records below the log start alone, whose bytes are there, is noted, too."""
    end_before = {number: partition.end for number, partition in world.model.partitions.items()}
    found = world.model.erase(erasure.keys, world.clock.now_ms())
    assert erasure.is_noted or not found, f"an erasure of {found} is not noted"
    if erasure.is_noted and not found:
        found = world.model.note_erasure(erasure.keys)
    world.has_own_records |= end_before != {n: partition.end for n, partition in world.model.partitions.items()}
    for one in world.tables.values():
        one.erased.update(found)


# The topic


def altered(config: Mapping[str, str]) -> Callable[[World], None]:
    def alter(world: World) -> None:
        world.log.topic(world.topic).alter(config)
        world.config |= config
        world.is_log_append_time = world.config.get("message.timestamp.type") == "LogAppendTime"

    return alter


def has_policy(policy: str) -> Callable[[World, Any], None]:
    def on_model(world: World, _: Any) -> None:
        world.model.policy = frozenset(policy.split(","))

    return on_model


def add_partitions(world: World) -> int:
    """To twice as many."""
    count = len(world.model.partitions) * 2
    world.log.topic(world.topic).alter(partitions=count)
    return count


def added_partitions(world: World, count: int) -> None:
    world.model.add_partitions(count)


def make_again(world: World) -> None:
    """Deleted and made again at once, with a record of each key."""
    world.log.delete_topic(world.topic)
    _create_again(world)


def make_again_later(world: World) -> None:
    """Vacuum has taken all of the topic before it is made again."""
    world.log.delete_topic(world.topic)
    for _ in range(3):
        later(world, 10 * DAY_MS)
        succeeded(vacuum(world.log))
    _create_again(world)


def _create_again(world: World) -> None:
    names = ("cleanup.policy", "partitions")
    settings = {name: text for name, text in world.config.items() if name not in names}
    world.create(world.config["cleanup.policy"], len(world.model.partitions), **settings)
    world.forget_versions()
    world.group = None
    world.signed = None
    forget_copies(world)
    world.model.append(world.append(late_rows(world)))


def forget_copies(world: World) -> None:
    """An archive, a copy in Kafka's form and a replay follow a topic by its id, and no other one."""
    world.tables = {name: one for name, one in world.tables.items() if one.kind not in ARCHIVES}
    shutil.rmtree(world.directory / "copy", ignore_errors=True)
    world.copied = False
    world.replayed = None


def restore_first(world: World) -> bool:
    """The version that the history began with; it is refused where files of before an erasure would come back."""
    try:
        restore(world.log, topics=[world.topic], version=world.first_version)
    except ErasedRecordsError:
        return False
    return True


def restored(world: World, is_done: bool) -> None:
    assert is_done == (not world.model.erasures), "an erasure and a restore: what was erased is back, or no reason"
    if is_done:
        world.model.restore(world.versions[world.first_version])


def lose_manifest(world: World) -> bool:
    """The manifest is lost, and rebuilt from its recovery copy and notes. Returns whether the topic has kept its id.

    It gets another one where files are there that no commit names: those of an append that was a repeat, or refused.
    """
    topic_id = world.log.topic(world.topic).snapshot.topic_id
    shutil.rmtree(Path(world.log.uri, "_manifest", world.topic))
    world.reopen()
    ran = segments("verify", world.log.uri, world.topic, "--repair", "--yes")
    assert ran.code == 0, f"the manifest is not rebuilt: {ran.output.decode()} {ran.error}"
    world.reopen()
    world.forget_versions()
    world.signed = None  # what took its files was in the manifest
    is_kept = world.log.topic(world.topic).snapshot.topic_id == topic_id
    assert is_kept or world.has_unnamed_files, "the rebuilt topic has another id"
    return is_kept


def rebuilt(world: World, is_kept: bool) -> None:
    if not is_kept:
        forget_copies(world)
        world.follower = world.group = None


def lose_newest_commit(world: World) -> None:
    """A copy of the directory lacks the newest commit: verify and the next append say so. Then the file comes back."""
    commits = Path(world.log.uri, "_manifest", world.topic, "_delta_log").glob("*.json")
    newest = max(commits)
    if newest.with_suffix(".checkpoint.parquet").exists():
        return  # the checkpoint says it, too: nothing is lost
    aside = world.directory / newest.name
    newest.rename(aside)
    world.reopen()
    ran = segments("verify", world.log.uri, world.topic)
    assert ran.code == 3, f"verify finds nothing: {ran.output.decode()} {ran.error}"
    try:
        world.log.topic(world.topic).append([{"key": "ann", "value": "in place of another", "partition": 0}])
    except SegmentsError:
        world.has_unnamed_files = True  # those of the append
        aside.rename(newest)
        world.reopen()
        return
    raise AssertionError("an append takes the offset of an acknowledged record")


# Copies


def mirror_it(world: World) -> None:
    log = world.follower[0] if world.follower else LogDir.create(str(world.directory / f"follower-{world.made}"))
    succeeded(mirror(log, leader=world.log, topics=[world.topic]))
    world.follower = (log, world.seen())


def promote_it(world: World) -> None:
    """The follower becomes the leader, with all that the leader has."""
    assert world.follower is not None
    log, _ = world.follower
    succeeded(promote(log, topics=[world.topic]))
    world.fenced, world.follower = world.log, None
    world.use(log)
    world.forget_versions()
    world.signed = None
    world.group = None  # positions are the log directory's
    world.captured_ms, world.is_late = None, False  # and so is what a capture notes


def export_and_import(world: World) -> None:
    """An export, imported into another log directory, again and again."""
    directory, copy = world.directory / "exported", world.directory / "copy"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    world.log.export_kafka(str(directory), world.topic)
    log = LogDir.open(str(copy)) if copy.exists() else LogDir.create(str(copy))
    log.import_kafka(str(directory), world.topic)
    world.copied = True
    ours, theirs = world.seen(), world.seen(log)
    assert theirs.keys() == ours.keys()
    for number, one in ours.items():
        assert (theirs[number].start, theirs[number].end) == (one.start, one.end), (theirs[number], one)
        lost = one.records.keys() - theirs[number].records.keys()
        assert not lost, f"the import drops {sorted(lost)} of partition {number}"


LATE = "A compacted partition was captured late"


def sign(world: World) -> None:
    path, key = world.directory / "signed.list", world.directory / "key.pem"
    if not key.exists():
        _make_key(key)
    options = ("--deep", "--sign", key, "--checksums", path, "--output", "json")
    ran = segments("verify", world.log.uri, world.topic, *options)
    # That a capture came late is a finding, and a log with findings is not signed.
    messages = {finding["message"] for finding in json.loads(ran.output)["findings"]}
    assert messages <= {LATE}, f"finds {sorted(messages)}"
    if world.is_late is not None:
        check_equal(bool(messages), world.is_late)
    check_equal(ran.code, 3 if messages else 0)
    if messages:
        return
    world.signed = SignedList(path, world.live_files(), world.log.topic(world.topic).version)


def _make_key(path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


# Tables

ARCHIVES = ("archive", "archive-of-days")


def table_of(kind: str, table_format: str) -> Callable[[World], str]:
    """Makes the table, or brings it up to date. An archive gets all keys that were erased since it was made."""
    name = f"{table_format} {kind}"

    def on_log(world: World) -> str:
        return run_table(world, name)

    return on_log


def run_table(world: World, name: str) -> str:
    table_format, kind = name.split()
    one = world.tables.get(name)
    uri = one.uri if one else str(world.directory / table_format / f"{kind}-{world.made}")
    Path(uri).parent.mkdir(exist_ok=True)
    options: dict[str, Any] = {"formats": world.formats} if world.formats else {}
    if kind == "days":
        options["partition_by"] = "day"
    if kind == "latest":
        options["view"] = "latest"
    if kind in ARCHIVES:
        options["archive"] = True
        options["partition_by"] = "day" if kind == "archive-of-days" else None
        options["keys"] = sorted(one.erased) if one else ()
    if table_format == "iceberg":
        options["table_format"] = "iceberg"
    succeeded(table(world.log, topics=[world.topic], table_uri=uri, **options))
    return uri


def has_table(kind: str, table_format: str) -> Callable[[World, str], None]:
    name = f"{table_format} {kind}"

    def on_model(world: World, uri: str) -> None:
        table_has_run(world, name, uri)

    return on_model


def table_has_run(world: World, name: str, uri: str) -> None:
    kind = name.split()[1]
    one = world.tables.setdefault(name, Table(uri, kind, {}))
    model = world.model
    if kind == "latest":
        one.rows = model.latest(tombstones=False, committed=True)
        return
    rows = model.records(committed=True)
    if kind in ARCHIVES:
        kept = {
            place: record
            for place, record in one.rows.items()
            if not any(one.commits[place] < erasure for erasure in model.erasures.get(record.key, ()))
        }
        new = {place: record for place, record in rows.items() if place[1] >= one.reached.get(place[0], 0)}
        one.commits |= {place: model.commit_of(place) for place in new}
        rows = kept | new
        one.reached = {number: partition.stable_end for number, partition in model.partitions.items()}
    one.rows = rows


# A cluster


def replay_it(world: World) -> None:
    """The topic there has as many partitions as this one may ever have."""
    address = world.cluster()
    if world.replayed is None:
        world.replayed = Replayed(f"{world.topic}-{world.made}")
        make_topic(address, world.replayed.topic, MOST_PARTITIONS)
    options = ReplayOptions(name=world.replayed.topic, rename={world.topic: world.replayed.topic})
    try:
        succeeded(replay(world.log, address, [world.topic], options))
    except OffsetOutOfRangeError:
        assert not may_replay(world, world.replayed), "a replay of what is there is refused"
    else:
        assert may_replay(world, world.replayed), "a replay passes over records that have left the log"


def may_replay(world: World, replayed: Replayed) -> bool:
    """Whether nothing that was to be sent has left the log."""
    partitions = world.model.partitions
    return all(partitions[number].start <= reached for number, reached in replayed.reached.items())


def has_replayed(world: World, _: Any) -> None:
    assert world.replayed is not None
    if not may_replay(world, world.replayed):
        return
    committed = world.model.records(committed=True)
    for number, partition in world.model.partitions.items():
        begin = world.replayed.reached.get(number, partition.start)
        new = [record for place, record in committed.items() if place[0] == number and place[1] >= begin]
        world.replayed.rows.setdefault(number, []).extend(new)
        world.replayed.reached[number] = max(begin, partition.stable_end)


# Groups


def read_as_group(world: World) -> dict[int, int]:
    """A reader of a group reads half of what it has not read, and commits."""
    group = world.log.group("readers")
    positions = group.positions()
    ends = {}
    for number, (start, end) in world.log.topic(world.topic).offsets().items():
        begun = max(start, (world.group or {}).get(number, start))
        ends[number] = (begun + end + 1) // 2
    group.reset({world.topic: ends}) if world.group else group.commit(positions, {world.topic: ends})
    return ends


def has_read(world: World, ends: dict[int, int]) -> None:
    world.group = ends


# Kafka's side


ABORTED, COMMITTED, OPEN = 1, 2, 3
"""Ids of producers."""


def source(world: World) -> KafkaSide:
    assert world.kafka is not None
    return world.kafka


def source_appends(world: World) -> None:
    keys = [key for key in world.keys if key is not None]
    source(world).append([(key, True) for key in [*keys, keys[0]]])


def source_appends_and_rolls(world: World) -> None:
    for _ in range(2):
        source_appends(world)
        source(world).roll()
    source_appends(world)


def source_aborts(world: World) -> None:
    """Two transactions at once, of which one is aborted, and a batch of none between."""
    side, keys = source(world), [key for key in world.keys if key is not None]
    side.append([(key, True) for key in keys], producer_id=ABORTED)
    side.append([(keys[0], True)], producer_id=COMMITTED)
    side.append([(keys[1], True)])
    side.end_transaction(ABORTED, ABORT)
    side.append([(keys[-1], True)], producer_id=COMMITTED)
    side.end_transaction(COMMITTED, COMMIT)
    side.roll()


def source_leaves_open(world: World) -> None:
    """A transaction stays open, and a batch comes behind it. The one that was open before is committed."""
    side, keys = source(world), [key for key in world.keys if key is not None]
    if OPEN in side.open:
        side.end_transaction(OPEN, COMMIT)
    side.append([(key, True) for key in keys[:2]], producer_id=OPEN)
    side.append([(keys[0], True)])


def source_cleans(world: World) -> None:
    source(world).roll()
    source_appends(world)
    source(world).clean(merge=True)


def source_deletes_records(world: World) -> None:
    """Into the midst of its newest batch."""
    source_appends(world)
    source(world).delete_records(source(world).log_end_offset - 2)


def import_again(world: World) -> KafkaSide:
    return _imported(world, source(world))


def import_replica(world: World) -> KafkaSide:
    """Another replica of the partition has the same batches, in segments that end elsewhere."""
    source_appends(world)
    side = source(world)
    batches = side.batches()
    replica = replace(side, directory=side.directory.with_name("replica"), segments=[])
    for batch in batches:
        base = batch.base_offset if replica.segments else side.segments[0][0]
        replica.segments.append((base, [batch]))
    return _imported(world, replica)


def _imported(world: World, side: KafkaSide) -> KafkaSide:
    path = side.write()
    if may_follow(world, side):
        succeeded(world.log.import_kafka(path))
        return side
    try:
        world.log.import_kafka(path)
    except LogDirError:
        return side
    raise AssertionError("an import takes the place of records that were appended here")


def may_follow(world: World, side: KafkaSide) -> bool:
    """Whether the log here goes on as the source's: nothing of ours lies where the source has records."""
    return not world.has_own_records or world.model.partitions[0].end <= side.log_start_offset


def has_imported(world: World, side: KafkaSide) -> None:
    if may_follow(world, side):
        take_source(world, side, start=side.log_start_offset)


def broker(world: World) -> LogDir:
    """The log directory that plays the broker: `serve` shows what it has of the source.

    It says that it deletes, so that nobody takes a difference for a cleaning, unless the source has cleaned.
    """
    side, place = source(world), world.directory / "broker"
    is_cleaned = side.first_dirty_offset is not None
    config = {"cleanup.policy": "compact" if is_cleaned else "delete"}
    log = LogDir.open(str(place)) if place.exists() else LogDir.create(str(place))
    succeeded(log.import_kafka(side.write(), config=config))
    log.topic(world.topic).alter(config)
    return log


def source_erases(world: World) -> None:
    """A key is erased where the records come from. Records that were copied before stay.

    A broker that compacts has a tombstone of the key first: an erasure would else append one to the log that plays the
    broker, and the directory would lack it.
    """
    key = next(key for key in world.keys if key)
    source_appends(world)
    if source(world).first_dirty_offset is not None:
        source(world).append([(key, False)])
    if world.is_captured:
        has_captured(world, capture_it(world))
        succeeded(erase(broker(world), topics=[world.topic], keys=[key]))
    else:
        has_imported(world, import_again(world))
    for segment, batches in enumerate(source(world).segments):
        for number, batch in enumerate(batches[1]):
            records = {offset: record for offset, record in batch.records.items() if record[0] != key}
            source(world).segments[segment][1][number] = replace(batch, records=records)


def capture_it(world: World) -> KafkaSide:
    with serving(broker(world), interval_seconds=0) as server:
        report = capture(world.log, f"127.0.0.1:{server.port}", [world.topic])
    may = may_follow(world, source(world))
    if may:
        succeeded(report)
    else:
        assert report.failed, "a capture goes on behind records that were appended here"
    _note_capture(world, is_done=may)
    return source(world)


def _note_capture(world: World, *, is_done: bool) -> None:
    """Whether a capture was late may depend on when the one before noted that all was here: NOTE_LAG_MS."""
    now_ms = world.clock.now_ms()
    is_cleaned = is_compacting(world) or source(world).first_dirty_offset is not None
    if is_cleaned and world.captured_ms is not None and world.is_late is not True:
        gap_ms = now_ms - world.captured_ms
        if gap_ms > DAY_MS:
            world.is_late = True if is_done else None
        elif gap_ms > DAY_MS - NOTE_LAG_MS:
            world.is_late = None
    if is_done:
        world.captured_ms = now_ms


def has_captured(world: World, side: KafkaSide) -> None:
    if may_follow(world, side):
        take_source(world, side, start=0)


def take_source(world: World, side: KafkaSide, start: int) -> None:
    """New records come after those here. What both have stays, whatever files it is in."""
    model = world.model
    model.commit += 1
    partition = model.partitions.setdefault(0, Partition())
    there = {
        offset: Record(key, value, TIME_MS + offset) for offset, (key, value) in side.records().items()
    }  # fmt: skip
    partition.sure &= there.keys() | set(range(side.log_start_offset))  # what the source lacks may go with a file
    most = start if partition.possible else side.log_start_offset
    again = {offset: record for offset, record in there.items() if offset in partition.written}
    partition.possible |= again.keys()
    new = {offset: record for offset, record in there.items() if offset >= partition.end}
    partition.place(new, model.commit)
    partition.end = max(partition.end, side.log_end_offset)
    partition.move_start(start, most)
    partition.sure = {offset for offset in partition.sure if offset >= partition.start}
    partition.aborted = partition.written.keys() & side.aborted
    if not side.open:
        partition.unstable = None
    elif world.is_captured:  # a transaction of which a capture got no record is none here
        if partition.unstable is None or partition.unstable < min(side.open.values()):
            partition.unstable = min(partition.written.keys() & side.open_offsets(), default=None)
    else:
        partition.unstable = side.last_stable_offset


# What every operation asks for


def succeeded(report: Any) -> None:
    assert not report.failed, f"fails: {[line.get('error') for line in report.failed]}"


def is_deleting(world: World) -> bool:
    return "delete" in world.model.policy


def is_compacting(world: World) -> bool:
    return "compact" in world.model.policy


def is_of_kafka(world: World) -> bool:
    return world.kafka is not None


def has_few_partitions(world: World) -> bool:
    return len(world.model.partitions) < MOST_PARTITIONS and not is_of_kafka(world)


def is_own(world: World) -> bool:
    return not is_of_kafka(world)


def can_restore(world: World) -> bool:
    return world.first_version in world.versions


def _tables() -> Sequence[Operation]:
    kinds = ("plain", "days", "latest", *ARCHIVES)
    return [
        Operation(f"{table_format} {kind}", table_of(kind, table_format), has_table(kind, table_format))
        for table_format in ("delta", "iceberg")
        for kind in kinds
    ]


OPERATIONS: tuple[Operation, ...] = (
    Operation("append", append, appended),
    Operation("append late", append_late, appended),
    Operation("append old", append_old, appended),
    Operation("append tombstones", append_tombstones, appended),
    Operation("append once", append_once, appended),
    Operation("append transactions", append_transactions, appended),
    Operation("append by stream", append_by_stream, appended, may_stream, is_spark=True),
    Operation("roll", roll_all),
    Operation("roll small", roll_small),
    Operation("compact", compact_all, compacted),
    Operation("drop tombstones", drop_tombstones, dropped_tombstones, is_compacting),
    Operation("expire", let_expire, expired),
    Operation("expire active", let_active_expire, expired),
    Operation("expire old", let_old_expire, old_expired),
    Operation("retain size", retain_size, shrunk),
    Operation("empty by size", let_size_empty, emptied),
    Operation("retain max bytes", retain_max_bytes, shrunk),
    Operation("delete records", delete_records, deleted_records, is_deleting),
    Operation("delete all records", delete_all_records, deleted_records, is_deleting),
    Operation("vacuum", vacuum_all),
    Operation("index", index_all),
    Operation("index on a header", index_header),
    Operation("erase", erase_first, erased),
    Operation("erase last", erase_last, erased),
    Operation("erase history", erase_history, erased),
    Operation("policy delete", altered({"cleanup.policy": "delete"}), has_policy("delete")),
    Operation("policy compact", altered({"cleanup.policy": "compact"}), has_policy("compact")),
    Operation("policy both", altered({"cleanup.policy": "compact,delete"}), has_policy("compact,delete")),
    Operation("codec", altered({"compression.type": "zstd"})),
    Operation("log append time", altered({"message.timestamp.type": "LogAppendTime"}), when=is_own),
    Operation("add partitions", add_partitions, added_partitions, has_few_partitions),
    Operation("make again", make_again, when=is_own),
    Operation("make again later", make_again_later, when=is_own),
    Operation("restore", restore_first, restored, can_restore),
    Operation("lose manifest", lose_manifest, rebuilt),
    Operation("lose newest commit", lose_newest_commit),
    Operation("mirror", mirror_it),
    Operation("promote", promote_it, when=lambda world: world.follower is not None),
    Operation("export and import", export_and_import),
    Operation("sign", sign),
    Operation("replay", replay_it, has_replayed),
    *_tables(),
    Operation("group", read_as_group, has_read),
    Operation("source appends", source_appends, when=is_of_kafka),
    Operation("source rolls", source_appends_and_rolls, when=is_of_kafka),
    Operation("source cleans", source_cleans, when=is_of_kafka),
    Operation("source aborts", source_aborts, when=is_of_kafka),
    Operation("source leaves open", source_leaves_open, when=is_of_kafka),
    Operation("source deletes records", source_deletes_records, when=is_of_kafka),
    Operation("source erases", source_erases, when=is_of_kafka),
    Operation("import", import_again, has_imported, is_of_kafka),
    Operation("import replica", import_replica, has_imported, is_of_kafka),
    Operation("capture", capture_it, has_captured, is_of_kafka),
)
