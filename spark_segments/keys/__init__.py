"""Indexes of keys and of fields: at which offsets of a topic a key, or a value of a field, may have records. An add-on,
which a log directory is given.

key_field.py has the keys of records as a field; other fields come from the formats of the log directory. run.py and
run_*.py have a run and its bytes, merge.py makes one of several. index_list.py says which runs there are, index_swap.py
commits a list, belief.py which runs hold for a version of the topic. index_plan.py says what is to be built and merged,
build.py has the tasks of that, job.py the job; look_up.py is what a scan asks, and read_ahead.py says where it expects
a hash. The format is docs/format/key-index.md.
"""
