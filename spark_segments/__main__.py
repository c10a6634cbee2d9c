"""`segments`, and `python -m spark_segments`."""

from __future__ import annotations

import signal

from spark_segments.errors import MissingExtraError


def main() -> None:
    """Runs the command. Without the extra `cli` it ends with the sentence that says so."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # nothing is begun: Ctrl-C while Python imports is no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from spark_segments.cli import main as command
    except MissingExtraError as error:
        raise SystemExit(f"error: {error}") from None
    signal.signal(signal.SIGINT, handler)
    command()


if __name__ == "__main__":
    main()
