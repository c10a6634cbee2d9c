"""The page of `segments describe --html`: a log directory as strips of segments, in one file that needs nothing else.

`view.py` says what is on it, `strip.py` how many blocks a strip has, `render.py` turns that into HTML with the
templates, the style and the script beside it.
"""
