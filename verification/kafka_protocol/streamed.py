"""python -m verification.kafka_protocol.streamed --kills N [--seed S]: a Spark stream into Kafka, over kills of both
halves.

`examples/stream_into_kafka.py` and `segments replay --follow` run beside each other, and one of them is killed and
started again, N times. Then each number up to the last one is in the cluster's topic once, in order, by librdkafka's
consumer and the markers in the broker's log.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spark_segments import LogDir
from verification.kafka_protocol.broker import running_broker
from verification.kafka_protocol.kills import PARTITIONS, sent_once
from verification.world.topics import values

_TOPIC, _ROWS, _ROOT = "streamed", 200, Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.streamed", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as directory, running_broker(Path(directory, "broker")) as address:
        log = LogDir.create(f"{directory}/log")
        log.create_topic(_TOPIC, PARTITIONS)
        stream = [str(_ROOT / "examples" / "stream_into_kafka.py"), log.uri, _TOPIC, f"{directory}/checkpoint"]
        stream += ["--rows", str(_ROWS)]
        replay = ["-m", "spark_segments", "replay", log.uri, address, "--topic", _TOPIC, "--rename", f"{_TOPIC}=copy"]
        halves = {"stream": stream, "replay": [*replay, "--follow", "--interval", "100ms"]}
        running = {name: _start(command) for name, command in halves.items()}
        killed = dict.fromkeys(halves, 0)
        for number in range(arguments.kills):
            name = [*halves][number % 2]
            before = _end(log)
            while _end(log) == before:  # both have begun to work
                time.sleep(0.2)
            time.sleep(chance.uniform(0, 3))
            assert running[name].poll() is None, f"the {name} has ended by itself"
            _kill(running[name])
            killed[name] += 1
            running[name] = _start(halves[name])
        for one in running.values():
            _kill(one)
        until = str((_end(log) // _ROWS + 2) * _ROWS)
        subprocess.run([sys.executable, *stream, "--until", until], cwd=_ROOT, check=True)
        subprocess.run([sys.executable, *replay], cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)
        records = sent_once(log, address, _TOPIC)
        numbers = sorted(map(int, values(log, _TOPIC)))
        assert numbers == [*range(len(numbers))], "the topic here has not each number once"
        print(f"{killed['stream']} kills of the stream and {killed['replay']} of the replay: {records} numbers once")
    return 0


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *command], cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and those that it has started, Spark's Java among them."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end(log: LogDir) -> int:
    return sum(end for _, end in log.topic(_TOPIC).offsets().values())


if __name__ == "__main__":
    sys.exit(main())
