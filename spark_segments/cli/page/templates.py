"""The files beside this module that pages are made of: HTML templates, style and script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template


@cache
def page_file(name: str) -> str:
    """The text of a file of this room."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def page_template(name: str) -> Template:
    """A file of this room as a template."""
    return Template(page_file(name))
