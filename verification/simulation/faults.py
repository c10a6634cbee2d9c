"""What a seed's store, machines and people do wrong, and how often: each seed draws some of it, so that seeds
differ."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Faults:
    """The chance of each fault, for each request or step.

    `refused`: the store answers 503 and does nothing. `lost_reply`: it does it, and the answer is lost. `late`: it
    gives no answer, and does it up to `late_seconds` later. `torn`: a failed write leaves a part of the file.
    `flipped`: a read has a wrong bit where a checksum covers it. `stale`: a listing is up to `stale_seconds` old.
    `cached`: a look at a file that was deleted, or replaced, within `stale_seconds` gives what was there before.
    `outage`: the store refuses everything for up to a minute. `killed`: the process dies. `stalled`: the machine
    stands still, for up to 105 minutes. `clock`: a machine's clock jumps.
    """

    refused: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    torn: float = 0.0
    flipped: float = 0.0
    stale: float = 0.0
    cached: float = 0.0
    outage: float = 0.0
    killed: float = 0.0
    stalled: float = 0.0
    clock: float = 0.0
    late_seconds: float = 600.0
    stale_seconds: float = 5.0


_LARGEST = {
    "refused": 0.03,
    "lost_reply": 0.03,
    "late": 0.01,
    "torn": 0.5,
    "flipped": 0.01,
    "stale": 0.05,
    "outage": 0.0003,
    "killed": 0.004,
    "stalled": 0.0005,
    "clock": 0.0005,
    "cached": 0.2,
}


def drawn(seed: int) -> Faults:
    """The faults of a seed: each is there or not, and rare or frequent."""
    chosen = random.Random(f"faults {seed}")
    chances = {name: largest * 10 ** chosen.uniform(-1.5, 0) for name, largest in _LARGEST.items()}
    there = {name: chance for name, chance in chances.items() if chosen.random() < 0.6}
    return Faults(**there)


def shown(faults: Faults) -> str:
    """The faults in a line."""
    found = ((field.name, getattr(faults, field.name)) for field in fields(faults))
    return " ".join(f"{name}={chance:.2g}" for name, chance in found if chance)
