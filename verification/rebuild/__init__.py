"""Logs whose manifest is lost: random histories, and writers that race with the rebuild."""
