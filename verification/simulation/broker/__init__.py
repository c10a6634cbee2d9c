"""A broker's log directory that changes while it is read: between any two calls of the reader's file system a broker
appends, aborts, rolls, cleans, deletes, fails over, writes a checkpoint, or dies.

    python -m verification.simulation.broker --seed 7
    python -m verification.simulation.broker --seeds 1-100 --passes 100

disk.py plays the broker: real files, renamed and deleted as Kafka does it, and what they are to hold in a plain model.
passes.py imports them with the product's `import_all`, pass after pass, kills it now and then, and compares the topics
here with the model after each. One thread does it all, so a seed has the same events every time.
"""
