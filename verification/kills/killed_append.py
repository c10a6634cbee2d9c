"""An append that kills its own process: python -m verification.kills.killed_append LOG_DIR TOPIC STEP.

The rows go to all partitions of the topic, so that they share an object. Steps are those of killed_import.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from spark_segments import LogDir
from spark_segments.storage import Storage, WriteStream
from verification.kills.killed_import import Steps
from verification.world.manifest_rows import Manifest


def main(log_dir: str, topic: str, last: str) -> None:
    log = LogDir.open(log_dir)
    partitions = np.tile(np.arange(len(log.topic(topic).offsets()), dtype=np.int32), 10)
    rows = pa.table({"value": [b"lost"] * len(partitions), "partition": partitions})
    steps = Steps(int(last))
    for owner, name in ((Storage, "stream"), (WriteStream, "write"), (Manifest, "commit")):
        setattr(owner, name, steps.around(getattr(owner, name)))
    log.topic(topic).append(rows)
    print(steps.taken)


if __name__ == "__main__":
    main(*sys.argv[1:])
