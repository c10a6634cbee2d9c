"""Which copy of a topic is the leader: the fence of the leader before it, and the promotion of a follower.

What a follower has is copied by the mirror.
"""
