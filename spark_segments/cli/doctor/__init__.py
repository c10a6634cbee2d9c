"""`segments doctor` checks this installation, Spark's Pythons and Java, and a store; `segments java-home`."""
