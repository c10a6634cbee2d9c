"""The provider for Apache Airflow 3: an operator for each job, a sensor, and assets that stand for topics.

Only this room imports Airflow, and only Airflow imports this room.
"""
