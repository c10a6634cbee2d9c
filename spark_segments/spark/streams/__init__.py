"""Streams of `format("segments")`: the micro-batch source and the sink. What batches share with them is in spark/."""
