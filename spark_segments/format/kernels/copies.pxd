from spark_segments.format.kernels.memory cimport address_of, copy_bytes, i64, load_native_i64, size_of
from spark_segments.format.layout cimport LARGEST_OFFSET
