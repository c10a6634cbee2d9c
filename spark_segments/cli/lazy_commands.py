"""Commands that are imported when they run: `segments --help` and the shell's completion import none of them.

A group has a list of commands, each with the place of its function. So a command pays for what it imports itself, and
for nothing that other commands import.

Words of Kafka's tools and of kcat are answered with what does it here.
"""

from __future__ import annotations

import io
import pkgutil
import re
import sys
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


_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""Of an option that does not exist, and of all else that is wrong with a command line."""


class HabitualCommand(TyperCommand):
    """A command that answers other tools' options with what does it here, and whose examples can be pasted."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The help, with the lines of its examples as they stand: click would fill them up like a paragraph."""
        docstring = self.help
        self.help = re.sub(r"(?m)(?<=\n\n)(?=Example: )", "\b\n", docstring or "")
        super().format_help_text(ctx, formatter)
        self.help = docstring

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the command without habits. An option of another tool ends it, with what does it here."""
        ours: dict[str, Any] = {name: param for param in self.params for name in param.opts if name.startswith("-")}
        if ctx.resilient_parsing:
            if args and args[-1] in ours and not ours[args[-1]].is_flag:
                args = args[:-1]  # the shell completes its value; without one the parser forgets the words before
            return super().parse_args(ctx, args)
        self._refuse_options_of_others(ctx, args, ours)
        self._refuse_repeats(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_options_of_others(self, ctx: Any, words: Sequence[str], ours: Mapping[str, Any]) -> None:
        """Ends in an error at an option that Kafka's tools or kcat have and this command has not."""
        arguments = {(param.name or "").upper() for param in self.params if param.param_type_name == "argument"}
        rest = iter(words)
        for word in rest:
            if word == "--":
                return
            name, equals, _ = word.partition("=")
            if name in ours:
                # The value of an option of ours may look like an option of another tool: a key can be -e.
                if not equals and not ours[name].is_flag:
                    next(rest, None)
                continue
            place = STANDS_FOR.get(name)
            if place in arguments:
                ctx.fail(f"There is no {name} here: {place}, an argument, stands in its place.")
            if name in ANSWERS:
                ctx.fail(f"There is no {name} here: {ANSWERS[name]}.")

    def _refuse_repeats(self, ctx: Any, words: list[str]) -> None:
        """Ends in an error where an option that takes one value is given twice: all but the last would be dropped."""
        params: list[Any] = self.make_parser(ctx).parse_args(args=[*words])[2]
        for param in params:
            is_same = param.param_type_name == "argument" or (param.is_flag and not param.secondary_opts)
            if not is_same and not param.multiple and params.count(param) > 1:
                ctx.fail(f"Option '{param.opts[0]}' is given twice, and takes one value.")


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command of a group.

    `place`: module of this layer and name of a function, or of a `typer.Typer` with subcommands. `panel`: the title
    under which the group's help lists it.
    """

    panel: str
    name: str
    place: str

    def load(self) -> Any:
        """The command, imported."""
        module, _, name = self.place.partition(":")
        loaded = getattr(import_module(f"spark_segments.cli.{module}"), name)
        if isinstance(loaded, typer.Typer):
            command = typer.main.get_command(loaded)
            command.name = self.name
            return command
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command(self.name, cls=HabitualCommand)(loaded)
        return typer.main.get_command(app)

    @property
    def summary(self) -> str:
        """The first paragraph of its help: of the first docstring behind its name in the module, which is only read."""
        module, _, name = self.place.partition(":")
        source = (pkgutil.get_data(__package__, f"{module.replace('.', '/')}.py") or b"").decode()
        paragraph = re.search(rf'^(?:def )?{name}\b.*?"""(.*?)(?:\n\n|""")', source, re.DOTALL | re.MULTILINE)
        return " ".join(paragraph[1].split()) if paragraph else ""


class _Listed(TyperCommand):
    """A stand-in for a command that is not imported: its name, and a summary where one is asked for."""

    def __init__(self, command: LazyCommand) -> None:
        super().__init__(command.name)
        self._command = command

    def get_short_help_str(self, limit: int = 45) -> str:
        self.help = self._command.summary
        return super().get_short_help_str(limit)


def panels(places: Mapping[str, Mapping[str, str]]) -> list[LazyCommand]:
    """The commands of {panel: {command: its place}}."""
    return [LazyCommand(title, *command) for title, commands in places.items() for command in commands.items()]


def group_of(commands: Sequence[LazyCommand], elsewhere: Mapping[str, str]) -> type[TyperGroup]:
    """The class of a group that has these commands, in this order.

    `elsewhere`: {a name that is no command here and that people type, which for Kafka's kafka-topics.sh is topics, and
    for --list is list: the command that does it}.
    """
    named = {command.name: command for command in commands}

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            listed = {name: _Listed(command) for name, command in named.items()}
            # Help in rich's boxes takes longer than the rest of a command's start.
            super().__init__(**settings | {"commands": listed, "rich_markup_mode": None})

        def main(self, *args: Any, **settings: Any) -> Any:
            """As typer's groups, with this package's spelling of an error: one word for wrong usage and all else."""
            try:
                code = super().main(*args, **settings | {"standalone_mode": False})
            except typer.Abort:
                print("Aborted!", file=sys.stderr)
                raise SystemExit(1) from None
            except _USAGE_ERROR as error:
                text = io.StringIO()
                error.show(text)  # type: ignore[attr-defined]
                print(re.sub(r"(?m)^Error: ", "error: ", text.getvalue(), count=1), end="", file=sys.stderr)
                raise SystemExit(error.exit_code) from None  # type: ignore[attr-defined]
            raise SystemExit(code or 0)

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
                    listed = [command for command in commands if command.panel == title]
                    formatter.write_dl([(command.name, command.summary) for command in listed])

        def load(self) -> list[Any]:
            """All commands, imported: for documentation."""
            return [command.load() for command in commands]

    return LazyGroup
