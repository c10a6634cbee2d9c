"""Plants each fault in a copy of the tree and runs the check that must find it: python -m verification.mutants [ROOM …]

First all checks run in the copy as it is, and must pass. Prints a table; exits with 1 where a fault is not found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from verification.mutants.catalogue import MUTANTS
from verification.mutants.planted import Tree


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.mutants", description=__doc__)
    parser.add_argument(
        "rooms", nargs="*", help=f"of {', '.join(dict.fromkeys(one.room for one in MUTANTS))}; all without any"
    )
    options = parser.parse_args()
    chosen = [one for one in MUTANTS if not options.rooms or one.room in options.rooms]
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        tree = Tree(Path(directory))
        sound = tree.check(*dict.fromkeys(one.check for one in chosen))
        if sound.failed:
            print(f"A check fails without any fault:\n{sound.output}")
            return 1
        print(f"{len(chosen)} faults; all checks pass without any, in {sound.seconds:.0f} s\n")
        print("| in | fault | check | found | its seconds |\n|---|---|---|---|---|")
        for mutant in chosen:
            ran = tree.run(mutant)
            missed += not ran.failed
            check = mutant.check.removeprefix("tests/")
            found = "yes" if ran.failed else "NO"
            print(f"| {mutant.room} | {mutant.fault} | `{check}` | {found} | {ran.test_seconds:.1f} |", flush=True)
    print(f"\n{len(chosen) - missed} of {len(chosen)} found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
