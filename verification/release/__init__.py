"""`python -m verification.release`: all that a release needs on one machine. The steps are commands, too."""
