"""`python -m spark_segments.conformance DIRECTORY COMMAND…`: whether another reader reads this format.
`python -m spark_segments.conformance --writer COMMAND…`: whether another writer writes it.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from spark_segments.conformance.kit import FAILED, PASSED, UNSUPPORTED, CommandReader, check_reader
from spark_segments.conformance.vectors import INDEX
from spark_segments.conformance.writers import check_writer

USAGE = f"""Usage: python -m spark_segments.conformance DIRECTORY COMMAND...
       python -m spark_segments.conformance --writer COMMAND...

DIRECTORY has the vectors and {INDEX}; COMMAND is the reader, which answers lines of JSON. With --writer it is a writer,
which does tasks in directories of its own: `segments verify --deep` and `segments consume` judge them."""


def main(arguments: list[str]) -> int:
    """The exit code: 0 where all that the reader supports is right, 1 where it is not, 2 for wrong arguments."""
    if len(arguments) > 1 and arguments[0] == "--writer":
        return _ended(check_writer(arguments[1:], print))
    if len(arguments) < 2 or not (Path(arguments[0]) / INDEX).is_file():
        print(USAGE, file=sys.stderr)
        return 2
    reader = CommandReader(arguments[1:])
    outcomes = check_reader(Path(arguments[0]).resolve(), reader, print)
    reader.close()
    return _ended(outcomes)


def _ended(outcomes: Counter[str]) -> int:
    print(", ".join(f"{outcomes[name]} {name}" for name in (PASSED, FAILED, UNSUPPORTED)))
    return 1 if outcomes[FAILED] or not outcomes[PASSED] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
