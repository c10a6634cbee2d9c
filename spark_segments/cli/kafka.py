"""`segments import | export | dump | verify`: Kafka's directories into a log directory and out of it, and looking at
files.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_segments.cli.arguments import (
    ConfigOption,
    DefaultsOption,
    LogDirArgument,
    MasterOption,
    OptionalTopicArgument,
    OutputOption,
    StorageOption,
    open_log,
    session,
    storage_options,
)
from spark_segments.cli.output import FOUND_FAULTS, Output, human_bytes, print_json, print_table, progress_bar
from spark_segments.config import load_defaults, parse_overrides
from spark_segments.errors import LogDirError

KafkaDirArgument = Annotated[str, typer.Argument(metavar="KAFKA_DIR", help="A log.dirs directory of Kafka's.")]
TopicOption = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")]


def import_kafka(
    kafka_dir: KafkaDirArgument,
    log_dir: LogDirArgument,
    topic: TopicOption = None,
    config: ConfigOption = None,
    recovery: Annotated[
        str | None, typer.Option("--recovery", metavar="kafka", help="Cut a damaged log as a broker would.")
    ] = None,
    output: OutputOption = Output.TEXT,
    master: MasterOption = None,
    storage: StorageOption = None,
    defaults: DefaultsOption = None,
) -> None:
    """Copies topics of a Kafka directory, byte for byte, with their offsets, epochs and checkpoints.

    Makes the log directory where there is none. Run it again after it was stopped, or when the directory has grown.
    Topics get retention.ms=-1, unless --config says otherwise: nothing imported expires by itself.

    Example: segments import /var/lib/kafka/data /data/log --topic orders
    """
    from spark_segments.log.logdir import LogDir

    log = LogDir.create(log_dir, storage_options(storage), defaults=load_defaults(defaults) if defaults else None)
    with progress_bar("import") as progress:
        done = log.import_kafka(
            kafka_dir,
            topic,
            parse_overrides(config or []),
            recovery=recovery,
            storage_options=storage_options(storage),
            spark=session(master, "import"),
            progress=progress,
        )
    _print_copied(done, output)
    if output is Output.TEXT and "retention.ms" not in parse_overrides(config or []):
        print("New topics have retention.ms=-1: set it with segments topic alter once nothing is missing.")


def export_kafka(
    log_dir: LogDirArgument,
    kafka_dir: KafkaDirArgument,
    topic: TopicOption = None,
    output: OutputOption = Output.TEXT,
    master: MasterOption = None,
    storage: StorageOption = None,
) -> None:
    """Writes topics as the partition directories and checkpoints that a Kafka broker serves.

    Example: segments export /data/log /restored/log.dirs --topic orders
    """
    log = open_log(log_dir, storage)
    with progress_bar("export") as progress:
        done = log.export_kafka(
            kafka_dir,
            topic,
            storage_options=storage_options(storage),
            spark=session(master, "export"),
            progress=progress,
        )
    _print_copied(done, output)
    if output is Output.TEXT:
        print("To serve it, put it into the log.dirs of a stopped broker, beside the broker's own meta.properties.")


def dump(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help=".log, .index, .timeindex, .snapshot …")],
    deep_iteration: Annotated[bool, typer.Option("--deep-iteration", help="Show records, not only batches.")] = False,
    print_data_log: Annotated[
        bool, typer.Option("--print-data-log", help="Show records with their keys and values.")
    ] = False,
    skip_record_metadata: Annotated[
        bool, typer.Option("--skip-record-metadata", help="With --print-data-log: only keys and values.")
    ] = False,
    index_sanity_check: Annotated[
        bool, typer.Option("--verify-index-only", help="Of indexes, show only what is wrong with them.")
    ] = False,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Of a .log, only so much from its start.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Prints what is in files of a segment, as Kafka's DumpLogSegments does. Exit code 3 where a file is damaged.

    Example: segments dump --deep-iteration --print-data-log /data/log/orders-0/*.log
    """
    from spark_segments.log.dump import DumpOptions, dump_entries, dump_json
    from spark_segments.log.dump.text import dump_text
    from spark_segments.storage import Storage

    paths = [os.path.abspath(file) for file in files]
    for path in paths:
        if not os.path.isfile(path):
            raise LogDirError("There is no such file", path=path)
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    source = _NamedFiles(
        Storage(root), dict(zip(map(str, files), (os.path.relpath(p, root) for p in paths), strict=True))
    )
    options = DumpOptions(deep_iteration or print_data_log, index_sanity_check, max_bytes)
    names = [str(file) for file in files]
    damaged = False
    if output is Output.JSON:
        for entry in dump_json(source, names, options):
            damaged |= entry["kind"] == "error"
            print(json.dumps(entry, default=str))
    else:
        shown = dump_text(
            source, names, options, print_data_log=print_data_log, skip_record_metadata=skip_record_metadata
        )
        for line in shown:
            print(line)
        damaged = any(entry["kind"] == "error" for entry in dump_entries(source, names, DumpOptions(False)))
    if damaged:
        raise typer.Exit(FOUND_FAULTS)


class _NamedFiles:
    """Files under the names that they were given by, which may lie outside of the working directory."""

    def __init__(self, storage: Any, paths: dict[str, str]) -> None:
        self._storage = storage
        self._paths = paths

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Any:
        return self._storage.read(self._beside(path), offset, length)

    def size(self, path: str) -> int:
        return self._storage.size(self._beside(path))

    def _beside(self, path: str) -> str:
        """A file that was given, or one beside it (an .index is checked against its .log)."""
        if path in self._paths:
            return self._paths[path]
        for given, inside in self._paths.items():
            if os.path.dirname(given) == os.path.dirname(path):
                return os.path.join(os.path.dirname(inside), os.path.basename(path))
        return path


def verify(
    log_dir: LogDirArgument,
    topic: OptionalTopicArgument = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte: CRCs, indexes, offsets, times, keys.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Build damaged sidecars anew; never touches data.")] = False,
    output: OutputOption = Output.TEXT,
    master: MasterOption = None,
    storage: StorageOption = None,
) -> None:
    """Checks that a log directory, ours or Kafka's, is what it should be. Exit code 3 where it is not.

    Example: segments verify /data/log orders --deep
    """
    from spark_segments.log.verify import verify as verify_log

    report = verify_log(open_log(log_dir, storage), topic, deep, repair, session(master, "verify"))
    found = report.to_dict()
    if output is Output.JSON:
        print_json(found)
    else:
        columns = list(dict.fromkeys(itertools.chain.from_iterable(finding for finding in found["findings"])))
        if columns:
            print_table(columns, ([finding.get(name) for name in columns] for finding in found["findings"]))
        print(
            f"verify{' --deep' if found['deep'] else ''}: {len(found['topics'])} topics, "
            f"{found['partitions']:,} partitions, "
            f"{found['segments']:,} segments, {human_bytes(found['bytes_read'])} read, {found['seconds']:.1f} s: "
            f"{len(found['findings'])} findings, {len(found['repaired'])} repaired"
        )
    if report.errors > len(report.repaired):
        sys.stdout.flush()
        raise typer.Exit(FOUND_FAULTS)


def _print_copied(done: list[dict[str, Any]], output: Output) -> None:
    if output is Output.JSON:
        print_json(done)
        return
    columns = ["topic", "partitions", "segments", "records", "bytes"]
    print_table(columns, ([one[name] for name in columns] for one in done))
