"""Commands that are imported when they run: `segments --help` and the shell's completion import none of them.

A group has a list of commands, each with the place of its function and the first paragraph of its help. So a command
pays for what it imports itself, and for nothing that other commands import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperGroup

from spark_segments.cli.habits import HabitualCommand
from spark_segments.cli.output import silent_without_a_reader


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command of a group.

    `place`: module and name of a function, or of a `typer.Typer` with commands of its own. `summary`: the first
    paragraph of its help. `panel`: the title under which the group's help lists it.
    """

    name: str
    place: str
    summary: str
    panel: str | None = None

    def load(self) -> Any:
        """The command, imported."""
        module, _, name = self.place.partition(":")
        found = getattr(import_module(module), name)
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
            for panel in dict.fromkeys(command.panel for command in commands):
                with formatter.section(panel or "Commands"):
                    formatter.write_dl([(one.name, one.summary) for one in commands if one.panel == panel])

        def load(self) -> list[Any]:
            """All commands, imported: for documentation."""
            return [command.load() for command in commands]

    return LazyGroup
