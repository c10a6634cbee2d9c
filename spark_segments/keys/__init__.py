"""The index of keys: at which offsets of a topic a key may have records. An add-on, which a log directory is given.

run_*.py have the bytes of a run, merge.py makes one of several. index_list.py says which runs there are, index_swap.py
commits a list, belief.py which runs hold for a version of the topic. build.py and job.py build and merge runs;
look_up.py is what a scan asks. The format is docs/format/key-index.md.
"""
