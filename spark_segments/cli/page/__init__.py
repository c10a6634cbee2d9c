"""The page of `segments describe --html`: a log directory as strips of segments, in one self-contained file.

`view.py` collects the content and decides the blocks of a strip, and `render.py` makes the HTML from the templates,
the style and the script beside it.
"""
