from spark_segments.format.kernels.memory cimport i64, wrap_i64
from spark_segments.format.sidecars.fields cimport (
    ADDED_OFFSET_ENTRY,
    ADDED_TIME_ENTRY,
    BYTES_SINCE_ENTRY,
    LAST_ENTRY_TIMESTAMP,
    MAX_RELATIVE_OFFSET,
    MAX_TIMESTAMP,
    OFFSET_ENTRIES,
    OFFSET_OF_MAX,
    TIME_ENTRIES,
)
