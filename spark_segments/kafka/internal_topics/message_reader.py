"""The fields of a message of Kafka's, one after the other."""

from __future__ import annotations


class MessageReader:
    """A message's bytes, field by field. IndexError where they end, or a size is below 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + max(count, 0)]
        if len(piece) != count:
            raise IndexError
        self._at += count
        return piece

    def varint(self) -> int:
        """An unsigned varint."""
        value = 0
        shift = 0
        while True:
            byte = self.bytes(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def number(self, size: int) -> int:
        """A number of so many bytes."""
        return int.from_bytes(self.bytes(size), "big", signed=True)

    def string(self) -> str | None:
        """A compact string, None where it is null."""
        length = self.varint()
        return None if length == 0 else self.bytes(length - 1).decode()
