"""`segments verify`: looks for faults in a log directory of this package or of Kafka."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spark_segments.cli.command_options import (
    ANY_TOPICS,
    DRY_RUN,
    OUTPUT,
    ConfiguredLogOptions,
    SparkOptions,
    flag,
    option,
    with_options,
)
from spark_segments.cli.confirmation import confirm
from spark_segments.cli.output import FOUND_FAULTS, Output, print_json, print_rows, print_table, shown_hole
from spark_segments.errors import InvalidOptionError
from spark_segments.maintenance.rebuild.rebuild import is_lost, rebuild_manifest
from spark_segments.quantities import Bytes, human_bytes, moment, plural
from spark_segments.signed_lists.comparison import by_operation
from spark_segments.signed_lists.signature import Signing, read_signed
from spark_segments.signed_lists.verify import verify as look_for_faults

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Report
    from spark_segments.signed_lists.checksum_list import ChecksumList


@dataclass(frozen=True, slots=True)
class ListOptions:
    """--against, or --sign with --checksums, or --check with --public-key: a list that is compared, or written."""

    against: Path | None = option(
        "Compare files with a list of checksums that `segments mirror --checksums` wrote.", metavar="FILE", exists=True
    )
    sign: Path | None = option(
        "With --deep and --checksums: sign the list with this Ed25519 key (PEM).", metavar="KEY", exists=True
    )
    checksums: Path | None = option("The signed list that is written: what was read.", metavar="FILE")
    check: Path | None = option("Compare files with a list that --sign has signed.", metavar="LIST", exists=True)
    public_key: Path | None = option("With --check: the key that must have signed (PEM).", metavar="KEY", exists=True)

    def signing(self) -> Signing | None:
        """How the list is signed that is written. Raises InvalidOptionError where the options are of several modes."""
        signs_half = (self.sign is None) != (self.checksums is None)
        has_key_alone = self.public_key is not None and self.check is None
        has_two_lists = self.check is not None and (self.sign is not None or self.against is not None)
        if signs_half or has_key_alone or has_two_lists:
            raise InvalidOptionError(
                "These options do not go together",
                expected="--sign KEY --checksums FILE, --check LIST [--public-key KEY], or --against FILE",
            )
        return Signing(self.sign, self.checksums) if self.sign and self.checksums else None

    def read(self) -> tuple[Path | ChecksumList | None, dict[str, Any] | None]:
        """(the list to compare files with, what a signed list says of itself)"""
        if self.check is None:
            return self.against, None
        return read_signed(self.check, self.public_key)


@dataclass(frozen=True, slots=True)
class LookOptions:
    """--deep, --repair and --cut: how far verify looks, and what it corrects; --dry-run and --yes."""

    deep: bool = flag("Read every byte: check CRCs, records, index entries and keys of clean tails.")
    repair: bool = flag("Rebuild faulty sidecars, or the lost manifest of TOPIC; no record is changed. Deep.")
    cut: bool = flag("With --repair: take damaged batches out of the log. Their offsets become a hole.")
    dry_run: bool = DRY_RUN
    yes: bool = flag("Do not ask before a topic gets a new id, or damaged batches are taken out.", "-y")

    def rebuild_lost(self, log: LogDir, topics: Sequence[str], output: Output) -> list[str]:
        """Rebuilds the manifests that are lost or damaged. Returns the other topics, whose files are looked at."""
        names = log.named(topics)
        lost = [name for name in names if is_lost(log, name)]
        for name in lost:
            rebuild(log, name, output, dry_run=self.dry_run, yes=self.yes)
        return [name for name in names if name not in lost] if lost else [*topics]

    def run(
        self,
        spark: SparkOptions,
        log: LogDir,
        topics: Sequence[str] | None,
        against: Path | ChecksumList | None,
        signing: Signing | None,
    ) -> Report:
        """Looks for faults. Asks before damaged batches are taken out."""
        of_bytes = self.deep or self.repair
        look = partial(spark.run, look_for_faults, log, topics, of_bytes=of_bytes, deep=self.deep, repair=self.repair)
        if self.cut and not self.dry_run and not self.yes:
            _ask_before_cut(look)
        return look(dry_run=self.dry_run, cut=self.cut, against=against, sign=signing)


@with_options
def verify(
    *,
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    topic: list[str] | None = ANY_TOPICS,
    look: LookOptions,
    lists: ListOptions,
    output: Output = OUTPUT,
) -> None:
    """Looks for faults in the manifest, the files and their sizes, and with --deep in every byte.

    With --against every file of the list that is still in a topic must have
    the size and checksum that the list says, and no topic may have gone back.

    With --deep --sign KEY --checksums FILE a look that finds no fault writes
    a signed list: when, by which version, the offsets and records of each
    partition, and the SHA-256 of each file. --check FILE says later whether
    the list is as it was signed, and whether each of its files that is still
    in the log is the same. It counts the files that were compared, and those
    that left the log, by the operation that took them; a topic of which none
    is left to compare is a fault. Without --public-key it names the key that signed:
    compare it with the one that you know.

    A copy of a log notes the offsets that its source had lost. They are listed
    as holes, and are no faults. With --deep any other offset that is missing
    between the segments of a topic that is not compacted is a fault.

    --repair rebuilds sidecars under new names. Where the manifest of TOPIC is
    lost or damaged, --repair rebuilds it: stop all writers and jobs of the
    topic first, and see what --dry-run says. The new manifest has what a
    recovery copy has, and each later commit that can be proved. A file does
    not say whether it was committed, so a file that no such commit names is
    listed and never added: read it with segments dump. Unless all commits are
    known, the topic gets a new id. Streams and groups then stop with an error
    and skip no record. Without a terminal this needs --yes.

    A damaged .log stops each job that reads the whole file. --repair --cut
    removes the damaged batches: their offsets, listed as lost, become a hole
    of the topic, and every other record stays. Restore the file from a backup
    or from a follower instead, where there is one. Without a terminal it needs
    --yes.

    Exit code 0: no fault was found, or --repair has corrected all. 3: faults.

    Example: segments verify /data/log orders --deep
    Example: segments verify /data/log orders --repair --dry-run
    Example: segments verify /data/log orders --repair --cut
    Example: segments verify log --deep --sign key.pem --checksums signed.list
    Example: segments verify log --check signed.list --public-key public.pem
    """
    signing = lists.signing()
    listed, signed_facts = lists.read()
    log = location.open_damaged() if look.repair and topic else location.open()
    topics = topic or None
    if look.repair and topics is not None and not log.is_kafka:
        topics = look.rebuild_lost(log, topics, output)
        if not topics:
            return
    report = look.run(spark, log, topics, listed, signing)
    if signed_facts is not None:
        report.details["signed"] = signed_facts
    _print(report, output)
    if signing is not None and "signed" not in report.details:
        print("Not signed: a list is of a log without faults", file=sys.stderr)
    if report.details["uncorrected"]:
        raise typer.Exit(FOUND_FAULTS)


def _ask_before_cut(look: Callable[..., Report]) -> None:
    """Asks before damaged batches are taken out, with the offsets that are lost; without a terminal it is an error."""
    if not sys.stdin.isatty():
        raise InvalidOptionError(
            "Damaged batches are taken out for good", expected="--yes", hint="--dry-run lists what is lost"
        )
    lost = look(dry_run=True).details["lost"]
    count = sum(line["end_offset"] - line["start_offset"] for line in lost)
    if lost:
        confirm(f"Take the batches of {count:,} offsets out of the log?", False, partial(_print_lost, lost))


def _print(report: Report, output: Output) -> None:
    if output is Output.JSON:
        print_json(report.to_dict())
        return
    for text in report_lines(report):
        print(text)


def report_lines(report: Report) -> Iterator[str]:
    """The findings, what is lost, the holes, what was repaired, and the sums."""
    details = report.details
    yield from map(str, report.findings)
    yield from map(_lost_line, details["lost"])
    for hole in details["holes"]:
        yield f"hole: {shown_hole(hole)}"
    for line in report.partitions:
        if line["action"] == "repaired":
            yield _repaired_line(line)
    if "signed" in details:
        yield _signed_line(details["signed"])
    if "listed" in details:
        yield _listed_line(details["listed"])
    count = len(report.findings) + details["findings_left_out"]
    yield (
        f"verify{' (deep)' if details['deep'] else ''}: {plural(len(report.topics), 'topic')}, "
        f"{plural(details['partitions'], 'partition')}, {plural(details['segments'], 'segment')}, "
        f"{human_bytes(report.to_dict()['bytes_in'])} read, {plural(count, 'fault') if count else 'no faults'}, "
        f"{report.seconds:.1f} s"
    )


def _repaired_line(line: Mapping[str, Any]) -> str:
    if line["partition"] is None:
        return f"repaired: {line['topic']}: {line['path']} is written again"
    return f"repaired: {line['topic']}-{line['partition']}: {line['path']} is {line['new_path']} now"


def _signed_line(signed: Mapping[str, Any]) -> str:
    files = plural(signed["files"], "file")
    when = moment(signed["verified_ms"])
    return f"signed: {signed['list']}: {files}, {when}, {signed['tool']}, key {signed['key']}"


def _listed_line(listed: Mapping[str, Any]) -> str:
    operations = by_operation(listed["gone"])
    gone = f"{sum(listed['gone'].values()):,} gone{f': {operations}' if operations else ''}"
    return f"list: {plural(listed['files'], 'file')}, {listed['compared']:,} compared, {gone}"


def _print_lost(lost: Sequence[Mapping[str, Any]]) -> None:
    for line in lost:
        print(_lost_line(line))


def _lost_line(line: Mapping[str, Any]) -> str:
    start = line["start_offset"]
    end = line["end_offset"]
    return (
        f"lost: {line['topic']}-{line['partition']}: offsets {start} to {end - 1}, at most {end - start:,} "
        f"records, of damaged batches in {line['path']}"
    )


def rebuild(log: LogDir, topic: str, output: Output, *, dry_run: bool, yes: bool) -> None:
    """Rebuilds a manifest and prints the report. A new topic id needs `yes`, or a yes at the terminal."""
    report = rebuild_manifest(log, topic, dry_run=True)
    if not dry_run:
        if report.details["topic_id"] is None and not yes:
            if not sys.stdin.isatty():
                raise InvalidOptionError(
                    f"The manifest of {topic} is rebuilt under a new id, for not all commits are known",
                    expected="--yes",
                    hint="--dry-run says what is known, and what is not",
                )
            confirm(f"Rebuild the manifest of {topic} under a new id?", yes, partial(_print_text, report))
        report = rebuild_manifest(log, topic)
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        _print_text(report)


def _print_text(report: Report) -> None:
    facts = report.details
    [topic] = report.topics
    done = "would be rebuilt" if report.dry_run else f"is rebuilt as version {facts['version']}"
    print(f"The manifest of {topic} {done}. Known is {_proved_by(facts)}.")
    if facts["topic_id"] == facts["topic_id_before"] and not facts["is_exact"]:
        print(f"The topic is a follower and keeps its id, {facts['topic_id']}: mirror it again.")
    elif facts["is_exact"]:
        print(f"All commits are known: the topic keeps its id, {facts['topic_id']}.")
    else:
        print(f"The topic gets a new id; before, it had {facts['topic_id_before']}.")
    print_rows(["partition", "log_start_offset", "log_end_offset", "segments"], report.partitions)
    _print_unknown(facts)


def _proved_by(facts: Mapping[str, Any]) -> str:
    """The newest version that can be proved, and by what."""
    copy_version = facts["copy_version"]
    known_version = facts["known_version"]
    if copy_version < 0:
        return f"version {known_version}, by the notes of commits"
    text = f"version {known_version}, by the recovery copy of version {copy_version}"
    return f"{text} and {known_version - copy_version} commits after it" if copy_version < known_version else text


def _print_unknown(facts: Mapping[str, Any]) -> None:
    """What nobody can tell of the topic, and what is to be done about it."""
    if facts["unproven"]:
        print("\nCommits that have a note, and that nothing proves:")
        commits = ({**commit, "files": len(commit["files"])} for commit in facts["unproven"])
        print_rows(["version", "operation", "files"], commits)
    if facts["unnamed_files"]:
        print("\nFiles that no known commit names (segments dump reads them):")
        rows = ([file["path"], Bytes(file["bytes"]), file["note"]] for file in facts["unnamed_files"])
        print_table(["path", "size", "in the note of version"], rows)
    if facts["missing_files"]:
        print("\nFiles of the log that are gone or cut:")
        print_rows(["path", "partition", "base_offset", "next_offset"], facts["missing_files"])
    if facts["groups"] and not facts["is_exact"]:
        print("\nGroups that must choose where they go on (segments groups reset):")
        print_rows(["group", "partition", "offset"], facts["groups"])
    for sentence in facts["not_known"]:
        print(f"\nNot known: {sentence}")
