"""`segments dump`: the content of a segment's files, in the words of Kafka's DumpLogSegments."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from spark_segments.cli.command_options import OUTPUT, STORAGE, argument, flag, option, with_options
from spark_segments.cli.output import FOUND_FAULTS, Output
from spark_segments.config import parse_overrides
from spark_segments.errors import InvalidOptionError, escaped, escaped_json

# The files that are dumped where a directory is named.
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """What is printed of a file, by the names of Kafka's tool."""

    deep_iteration: bool = flag("Print records as well as batches.")
    print_data_log: bool = flag("Print keys and values as well; implies --deep-iteration.")
    skip_record_metadata: bool = flag("With --print-data-log: print keys and values only.")
    verify_index_only: bool = flag("Check indexes and print only their faults.")
    max_bytes: int | None = option("Read at most this number of bytes from the start of a .log.", min=1)
    max_message_size: int = option("The largest batch that an index entry may point to.", default=5 << 20, min=1)


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """The internal topic of Kafka's whose records are decoded: one at most."""

    offsets_decoder: bool = flag("Decode records of __consumer_offsets: positions and groups.")
    transaction_log_decoder: bool = flag("Decode records of __transaction_state.")
    cluster_metadata_decoder: bool = flag("Decode records of __cluster_metadata, and snapshots of it.")
    share_group_state_decoder: bool = flag("Decode records of __share_group_state.")
    remote_log_metadata_decoder: bool = flag("Decode records of __remote_log_metadata.")

    def decoder(self) -> str | None:
        """The name of the decoder that is asked for. Raises InvalidOptionError for several."""
        chosen = [name for name, is_chosen in dataclasses.asdict(self).items() if is_chosen]
        options = [name.replace("_", "-") for name in chosen]
        if len(options) > 1:
            raise InvalidOptionError("A dump has one decoder", found=" and ".join(f"--{name}" for name in options))
        return options[0].removesuffix("-decoder") if options else None


@with_options
def dump(
    entry: EntryOptions,
    decoders: DecoderOptions,
    files: list[str] = argument("FILES", "Files of segments, checkpoints, or partition directories."),
    output: Output = OUTPUT,
    storage: list[str] | None = STORAGE,
) -> None:
    """Prints .log, .index, .timeindex, .snapshot, .txnindex and checkpoint files.

    The text is that of Kafka's DumpLogSegments. Of a directory, which Kafka's
    tool does not take, one line counts several empty indexes. With --output
    json each entry is a line, with keys and values in base64. Damage is shown
    at its place and does not end the dump. With damage the exit code is 3.

    A decoder prints the records of one of Kafka's internal topics as JSON,
    or as Kafka's tool prints them. It implies --print-data-log.

    Example: segments dump --cluster-metadata-decoder \\
      /var/lib/kafka/data/__cluster_metadata-0
    Example: segments dump --deep-iteration --print-data-log \\
      /var/lib/kafka/data/orders-0/00000000000000000000.log
    """
    from spark_segments.dump import DumpOptions, dump_entries, dump_json
    from spark_segments.dump.text import empty_indexes_counted, text_of

    decoder = decoders.decoder()
    print_data_log = entry.print_data_log or decoder is not None
    options = DumpOptions(
        entry.deep_iteration or print_data_log,
        entry.verify_index_only,
        entry.max_bytes,
        entry.max_message_size,
        decoder,
    )
    source = _Files(parse_overrides(storage or []))
    paths = [path for file in files for path in _paths(file)]
    damage = _Damage()
    lines: Iterator[str]
    if output is Output.JSON:
        members = damage.counted(dump_json(source, paths, options))
        lines = (escaped_json(json.dumps(member, ensure_ascii=False)) for member in members)
    else:
        entries = damage.counted(dump_entries(source, paths, options))
        if _empty_indexes(files) > 1:
            entries = empty_indexes_counted(entries)
        lines = text_of(entries, print_data_log=print_data_log, skip_record_metadata=entry.skip_record_metadata)
    is_terminal = sys.stdout.isatty()
    for line in lines:
        sys.stdout.write(f"{escaped(line) if is_terminal else line}\n")
    if damage.count:
        raise typer.Exit(FOUND_FAULTS)


@dataclass(slots=True)
class _Damage:
    """The damaged places among entries that go by."""

    count: int = 0

    def counted(self, entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The entries, counted as they go by."""
        for entry in entries:
            is_invalid = entry["kind"] == "batch" and not entry["isValid"]
            if entry["kind"] == "error" or is_invalid:
                self.count += 1
            yield entry


def _paths(file: str) -> list[str]:
    """The file itself, or the files of a local directory that can be dumped."""
    if not Path(file).is_dir():
        return [file]
    return [f"{file.rstrip('/')}/{path.name}" for path in sorted(Path(file).iterdir()) if path.suffix in SUFFIXES]


def _empty_indexes(files: list[str]) -> int:
    """How many offset indexes of the local directories among the files are empty."""
    paths = [Path(path) for file in files if Path(file).is_dir() for path in _paths(file)]
    return sum(path.suffix == ".index" and not path.stat().st_size for path in paths)


class _Files:
    """Reads files by the names given to the command."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._directories: dict[str, Any] = {}

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Any:
        storage, name = self._place(path)
        return storage.read(name, offset, length)

    def size(self, path: str) -> int:
        storage, name = self._place(path)
        return int(storage.size(name))

    def _place(self, path: str) -> tuple[Any, str]:
        from spark_segments.storage import Storage

        directory, _, name = path.rpartition("/")
        if directory not in self._directories:
            root = directory or ("/" if path.startswith("/") else ".")
            self._directories[directory] = Storage(root, self._options)
        return self._directories[directory], name
