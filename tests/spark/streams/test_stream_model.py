"""All batches of a stream put together equal one batch read, whatever the limits, triggers, kills, restarts and new
partitions and topics on the way."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.maintenance import roll
from tests.examples import examples
from tests.spark import in_process
from tests.spark.streams.conftest import T0, rows
from tests.spark.streams.in_process_query import Killed, PlainQuery, Query

NOW_MS = T0 + 10 * 3_600_000
COUNTS = st.integers(1, 12)
STARTS: list[dict[str, Any]] = [
    {"startingOffsets": "earliest"},
    {"startingOffsets": "latest"},
    {"startingTimestamp": T0 + 5, "startingOffsetsByTimestampStrategy": "latest"},
    {"startingOffsets": '{"s0":{"0":2,"1":-1}}'},
]
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 5), st.integers(0, 5), COUNTS),
    st.tuples(st.just("append"), st.integers(0, 5), st.integers(0, 5), COUNTS),
    st.tuples(st.sampled_from(["topic", "partition", "roll"]), st.integers(0, 5)),
    st.tuples(st.just("trigger"), st.sampled_from([None, None, "planned", "written"])),
    st.tuples(
        st.just("restart"),
        st.sampled_from([None, 1, 4, 9]),
        st.sampled_from([None, 3, 50]),
        st.sampled_from([{}, {}, {"available_now": True}, {"once": True}]),
    ),
)


@examples(25)
@given(
    kind=st.sampled_from([Query, PlainQuery]),
    start=st.sampled_from(STARTS),
    kill=st.sampled_from([None, "planned", "written"]),
    steps=st.lists(STEPS, max_size=14),
)
def test_all_batches_of_a_stream_equal_one_batch_read(tmp_path_factory, kind, start, kill, steps):
    log = LogDir.create(str(tmp_path_factory.mktemp("model")))
    log.create_topic("s0", partitions=2)
    log.topic("s0").append(rows(range(4), 0, T0))
    log.topic("s0").append(rows(range(4, 9), 1, T0 + 5))
    stream = kind(log.uri, {"subscribePattern": "s.*"} | start).start()
    stream.meanwhile = lambda: log.topic("s0").append(rows([9], 1, T0 + 9))
    begin = Query(log.uri, stream.given).start().reader.initialOffset()
    steps = [("trigger", kill), *steps]
    sent = 10
    for step, *details in steps:
        names = log.topics()
        if step == "append":
            topic = names[details[0] % len(names)]
            partition = details[1] % len(log.topic(topic).offsets())
            log.topic(topic).append(rows(range(sent, sent + details[2]), partition, T0 + sent % 7))
            sent += details[2]
        elif step == "topic":
            log.create_topic(f"s{len(names)}")
        elif step == "partition":
            topic = names[details[0] % len(names)]
            log.topic(topic).alter(partitions=len(log.topic(topic).offsets()) + 1)
        elif step == "roll":
            roll(log, now_ms=NOW_MS)
        elif step == "trigger":
            try:
                stream.trigger(details[0])
            except Killed:
                stream.start()
        else:
            most, least, how = details
            limits = {
                "maxOffsetsPerTrigger": most,
                "minOffsetsPerTrigger": min(least, most or least) if least else None,
            }
            stream.given = {name: one for name, one in stream.given.items() if not name.endswith("PerTrigger")}
            if kind is Query:
                stream.given |= {name: str(limit) for name, limit in limits.items() if limit is not None}
            stream.start(**how)
    stream.given = {name: one for name, one in stream.given.items() if not name.endswith("PerTrigger")}
    stream.start()
    stream.run()

    starts = {
        topic: {str(number): begin.get(topic, {}).get(str(number), -2) for number in log.topic(topic).offsets()}
        for topic in log.topics()
    }
    whole = {"subscribePattern": "s.*", "startingOffsets": json.dumps(starts)}
    by_partition: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in stream.rows:
        by_partition.setdefault((row["topic"], row["partition"]), []).append(row)
    assert [row for _, part in sorted(by_partition.items()) for row in part] == in_process.load(log.uri, whole)
