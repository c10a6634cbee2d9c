"""What a power loss leaves: a disk that forgets whatever was not forced to it.

disk.c goes before every process (LD_PRELOAD) and notes what reaches the disk: the bytes of a file at its fsync, the
names of a directory at its fsync. disk.py makes of these notes the directory as it is after a power loss. run.py lets
real processes append and roll, cuts the power again and again, and looks for each acknowledged record.

All of it: python -m verification.durability
"""
