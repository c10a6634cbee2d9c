"""Processes that are killed at any moment, and long races of all jobs: nothing is lost, doubled or back.

`python -m verification.kills` has the jobs, the other modules are commands by themselves.
"""
