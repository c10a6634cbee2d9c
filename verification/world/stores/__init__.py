"""Stores below a log directory: in memory, played, behind a proxy that fails, and servers of others on this machine."""
