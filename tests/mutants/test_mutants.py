"""Every fault of the catalogue can still be planted, and a few of them are planted and found."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from verification.mutants.catalogue import MUTANTS
from verification.mutants.planted import PACKAGE, Tree

ROOMS = {
    "append",
    "capture",
    "commit",
    "keys",
    "roll",
    "retain",
    "compact",
    "doctor",
    "vacuum",
    "restore",
    "import",
    "streams",
    "mirror",
    "groups",
    "durability",
    "storage",
    "verify",
    "rebuild",
    "names",
    "reading",
    "tables",
    "pairs",
}


def by_fault(mutant) -> str:
    return f"{mutant.room}: {mutant.fault}"


def test_every_patch_applies_and_is_code_and_its_check_is_there():
    for mutant in MUTANTS:
        source = mutant.patched((ROOT / PACKAGE / mutant.path).read_text())
        compile(source, mutant.path, "exec")
        file, _, name = mutant.check.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), mutant.check


def test_every_room_has_faults_and_no_fault_is_there_twice():
    assert {mutant.room for mutant in MUTANTS} == ROOMS
    assert len({by_fault(mutant) for mutant in MUTANTS}) == len(MUTANTS) >= 50


@pytest.mark.proof
def test_faults_are_found_where_the_code_without_them_is_sound(tmp_path):
    tree = Tree(tmp_path)
    planted = [next(one for one in MUTANTS if one.room == room) for room in ("commit", "streams", "durability")]
    assert not tree.check(*(mutant.check for mutant in planted)).failed
    for mutant in planted:
        assert tree.run(mutant).failed, by_fault(mutant)
