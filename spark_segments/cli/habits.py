"""What people type who come from Kafka's tools and kcat: understood here, or answered with what does it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

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
        return super().parse_args(ctx, self._translated(ctx, args))

    def _translated(self, ctx: Any, args: list[str]) -> list[str]:
        ours: dict[str, Any] = {name: param for param in self.params for name in param.opts if name.startswith("-")}
        if ctx.resilient_parsing and args and args[-1] in ours and not ours[args[-1]].is_flag:
            args = args[:-1]  # the shell completes its value; without one the parser forgets the words before
        places = [param.name for param in self.params if param.param_type_name == "argument"]
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
                standing[places.index(place)] = _values(ctx, name, value if equals else next(rest, None))
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
