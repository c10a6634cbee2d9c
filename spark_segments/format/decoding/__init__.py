"""From record batches to Arrow columns. Reading files is segment/'s business, in the log layer."""
