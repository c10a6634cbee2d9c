"""`segments mcp`: a log directory for assistants, by the Model Context Protocol. It reads, and writes nothing.

The protocol is that of the SDK `mcp`. A tool here is a command that reads, with bounds on what it answers.
"""
