"""The verifier: commands that look for defects longer, and more at random, than a test may.

Each package is a way to look: `simulation`, `pairs`, `protocol`, `hostile`, `durability`, `faults`, `kills`, `rebuild`,
`kafka_protocol`, `spark`, `specification`, and `mutants`, which finds what the checks miss. `world` has what all of
them are made of. docs/design/proof.md says what each finds, and how long it takes. The tests run a short form of each:
`tests` imports this package, and this package imports no test.
"""
