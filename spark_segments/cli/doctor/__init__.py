"""`segments doctor` checks this installation, Spark's Pythons and Java, and a store; it prints where things lie."""
