"""A simulator: everything that happens to a log directory, at once, in one thread, on a virtual clock, from a seed.

    python -m verification.simulation --seed 7
    python -m verification.simulation --seeds 1-200 --commits 1500 --jobs 2

Writers, streams, readers, groups, every job, imports of a Kafka directory that changes, exports, mirrors, promotions,
operators and their mistakes run the product's own code. They meet a store (store.py) and Delta's log (delta.py)
in memory, at the interfaces that the product has for them: `storage/filesystem.py` and
`log/manifest/files/delta/delta_log.py`.
Each process is a greenlet (world.py) that runs until its next request; the seed draws how long that takes, so it draws
the order of all requests. The modules' `time`, `random`, `uuid`, `secrets` and thread pools are the world's
(environment.py): the same seed gives the same events, in every process, and the trace hash of a run says so.

A seed draws its faults (faults.py): requests that are refused, whose reply is lost, that are carried out when nobody
waits any more; stale listings; half files; wrong bits that a checksum covers; clocks that jump; machines that stand
still for up to 105 minutes; processes that die between any two requests. Seconds of work are followed by minutes or
days of rest (scenario.py), so that processes race, and files grow old enough for retention, compaction and vacuum.

The judge (judge.py) sees each commit at the moment when it is there, and applies what its process had set out to do
to a plain model (model.py). Everything is compared with that: the bounds of all partitions after every commit, every
acknowledgement, every read of every version, every export, every error (it needs a cause), and at the end all topics,
every byte, and the files that are left.

What is assumed of the store is what the product says that it assumes: a request takes effect at one moment; a commit
is a compare-and-swap; no request is carried out more than half an hour after it was sent.

Further processes go into `ACTORS` of simulation.py: a function of (simulation, process) that loops for ever, and says
in `Simulation.attempt` what its next commits are to do.
"""
