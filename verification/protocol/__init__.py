"""The commit protocol as a small explicit model, explored to exhaustion, and its traces played on the real code.

model.py is the protocol as docs/format/writing.md says it, over a store that loses replies, refuses requests and
carries them out late. explore.py visits every state that a scenario can reach and looks for a state that breaks a
promise. replay.py plays paths of the model on `LogDir`, step by step, and compares. The model shares nothing with the
package.

All of it: python -m verification.protocol
"""
