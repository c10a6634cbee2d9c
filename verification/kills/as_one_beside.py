"""python -m verification.kills.as_one_beside [--minutes 10]: a reader of a topic as one with its table, beside a
writer, runs of the table, retention, an OPTIMIZE and a VACUUM of the table by another program. Every answer is a state
of the topic between begin and end of its query: whole commits, no record twice, none missing. LEAST of the answers have
to come by the table: by the plan that DuckDB gives right before. How many do depends on the machine, and is printed.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
from spark_segments.errors import SegmentsError
from spark_segments.maintenance import roll, table

PARTITIONS = 3
LEAST = {"table runs": 3, "answers by the table": 10}
QUERY = """
    SELECT partition, count(*) AS records, count(DISTINCT "offset") AS offsets, min("offset") AS first,
           max("offset") AS last, count(DISTINCT value) AS numbers, max(value::VARCHAR::INT) AS number
    FROM orders GROUP BY partition ORDER BY partition
"""


class Beside:
    """A log directory, and threads that work on it until a time. `is_short`: or until there are LEAST of all counts.
    `appended`: how many commits were made.
    """

    def __init__(self, directory: Path, ends: float, *, is_short: bool = False) -> None:
        self.uri = str(directory / "table")
        self.log_uri = str(directory / "log")
        log = LogDir.create(self.log_uri)
        log.create_topic("orders", PARTITIONS, {"segment.bytes": "20000"})
        self.ends = ends
        self.is_short = is_short
        self.appended = 0
        self.counts: Counter[str] = Counter()
        self.errors: list[BaseException] = []

    def append(self, log: LogDir) -> None:
        """A commit of a record for each partition, whose value is the commit's number."""
        value = str(self.appended).encode()
        log.topic("orders").append(
            [{"key": value, "value": value, "partition": number} for number in range(PARTITIONS)]
        )
        self.appended += 1
        time.sleep(0.02)

    def update(self, log: LogDir) -> None:
        self.counts["table runs"] += not table(log, topics=["orders"], table_uri=self.uri).failed
        roll(log)
        time.sleep(0.2)

    def retain(self, log: LogDir) -> None:
        ends = {number: max(0, end - 300) for number, (_, end) in log.topic("orders").offsets().items()}
        log.topic("orders").delete_records(dict.fromkeys(ends, min(ends.values())))
        time.sleep(1)

    def tidy(self, _: LogDir) -> None:
        try:
            delta = DeltaTable(self.uri)
            delta.optimize.compact()
            delta.vacuum(0, enforce_retention_duration=False, dry_run=False)
            self.counts["cleaned by others"] += 1
        except DeltaError:
            self.counts["clean-ups that lost a race"] += 1
        time.sleep(random.uniform(0.1, 1.5))

    def read(self, log: LogDir) -> None:
        with TopicDatabase(log) as database:
            plan = str(database.sql(f"EXPLAIN {QUERY}").fetchall())
            least, log_start = self.appended, log.topic("orders").offsets()[0][0]
            rows = database.sql(QUERY).to_table().to_pylist()
            most, log_start_after = self.appended + 1, log.topic("orders").offsets()[0][0]
        assert len(rows) == PARTITIONS or not least, rows
        for row in rows:
            assert row["records"] == row["offsets"] == row["numbers"] == row["last"] - row["first"] + 1, rows
            assert row["last"] == row["number"] == rows[0]["number"], rows
            assert least - 1 <= row["last"] < most, (least, most, rows)
            assert log_start <= row["first"] <= log_start_after, (log_start, log_start_after, rows)
        self.counts["answers"] += 1
        self.counts["answers by the table"] += "READ_PARQUET" in plan

    def run(self) -> Counter[str]:
        steps = [self.append, self.update, self.retain, self.tidy, self.read, self.read]
        threads = [threading.Thread(target=self._repeat, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in self.errors:
            raise error
        assert self._has_least, self.counts
        return self.counts | Counter(appends=self.appended)

    @property
    def _has_least(self) -> bool:
        return all(self.counts[name] >= least for name, least in LEAST.items())

    def _repeat(self, step: Callable[[LogDir], None]) -> None:
        log = LogDir.open(self.log_uri)
        while time.monotonic() < self.ends and not self.errors and not (self.is_short and self._has_least):
            try:
                step(log)
            except SegmentsError as error:
                if step == self.read:
                    self.errors.append(error)
                self.counts[f"{step.__name__}: {type(error).__name__}"] += 1
            except BaseException as error:
                self.errors.append(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--minutes", type=float, default=10)
    arguments = parser.parse_args()
    warnings: Counter[str] = Counter()

    class Counted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings[record.getMessage().partition(": ")[2][:100]] += 1

    logger = logging.getLogger("spark_segments.duckdb.topic_database")
    logger.addHandler(Counted())
    logger.propagate = False
    with tempfile.TemporaryDirectory() as directory:
        counts = Beside(Path(directory), time.monotonic() + arguments.minutes * 60).run()
    print(f"{dict(counts)}, by the log alone: {dict(warnings)}")


if __name__ == "__main__":
    main()
