"""Every pair of operations on a topic, in both orders, and after each step every reader against a plain model.

Each feature alone is tested beside its code. What two features do to each other is tested here. `OPERATIONS` and
`READERS` are lists: an operation that is added to the list meets all others. `python -m verification.pairs` plays them.
"""
