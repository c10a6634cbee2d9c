"""Hostile bytes: mutated inputs for everything that reads what somebody else may have written.

An input must give rows or one clear error of this package, in bounded memory and time. `python -m verification.hostile`
runs millions; test_hostile.py runs a few thousand.
"""
