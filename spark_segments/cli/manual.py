"""`segments man`: a man page for each command. What a page says is the command's help; the documentation's page of
commands is made of the same parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

import spark_segments


def man(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Where the pages are written, such as ~/.local/share/man/man1.")
    ],
) -> None:
    """Writes a man page for each command.

    Example: segments man ~/.local/share/man/man1
    """
    from spark_segments.cli import app

    directory.mkdir(parents=True, exist_ok=True)
    pages = 0
    for command, words in commands(typer.main.get_command(app), ["segments"]):
        (directory / f"{'-'.join(words)}.1").write_text(man_page(command, words), encoding="utf-8")
        pages += 1
    print(f"Wrote {pages} man pages. Where man finds them, man segments-consume shows one.")


def commands(command: Any, words: Sequence[str]) -> Iterator[tuple[Any, list[str]]]:
    """All commands of a group, with the words that call each."""
    if not hasattr(command, "list_commands"):
        yield command, [*words]
        return
    for each in command.load():
        yield from commands(each, [*words, each.name])


def man_page(command: Any, words: Sequence[str]) -> str:
    """The page of one command, in the macros of man(7)."""
    text = paragraphs(command.help or "")
    lines = [f'.TH {"-".join(words).upper()} 1 "" "segments {spark_segments.__version__}" "User Commands"']
    lines += [".SH NAME", f"{'-'.join(words)} \\- {_roff(text[0][0])}"]
    lines += [".SH SYNOPSIS", f".B {_roff(' '.join(words))}", _roff(usage(command, []))]
    lines += [".SH DESCRIPTION"]
    for prose, _ in text:
        lines += [".PP", _roff(prose)] if prose else []
    for title, parameters in zip(("ARGUMENTS", "OPTIONS"), parameters_of(command), strict=True):
        lines += [f".SH {title}"] if parameters else []
        for parameter in parameters:
            shown = default_of(parameter)
            help_text = (getattr(parameter, "help", None) or "") + (f" Default: {shown}." if shown else "")
            lines += [".TP", f".B {_roff(', '.join(names_of(parameter)))}", _roff(help_text)]
    if examples := [example for _, found in text for example in found]:
        lines += [".SH EXAMPLES", ".nf", *map(_roff, examples), ".fi"]
    lines += [".SH EXIT STATUS", "0 done, 1 an error, 2 wrong usage, 3 faults were found."]
    return "\n".join(lines) + "\n"


def parameters_of(command: Any) -> tuple[list[Any], list[Any]]:
    """(arguments, options) of a command."""
    kinds = ("argument", "option")
    arguments, options = ([one for one in command.params if one.param_type_name == kind] for kind in kinds)
    return arguments, options


def usage(command: Any, words: Sequence[str]) -> str:
    """How a command is called, in a line."""
    arguments, options = parameters_of(command)
    return " ".join([*words, *map(metavar_of, arguments), *(["[OPTIONS]"] if options else [])])


def names_of(parameter: Any) -> list[str]:
    """The names of an option, each with what it takes; of an argument its name."""
    if parameter.param_type_name == "argument":
        return [metavar_of(parameter)]
    value = "" if parameter.is_flag else f" {parameter.metavar or _values(parameter)}"
    return [f"{flag}{value}" for flag in (*parameter.opts, *parameter.secondary_opts)]


def default_of(parameter: Any) -> str:
    """A parameter's default, "" where there is none to be shown."""
    default = parameter.default
    if callable(default) or default in (None, False, (), []) or parameter.required:
        return ""
    return str(getattr(default, "value", default))


def paragraphs(text: str) -> list[tuple[str, list[str]]]:
    """A command's help: (prose, the examples below it) of each paragraph."""
    found = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        prose, *examples = paragraph.split("Example: ")
        lines = [" ".join(example.replace("\\\n", " ").split()) for example in examples]
        found.append((" ".join(prose.split()), lines))
    return found


def metavar_of(argument: Any) -> str:
    """What stands for an argument in a line of usage."""
    name = (argument.metavar or argument.human_readable_name).strip("[]").removesuffix("...")
    name += "…" if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _values(parameter: Any) -> str:
    default = parameter.default
    return "|".join(str(choice.value) for choice in type(default)) if isinstance(default, Enum) else "VALUE"


def _roff(text: str) -> str:
    """A line of text, in which nothing is an order to roff."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("\n", " ")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe
