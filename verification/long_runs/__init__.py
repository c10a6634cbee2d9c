"""Processes that do everything to one log at once, and the judge of what they leave.

Each process notes every try of a commit before it is sent. Delta's log then says which tries became which versions of a
topic: the judge replays them in that order on a plain model, and compares it with what readers saw and what is left.
"""
