from spark_segments.format.layout cimport ABORT, COMMIT, NO_MARKER
from spark_segments.format.kernels.memory cimport address_of, i64, load_native_i64, load_u8, store_i8, store_native_i64
