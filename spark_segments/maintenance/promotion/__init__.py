"""Which copy of a topic is the leader: promotion of a follower, demotion of a former leader, and logs that diverged.

What a follower has is copied by the mirror.
"""
