"""`segments capture`: the topics of a running cluster, copied batch by batch.

It asks as a follower does, by Fetch requests that kafka-python sends. No record is decoded.
"""
