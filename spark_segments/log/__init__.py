"""A log directory and its topics, without Spark: logdir.py is the face, the rooms below are its parts."""
