"""Why a record is still here, and when each job acts on it next. These are plans only: nothing here changes a log."""
