"""The files beside a `.log`, as bytes: indexes, transaction indexes, checkpoints, producer state."""
