"""Copies of topics in other log directories: followers, which a mirror keeps in step, and the promotion of one of them.

A follower is at every moment what its leader was at a version of its manifest. Of the core this needs versions of a
manifest and their commits, rows, roles, the files of segments, and positions of groups. Of the jobs it needs vacuum and
lists of checksums.
"""
