"""Streams of `format("segments")`: where a batch begins and ends, what a loss is, how far a query is behind; the sink.

What batches share with streams is in spark/: records are read by the batch reader's tasks, and encoded by its writer's.
"""
