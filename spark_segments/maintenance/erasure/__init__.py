"""Erasure of keys: the search for their records in files, their removal, and the account of the copies that are left.

It removes records with the cleaner of format/cleaner/; compaction/ removes what newer records supersede.
"""
