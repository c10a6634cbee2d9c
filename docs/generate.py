"""Writes the parts of docs/reference that the code knows best: settings, commands, errors and the Python face. And
docs/llms.txt: every page of the documentation with its first sentence, for assistants that are asked about the package.

    python docs/generate.py          # writes the pages
    python docs/generate.py --check  # names the pages that differ from the code; exit code 1 if there is one

A part stands between the lines `<!-- generated: settings -->` and `<!-- end -->`; its name is one of GENERATED, and
words after the name are that function's arguments. Nothing here starts Spark.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import typer.main

from spark_segments import errors
from spark_segments.cli import app
from spark_segments.config.table import KEYS, SERVER_KEYS
from spark_segments.config.values import DOUBLE_MAX, LONG_MAX, Setting, render_value

PAGES = Path(__file__).parent / "reference"
_PART = re.compile(
    r"^<!-- generated: (?P<name>[a-z-]+)(?P<words>[^>]*) -->\n(?P<old>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL
)
_PROSE = re.compile(r"[\w*\[]|`(?!``)")
_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")
_NEVER = {str(LONG_MAX): "9223372036854775807 (no limit)", str(DOUBLE_MAX): "no limit"}


def filled(page: str) -> str:
    """The text of a page with every generated part as the code has it. KeyError for a part with an unknown name."""

    def part(match: re.Match[str]) -> str:
        head = match[0].partition("\n")[0]
        return f"{head}\n\n{GENERATED[match['name']](*match['words'].split()).strip()}\n\n<!-- end -->"

    return _PART.sub(part, page)


def index() -> str:
    """docs/llms.txt: the pages in the order of mkdocs.yml, and those that the page Design lists."""
    site = Path(__file__).parents[1] / "mkdocs.yml"
    nav = site.read_text().partition("\nnav:\n")[2]
    named_pages = re.findall(r"^ *- (?:(.+?): )?(\S+\.md)$", nav, re.MULTILINE)
    design = (PAGES.parent / "design" / "index.md").read_text()
    for title, page in re.findall(r"^\| \[(.+?)\]\((\S+\.md)\)", design, re.MULTILINE):
        named_pages.append((title, f"design/{page}"))
    lines = ["# spark_segments", "", f"> {_first_sentence(PAGES.parent / 'index.md')}", "", "## Documentation", ""]
    for title, page in named_pages:
        path = PAGES.parent / page
        name = title or path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{name}]({page}): {_first_sentence(path)}")
    return "\n".join(lines) + "\n"


def _first_sentence(page: Path) -> str:
    """The first sentence of a page's first paragraph, without links."""
    paragraphs = [text for text in page.read_text().split("\n\n") if _PROSE.match(text)]
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraphs[0].split()))
    return _SENTENCE.split(text)[0].rstrip(":")


def written() -> dict[Path, str]:
    """Every file that this script writes, with its text."""
    pages = {page: filled(page.read_text()) for page in sorted(PAGES.glob("*.md"))}
    return pages | {PAGES.parent / "llms.txt": index()}


def main(check: bool) -> int:
    """Writes the files, or names those that differ from the code. Gives the exit code."""
    stale = {path: text for path, text in written().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print(f"{path.name} differs from the code: python docs/generate.py" if check else f"wrote {path.name}")
        if not check:
            path.write_text(text)
    return int(check and bool(stale))


def settings() -> str:
    """The settings of a topic that have an effect."""
    return _setting_table(setting for setting in KEYS.values() if setting.has_effect)


def settings_without_effect() -> str:
    """The settings of a topic that only a broker uses."""
    return _setting_table(setting for setting in KEYS.values() if not setting.has_effect)


def job_settings() -> str:
    """The settings of the jobs."""
    return _setting_table(SERVER_KEYS.values())


def commands() -> str:
    """Every command with its arguments, options and its own help."""
    return "\n".join(_command_sections())


def error_classes() -> str:
    """Every error with what it means, and the classes it is one of."""
    found = [value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__]
    lines = ["| Error | Is also | What it means, and what to do |", "|---|---|---|"]
    for cls in found:
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        summary = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
        lines.append(f"| `{cls.__name__}` | {bases} | {_cell(summary)} |")
    return "\n".join(lines)


FACE: dict[str, tuple[str, ...]] = {
    "spark_segments.LogDir": (
        *("create", "open", "topics", "topic", "create_topic", "delete_topic"),
        *("group", "groups", "registry", "maintain", "import_kafka", "export_kafka"),
    ),
    "spark_segments.face.topic.Topic": (
        *("version", "snapshot", "config", "offsets", "offsets_for_times", "describe", "history", "explain", "verify"),
        *("scan", "to_spark", "append", "alter", "delete_records"),
    ),
    "spark_segments.log.reading.scan.Scan": (
        *("batches", "to_reader", "to_table"),
        *("to_pandas", "to_polars", "to_duckdb"),
    ),
    "spark_segments.log.groups.group.Group": ("positions", "commit", "reset", "delete"),
    "spark_segments.log.groups.group": ("Positions",),
    "spark_segments.Position": ("at",),
    "spark_segments.maintenance": (
        *("roll", "retain", "compact", "vacuum", "index", "table", "erase", "restore"),
        *("mirror", "promote", "verify", "Report"),
    ),
    "spark_segments.kafka_protocol": ("capture", "CaptureOptions", "replay", "ReplayOptions", "Partitions"),
    "spark_segments": ("ProducerOptions", "spark_session", "lag", "progress_bar"),
    "spark_segments.polars": ("scan_topic",),
    "spark_segments.duckdb.TopicDatabase": ("sql",),
}
"""The public names of the Python face, by the class or the module that has them: the only list of them."""
_RESULTS = {
    "spark_segments.log.groups.group.Positions": ("offsets", "starts"),
    "spark_segments.maintenance.Report": ("ok", "errors", "failed", "to_dict"),
    "spark_segments.duckdb.topic_database.Result": ("batches", "to_table", "to_pandas"),
}
"""What functions of the face give, with the members that the page of Python shows."""


def face() -> str:
    """Every public name of the Python face, with the first sentence of its docstring."""
    lines = ["| Name | What it is |", "|---|---|"]
    for owner, names in FACE.items():
        of = pkgutil.resolve_name(owner)
        prefix = f"{of.__name__}." if inspect.isclass(of) else ""
        for name in names:
            found = inspect.getattr_static(of, name, None) or getattr(of, name)
            text = " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())
            lines.append(f"| `{prefix}{name}` | {_cell(_SENTENCE.split(text)[0])} |")
    return "\n".join(lines)


def python(*owners: str) -> str:
    """Signatures and docstrings of public names: of functions, and of classes with the members that FACE gives."""
    return "\n\n".join(section for owner in owners for section in _python_sections(owner))


def _python_sections(owner: str) -> Iterator[str]:
    of = pkgutil.resolve_name(owner)
    names = FACE.get(owner, ()) or _RESULTS.get(owner, ())
    yield _python_section(of, of.__name__, "###", with_signature=not names)  # with members: users are given one
    for name in names:
        member = inspect.getattr_static(of, name, None) or getattr(of, name)
        yield _python_section(getattr(member, "__func__", member), f"{of.__name__}.{name}", "####")


def _python_section(value: Any, name: str, heading: str, with_signature: bool = True) -> str:
    signature = f"```python\n{_signature(value, name)}\n```\n\n" if with_signature and callable(value) else ""
    return f"{heading} {name}\n\n{signature}{inspect.getdoc(value) or ''}"


def _signature(value: Any, name: str) -> str:
    """How a function or class is called: on a line, or with a parameter a line where that is too long. The
    members of an enumeration.
    """
    if isinstance(value, type) and issubclass(value, Enum):
        return "\n".join(f"{name}.{member.name} = {json.dumps(member.value)}" for member in value)
    if dataclasses.is_dataclass(value):
        shown = [parameter for parameter in dataclasses.fields(value) if parameter.init and parameter.name[0] != "_"]
        parameters = [f"{field.name}: {field.type}{_field_default(field)}" for field in shown]
        result = ""
    else:
        called = inspect.signature(value)
        parameters = _written(called.parameters.values())
        result = "" if called.return_annotation is inspect.Signature.empty else f" -> {called.return_annotation}"
    line = f"{name}({', '.join(parameters)}){result}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){result}"


def _written(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """Parameters as code has them, `self` left out, and `*` before those that are given by name."""
    lines = []
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in lines and not any(line[0] == "*" for line in lines):
            lines.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        typed = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
        lines.append(f"{stars}{parameter.name}{typed}{default}")
    return lines


def _value(default: object) -> str:
    return str(default) if isinstance(default, Enum) else repr(default)


def _field_default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {_value(field.default)}"
    return "" if field.default_factory is dataclasses.MISSING else f" = {field.default_factory.__name__}()"


GENERATED: dict[str, Callable[..., str]] = {
    "settings": settings,
    "settings-without-effect": settings_without_effect,
    "job-settings": job_settings,
    "commands": commands,
    "errors": error_classes,
    "face": face,
    "python": python,
}


def _setting_table(rows: Iterable[Setting]) -> str:
    lines = ["| Setting | Default | Meaning |", "|---|---|---|"]
    for setting in rows:
        default = render_value(setting.default)
        default = _NEVER.get(default, f"`{default}`" if default else "empty")
        names = [synonym.name for synonym in setting.server] or [name for name in [setting.name] if name in SERVER_KEYS]
        place = f"In the defaults file: {', '.join(f'`{name}`' for name in names)}" if names else "A topic's own only"
        facts = f"{setting.expected[0].upper()}{setting.expected[1:]}. {place}"
        lines.append(f"| `{setting.name}` | {default} | {_cell(setting.doc)}.<br>{_cell(facts)} |")
    return "\n".join(lines)


def _command_sections() -> Iterator[str]:
    for command, words in _commands(typer.main.get_command(app), ["segments"]):
        yield f"\n## {' '.join(words)}\n"
        yield f"```text\n{_usage(command, words)}\n```\n"
        parts = []
        for prose, examples in _paragraphs(command.help or ""):
            parts += [_cell(prose)] if prose else []
            parts += ["```text\n" + "\n".join(examples) + "\n```"] if examples else []
        yield "\n\n".join(parts)
        for title, parameters in zip(("Argument", "Option"), _parameters_of(command), strict=True):
            if parameters:
                yield f"\n| {title} | Default | Meaning |\n|---|---|---|"
                yield from (_parameter_row(parameter) for parameter in parameters)


def _parameter_row(parameter: Any) -> str:
    name = ", ".join(f"`{one}`" for one in _names_of(parameter))
    default = _default_of(parameter)
    shown = "required" if parameter.required else f"`{default}`" if default else ""
    return f"| {name} | {shown} | {_cell(getattr(parameter, 'help', None) or '')} |"


def _commands(command: Any, words: Sequence[str]) -> Iterator[tuple[Any, list[str]]]:
    """All commands of a group, with the words that call each."""
    if not hasattr(command, "list_commands"):
        yield command, [*words]
        return
    for each in command.load():
        yield from _commands(each, [*words, each.name])


def _parameters_of(command: Any) -> tuple[list[Any], list[Any]]:
    """(arguments, options) of a command."""
    kinds = ("argument", "option")
    arguments, options = ([one for one in command.params if one.param_type_name == kind] for kind in kinds)
    return arguments, options


def _usage(command: Any, words: Sequence[str]) -> str:
    """How a command is called, in a line."""
    arguments, options = _parameters_of(command)
    return " ".join([*words, *map(_metavar_of, arguments), *(["[OPTIONS]"] if options else [])])


def _names_of(parameter: Any) -> list[str]:
    """The names of an option, each with what it takes; of an argument its name."""
    if parameter.param_type_name == "argument":
        return [_metavar_of(parameter)]
    value = "" if parameter.is_flag else f" {parameter.metavar or _values(parameter)}"
    return [f"{flag}{value}" for flag in (*parameter.opts, *parameter.secondary_opts)]


def _default_of(parameter: Any) -> str:
    """A parameter's default, "" where there is none to be shown."""
    default = parameter.default
    if callable(default) or default in (None, False, (), []) or parameter.required:
        return ""
    return str(getattr(default, "value", default))


def _paragraphs(text: str) -> list[tuple[str, list[str]]]:
    """A command's help: (prose, the examples below it) of each paragraph."""
    found = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        prose, *examples = paragraph.split("Example: ")
        lines = [" ".join(example.replace("\\\n", " ").split()) for example in examples]
        found.append((" ".join(prose.split()), lines))
    return found


def _metavar_of(argument: Any) -> str:
    """What stands for an argument in a line of usage."""
    name = (argument.metavar or argument.human_readable_name).strip("[]").removesuffix("...")
    name += "…" if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _values(parameter: Any) -> str:
    default = parameter.default
    return "|".join(str(choice.value) for choice in type(default)) if isinstance(default, Enum) else "VALUE"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
