"""Commands that are imported when they run: `segments --help` and the shell's completion import none of them.

A group has a list of commands, each with the place of its function and the first paragraph of its help. So a command
pays for what it imports itself, and for nothing that other commands import.

Words of Kafka's tools and of kcat are answered with what does it here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperCommand, TyperGroup

from spark_segments.cli.output import silent_without_a_reader

STANDS_FOR = {"--topic": "TOPIC", "-t": "TOPIC", "--entity-name": "TOPIC", "--group": "GROUP", "--files": "FILES"}
"""{an option of other tools: the argument in its place}, where the command has that argument."""

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
    "--add-config": "--config does it",
    "--replication-factor": "storage keeps a log directory, without replicas",
    "-c": "segments consume --max-messages does it",
    "-p": "segments consume --partition does it",
    "-l": "segments append --input does it",
    "-C": "segments consume does it",
    "-e": "without --follow a command ends at the log end",
}
"""{an option of other tools: what does it here}."""


class HabitualCommand(TyperCommand):
    """A command that answers other tools' options with what does it here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the command without habits. An option of another tool ends it, with what does it here."""
        ours: dict[str, Any] = {name: param for param in self.params for name in param.opts if name.startswith("-")}
        if ctx.resilient_parsing:
            if args and args[-1] in ours and not ours[args[-1]].is_flag:
                args = args[:-1]  # the shell completes its value; without one the parser forgets the words before
            return super().parse_args(ctx, args)
        arguments = {(param.name or "").upper() for param in self.params if param.param_type_name == "argument"}
        rest = iter(args)
        for word in itertools.takewhile(lambda word: word != "--", rest):
            name, equals, _ = word.partition("=")
            if name in ours:
                next(rest if not equals and not ours[name].is_flag else iter(()), None)  # its value
            elif (place := STANDS_FOR.get(name)) in arguments:
                ctx.fail(f"There is no {name} here: {place}, an argument, stands in its place.")
            elif name in ANSWERS:
                ctx.fail(f"There is no {name} here: {ANSWERS[name]}.")
        self._refuse_repeats(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_repeats(self, ctx: Any, words: list[str]) -> None:
        """Ends in an error where an option that takes one value is given twice: all but the last would be dropped."""
        given: list[Any] = self.make_parser(ctx).parse_args(args=[*words])[2]
        for param in given:
            is_same = param.param_type_name == "argument" or (param.is_flag and not param.secondary_opts)
            if not is_same and not param.multiple and given.count(param) > 1:
                ctx.fail(f"Option '{param.opts[0]}' is given twice, and takes one value.")


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


def group_of(commands: Sequence[LazyCommand], elsewhere: Mapping[str, str]) -> type[TyperGroup]:
    """The class of a group that has these commands, in this order.

    `elsewhere`: {a name that is no command here and that people type, which for Kafka's kafka-topics.sh is topics, and
    for --list is list: the command that does it}.
    """
    named = {command.name: command for command in commands}

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            listed = {name: command.listed() for name, command in named.items()}
            # Help in rich's boxes takes longer than the rest of a command's start.
            super().__init__(**settings | {"commands": listed, "rich_markup_mode": None})

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in named:
                plain = args[0].removeprefix("kafka-").removesuffix(".sh").lstrip("-")
                does = f"{ctx.command_path} {plain}" if plain in named else elsewhere.get(plain)
                if does is not None:
                    ctx.fail(f"There is no {args[0]} here: {does} does it.")
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
