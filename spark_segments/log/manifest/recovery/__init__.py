"""What is known of a topic whose manifest is lost. The rebuild that uses it is a job: maintenance/rebuild."""
