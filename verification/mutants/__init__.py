"""Faults planted in the code, each with the check that finds it.

catalogue.py has them as patches of the source: an old text and the text in its place. planted.py copies the tree,
applies a patch to the copy, and runs its check there, which must fail. A patch whose old text is no longer there is an
error.

All of it: python -m verification.mutants
"""
