"""The options of commands that look for keys: `erase`, `explain` and `table`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated

import typer

from spark_segments.errors import InvalidOptionError

KeyOption = Annotated[
    list[str] | None, typer.Option("--key", metavar="TEXT", help="A key, as UTF-8; may be given several times.")
]
Base64KeyOption = Annotated[
    list[str] | None, typer.Option("--key-base64", metavar="BASE64", help="A key of any bytes; several times, too.")
]


def key_bytes(texts: Sequence[str] | None, encoded: Sequence[str] | None) -> list[bytes]:
    """The keys of --key and --key-base64. Raises InvalidOptionError for text that is no base64."""
    keys = [text.encode() for text in texts or []]
    for text in encoded or []:
        try:
            keys.append(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise InvalidOptionError("Not base64", expected="--key-base64 BASE64", found=text) from error
    return keys
