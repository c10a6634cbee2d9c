"""The page as a program reads it: every number on it, by topic and partition."""

from __future__ import annotations

import re
from collections import defaultdict
from html.parser import HTMLParser


class PageParser(HTMLParser):
    """`numbers`: {`<topic>-<partition>`: {name: (value, text)}}. `blocks`: {…: [(kind, bytes)]} of the strips.

    `texts`: {…: what stands in the partition, its segments' table too}. `attributes`: all of every element.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.numbers: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        self.topics: list[tuple[str, str]] = []
        self.blocks: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.texts: dict[str, str] = defaultdict(str)
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self._partition = ""
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.attributes.append((tag, given))
        self._open.append((tag, given))
        if given.get("class") == "row":
            self._partition = given["id"] or ""
        if tag == "i" and (grow := re.match(r"flex-grow:(\d+)", given.get("style") or "")):
            self.blocks[self._partition].append((given["class"] or "", int(grow[1])))

    def handle_data(self, data: str) -> None:
        tag, given = self._open[-1] if self._open else ("", {})
        if tag == "data" and given.get("class") and self._partition and given["class"] != "version":
            self.numbers[self._partition][given["class"] or ""] = (given["value"] or "", data)
        self.texts[self._partition] += data

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass
        if tag == "section":
            self._partition = ""
