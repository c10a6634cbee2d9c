"""The kit by which other programs show that they read and write this format: vectors, and what has to come of them.

`python -m spark_segments.conformance DIRECTORY COMMAND…` asks a reader by lines of JSON (kit.py); for what a writer has
made, `segments verify --deep` is the judge. docs/format/conformance.md describes both. This room knows nothing of the
rest of the package.
"""
