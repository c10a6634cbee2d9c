"""`segments`, and `python -m spark_segments`."""

from __future__ import annotations

from spark_segments.errors import MissingExtraError


def main() -> None:
    """Runs the command. Without the extra `cli` it ends with the sentence that says so."""
    try:
        from spark_segments.cli import main as command
    except MissingExtraError as error:
        raise SystemExit(f"error: {error}") from None
    command()


if __name__ == "__main__":
    main()
