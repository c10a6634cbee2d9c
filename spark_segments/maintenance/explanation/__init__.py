"""Why a record is still here, and when each job acts on it next. Plans only: nothing here changes a log."""
