"""`python -m spark_segments.conformance DIRECTORY COMMAND…`: whether another reader reads this format."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_segments.conformance.kit import FAILED, PASSED, UNSUPPORTED, CommandReader, check_reader
from spark_segments.conformance.vectors import INDEX

USAGE = f"""Usage: python -m spark_segments.conformance DIRECTORY COMMAND...

DIRECTORY has the vectors and {INDEX}; COMMAND is the reader, which answers lines of JSON."""


def main(arguments: list[str]) -> int:
    """The exit code: 0 where all that the reader supports is right, 1 where it is not, 2 for wrong arguments."""
    if len(arguments) < 2 or not (Path(arguments[0]) / INDEX).is_file():
        print(USAGE, file=sys.stderr)
        return 2
    reader = CommandReader(arguments[1:])
    outcomes = check_reader(Path(arguments[0]).resolve(), reader, print)
    reader.close()
    print(", ".join(f"{outcomes[name]} {name}" for name in (PASSED, FAILED, UNSUPPORTED)))
    return 1 if outcomes[FAILED] or not outcomes[PASSED] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
