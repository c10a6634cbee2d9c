"""Commands that are imported when they run: `segments --help` and the shell's completion import none of them.

A group has a list of commands, each with the place of its function and the first paragraph of its help. So a command
pays for what it imports itself, and for nothing that other commands import.

Commands understand the words of Kafka's tools and kcat, or answer with what does it here.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperCommand, TyperGroup

from spark_segments.cli.output import silent_without_a_reader

STANDS_FOR = {"--topic": "topic", "-t": "topic", "--entity-name": "topic", "--group": "group", "--files": "files"}
"""{option: the argument that it may stand for}, where the command has that argument and no such option."""

OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "alter": {"--add-config": "--config"},
    "consume": {"-c": "--max-messages", "-p": "--partition"},
    "append": {"-l": "--input"},
}
"""{command: {another tool's name of an option: the option here}}."""

WITHOUT_EFFECT: Mapping[str, Mapping[str, str]] = {
    "create": {"--replication-factor": "Storage keeps a log directory, without replicas."},
    "consume": {"-C": "", "-e": ""},
}
"""{command: {an option that asks for nothing here: what is said of it}}. One without a sentence has no value, and asks
for what the command does anyway.
"""

ANSWERS = {
    "--bootstrap-server": "LOG_DIR, the first argument, stands in its place",
    "--bootstrap-servers": "LOG_DIR, the first argument, stands in its place",
    "--broker-list": "LOG_DIR, the first argument, stands in its place",
    "--zookeeper": "LOG_DIR, the first argument, stands in its place",
    "-b": "LOG_DIR, the first argument, stands in its place",
    "--describe": "segments describe LOG_DIR TOPIC, and segments groups show LOG_DIR GROUP do it",
    "--list": "segments topic list LOG_DIR and segments groups list LOG_DIR do it",
    "--reset-offsets": "segments groups reset LOG_DIR GROUP TOPIC does it",
    "--to-earliest": "--to earliest does it",
    "--to-latest": "--to latest does it",
    "--to-offset": "--to OFFSET does it",
    "--to-datetime": "--to-time TIME does it",
    "--execute": "it is done without --dry-run, after a question on a terminal (--yes)",
    "--timeout-ms": "without --follow a command ends at the log end",
    "--entity-type": "settings of topics are set by segments topic alter, those of jobs by --defaults FILE",
    "--consumer-property": "--group, --isolation-level and the other options stand for them",
    "--producer-property": "--batch-size, --compression-codec and the other options stand for them",
}
"""{an option of other tools: what does it here}."""


class HabitualCommand(TyperCommand):
    """A command that understands other tools' options beside its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the command without habits, after its words are put into the words of this package."""
        words = self._translated(ctx, args)
        if not ctx.resilient_parsing:
            self._refuse_repeats(ctx, words)
        return super().parse_args(ctx, words)

    def _refuse_repeats(self, ctx: Any, words: list[str]) -> None:
        """Ends in an error where an option that takes one value is given twice: all but the last would be dropped."""
        given: list[Any] = self.make_parser(ctx).parse_args(args=[*words])[2]
        for param in given:
            is_same = param.param_type_name == "argument" or (param.is_flag and not param.secondary_opts)
            if not is_same and not param.multiple and given.count(param) > 1:
                ctx.fail(f"Option '{param.opts[0]}' is given twice, and takes one value.")

    def _translated(self, ctx: Any, args: list[str]) -> list[str]:
        ours: dict[str, Any] = {name: param for param in self.params for name in param.opts if name.startswith("-")}
        if ctx.resilient_parsing and args and args[-1] in ours and not ours[args[-1]].is_flag:
            args = args[:-1]  # the shell completes its value; without one the parser forgets the words before
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        places = [param.name for param in arguments]
        names, silent = OTHER_NAMES.get(self.name or "", {}), WITHOUT_EFFECT.get(self.name or "", {})
        habits = {*names, *silent, *STANDS_FOR, *ANSWERS} - ours.keys()
        if not any(word.partition("=")[0] in habits for word in args):
            return args
        options: list[str] = []
        words: list[str] = []
        standing: dict[int, list[str]] = {}
        rest = iter(args)
        for word in rest:
            name, equals, value = word.partition("=")
            if name in names and name not in ours:
                name, word = names[name], names[name] + equals + value
            if word == "--":
                words += rest
            elif name in ours:
                options += [word] if equals or ours[name].is_flag else [word, *itertools.islice(rest, 1)]
            elif (place := STANDS_FOR.get(name)) in places:
                values = standing.setdefault(places.index(place), [])
                if values and arguments[places.index(place)].nargs > 0:
                    ctx.fail(f"Option '{name}' is given twice, and takes one value.")
                values += _values(ctx, name, value if equals else next(rest, None))
            elif name in silent:
                if silent[name]:
                    _values(ctx, name, value if equals else next(rest, None))
                    print(f"{silent[name]} {name} has no effect.", file=sys.stderr)
            elif name in ANSWERS and not ctx.resilient_parsing:
                ctx.fail(f"There is no {name} here: {ANSWERS[name]}.")
            elif word.startswith("-") and word != "-":
                options.append(word)
            else:
                words.append(word)
        for index, values in sorted(standing.items()):
            words[index:index] = values
        return [*options, *(["--", *words] if words else [])]


def _values(ctx: Any, name: str, value: str | None) -> list[str]:
    if value is None and ctx.resilient_parsing:  # the shell completes it
        return []
    if value is None:
        ctx.fail(f"Option '{name}' requires an argument.")
    assert value is not None
    return value.split(",") if name == "--files" else [value]


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command of a group.

    `place`: module of this layer and name of a function, or of a `typer.Typer` with commands of its own. `summary`: the
    first paragraph of its help. `panel`: the title under which the group's help lists it.
    """

    panel: str
    name: str
    place: str
    summary: str

    def load(self) -> Any:
        """The command, imported."""
        module, _, name = self.place.partition(":")
        found = getattr(import_module(f"spark_segments.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            return self._made_of(found, None)
        command = typer.main.get_command(found)
        command.name = self.name
        return command

    def listed(self) -> Any:
        """A stand-in with the name, the summary and the panel, which is all that the group's help shows."""
        return self._made_of(lambda: None, self.summary)

    def _made_of(self, function: Any, summary: str | None) -> Any:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command(self.name, cls=HabitualCommand, help=summary)(function)
        return typer.main.get_command(app)


def panel(title: str, *commands: tuple[str, str, str]) -> list[LazyCommand]:
    """The commands of a panel, each as (name, place, summary)."""
    return [LazyCommand(title, *command) for command in commands]


def group_of(
    commands: Sequence[LazyCommand],
    elsewhere: Mapping[str, str] | None = None,
    other_names: Mapping[str, str] | None = None,
) -> type[TyperGroup]:
    """The class of a group that has these commands, in this order.

    `elsewhere`: {a name that is no command here and that people type, which for Kafka's kafka-topics.sh is topics: the
    command that does it}. `other_names`: {what
    other tools call a command, as an option say: its name here}.
    """
    named = {command.name: command for command in commands}

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            listed = {name: command.listed() for name, command in named.items()}
            # Help in rich's boxes takes longer than the rest of a command's start.
            super().__init__(**settings | {"commands": listed, "rich_markup_mode": None})

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in named:
                plain = args[0].removeprefix("kafka-").removesuffix(".sh")
                does = f"{ctx.command_path} {plain}" if plain in named else (elsewhere or {}).get(plain)
                if does is not None:
                    ctx.fail(f"There is no {args[0]} here: {does} does it.")
            if args and other_names and args[0] in other_names:
                args = [other_names[args[0]], *args[1:]]
            return super().parse_args(ctx, args)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, listed, rest = super().resolve_command(ctx, args)
            return name, named[name].load() if name in named else listed, rest

        def invoke(self, ctx: Any) -> Any:
            with silent_without_a_reader():
                return super().invoke(ctx)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            for title in dict.fromkeys(command.panel for command in commands):
                with formatter.section(title):
                    formatter.write_dl([(one.name, one.summary) for one in commands if one.panel == title])

        def load(self) -> list[Any]:
            """All commands, imported: for documentation."""
            return [command.load() for command in commands]

    return LazyGroup
