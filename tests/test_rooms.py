"""What rooms look like. Who may import whom is in pyproject.toml, and `make lint` holds it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "spark_segments"


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"), path


MODULES = dict(_modules())


def test_only_spark_and_the_command_line_import_pyspark_when_they_run() -> None:
    for name, path in MODULES.items():
        if name.partition(".")[0] in ("spark", "cli"):
            continue
        for node in ast.parse(path.read_text()).body:  # what stands under TYPE_CHECKING or in a function is no import
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.partition(".")[0] == "pyspark" for module in modules), name


def test_only_the_airflow_room_imports_airflow() -> None:
    for name, path in MODULES.items():
        if name.partition(".")[0] == "airflow":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.partition(".")[0] == "airflow" for module in modules), name


def test_every_room_says_what_lives_in_it() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.relative_to(PACKAGE)


def test_no_two_public_classes_have_one_name() -> None:
    homes: dict[str, str] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert homes.setdefault(node.name, name) == name, f"{node.name} is in {homes[node.name]} and in {name}"


# A position is a reader's: the next offset of a partition. These know them; where a kernel is, is a place in memory.
KNOW_POSITIONS = (
    "log.groups",
    "log.positions",
    "log.rebuild.rebuild",
    "maintenance.mirroring.groups",
    "maintenance.tables",
    "spark.streams",
)
KNOW_POSITIONS += ("kafka_protocol", "cli.records.follow", "cli.records.groups")


@pytest.mark.parametrize(
    "name", [name for name in MODULES if not name.startswith(KNOW_POSITIONS) and "kernels" not in name]
)
def test_a_place_in_a_file_is_a_byte_position(name: str) -> None:
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg"}
    words = {
        getattr(node, kinds[type(node)]): node.lineno
        for node in ast.walk(ast.parse(MODULES[name].read_text()))
        if type(node) in kinds
    }
    assert "position" not in words, f"{name}, line {words['position']}: a reader's position, or a byte_position?"


PASSING = {"one", "found", "there"}
SCOPES = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _bound(scope: ast.AST) -> set[str]:
    names, waiting = set(), [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            names.add(node.arg if isinstance(node, ast.arg) else node.id)
        waiting += [] if isinstance(node, SCOPES) else ast.iter_child_nodes(node)
    return names


def _uses(
    node: ast.AST, scopes: dict[str, ast.AST], counters: frozenset[ast.AST]
) -> Iterator[tuple[str, ast.AST, int, bool]]:
    """(name, scope that binds it, line, whether it is bound there) for each place of a passing name."""
    if isinstance(node, SCOPES):
        bound = _bound(node)
        told = PASSING - {"found"} if "expected" in bound else PASSING  # what an error expected, and what it found
        scopes = {name: scope for name, scope in scopes.items() if name not in bound}
        scopes |= dict.fromkeys(bound & told, node)
    name = getattr(node, {ast.Name: "id", ast.arg: "arg"}.get(type(node), ""), "")
    if name in scopes:
        is_bound = isinstance(node, ast.arg) or (isinstance(node.ctx, ast.Store) and node not in counters)
        yield name, scopes[name], node.lineno, is_bound
    for child in ast.iter_child_nodes(node):
        yield from _uses(child, scopes, counters)


# In a kernel a name is a register: what it holds is said where it is declared.
@pytest.mark.parametrize("name", [name for name in MODULES if "kernels" not in name])
def test_one_found_and_there_are_read_within_five_lines(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    counters = frozenset(node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign))
    begins: dict[tuple[str, ast.AST], int] = {}
    for word, scope, line, is_bound in sorted(_uses(tree, {}, counters), key=lambda use: use[2]):
        begin = begins[word, scope] = line if is_bound else begins.get((word, scope), line)
        assert line - begin <= 5, f"{name}, line {line}: {word} is from line {begin}. Say what it is"
