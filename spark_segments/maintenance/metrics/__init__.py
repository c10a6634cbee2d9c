"""Reports and the state of a log directory as OpenMetrics text, under Kafka's names where Kafka has one.

report.py knows what a job did; this room knows how monitoring systems spell it.
"""
