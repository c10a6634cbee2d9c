"""The members of the border that are used outside of the core, each once: by the first name that has it."""

from __future__ import annotations

MOST_NAMES = 45
MOST_MEMBERS = 251

MEMBERS = (
    (
        "LogDirectory",
        "A location, its topics, and the manifest of each by version",
        "check_apart check_writable create create_topic defaults delete_topic directories hinting is_kafka "
        "is_marked is_there kafka key_offsets manifest named note_follower open snapshot storage topics uri "
        "values",
    ),
    (
        "Manifest",
        "A location, its topics, and the manifest of each by version",
        "changed_rows commit committed_ms create_by delete exists facts history keep_for_rebuild keys_from_ms log "
        "operations_out_of_log state topic",
    ),
    (
        "TableState",
        "A location, its topics, and the manifest of each by version",
        "files is_gone last_transactions table version",
    ),
    (
        "Snapshot",
        "A topic at a version: rows of its segments and partitions. Everything that is read begins here",
        "aborted check_partition check_role config deleted_ms holding live live_of live_table load_segments "
        "offset_bounds offset_indexes partition partition_rows partitions removed_bytes role segments source "
        "states topic_id topic_row",
    ),
    (
        "Scan",
        "Records, decoded: a scan, what it reads, and the parts that tasks get",
        "batches columns columns_of coverage decoders keys_of of of_field of_keys of_times offsets parts read schema "
        "select selection to_pandas to_reader to_table where",
    ),
    (
        "Selection",
        "Records, decoded: a scan, what it reads, and the parts that tasks get",
        "LATEST_VIEW include_control include_tombstones isolation times value_type view",
    ),
    (
        "ScanPart",
        "Records, decoded: a scan, what it reads, and the parts that tasks get",
        "cost_bytes end_offset",
    ),
    (
        "PartitionLog",
        "Batches as they lie: of a partition from an offset on, of a segment, and of a file that may be damaged",
        "bytes_from segment_at",
    ),
    (
        "FetchedBatches",
        "Batches as they lie: of a partition from an offset on, of a segment, and of a file that may be damaged",
        "data layout next_offset place size_bytes",
    ),
    (
        "Place",
        "Batches as they lie: of a partition from an offset on, of a segment, and of a file that may be damaged",
        "byte_position offset path",
    ),
    (
        "SegmentFile",
        "Batches as they lie: of a partition from an offset on, of a segment, and of a file that may be damaged",
        "copy_log locate row seek windows",
    ),
    (
        "Examination",
        "Batches as they lie: of a partition from an offset on, of a segment, and of a file that may be damaged",
        "add figures steps",
    ),
    (
        "ProducerOptions",
        "Rows of a caller, and the options of a producer, as one append",
        "batch_bytes",
    ),
    (
        "Transaction",
        "Rows of a caller, and the options of a producer, as one append",
        "key",
    ),
    (
        "SegmentWriter",
        "Batches that are there already, into files of segments",
        "add_aborted append base_offset close fitting log_bytes",
    ),
    (
        "Change",
        "The change that a plan makes of a snapshot: one commit",
        "OLDEST_FILE_MS check_mirrored operation replace transactions",
    ),
    (
        "Operation",
        "The change that a plan makes of a snapshot: one commit",
        "ALTER APPEND BRINGING_BACK CAPTURE COMPACT DELETE_RECORDS ERASE FENCE IMPORT LEAVING_OFFSETS MIRROR OF_FILES "
        "PROMOTE",
    ),
    (
        "Group",
        "Positions of readers",
        "MOST_FILES all id lags positions update with_positions",
    ),
    (
        "Report",
        "What a job did, and what it found",
        "FAILED add_copied by_topic bytes_in count details dropped dry_run errors fail failed findings finish job "
        "seconds to_dict warn warnings",
    ),
    (
        "Findings",
        "What a job did, and what it found",
        "WARNING add_error found",
    ),
    (
        "Segment",
        "Rows of the manifest",
        "CHUNK DELETING REMOVED SEALED at created_ms file_base_offset first_batch_max_timestamp_ms identity "
        "is_full is_shared max_timestamp_ms name_offset new_stem of_table offset_shift records removed removed_ms "
        "sidecars stem tombstones",
    ),
    (
        "Partition",
        "Rows of the manifest",
        "first_dirty_offset last_stable_offset leader_epoch leader_epochs log_end_offset log_start_offset "
        "producer_snapshot",
    ),
    (
        "TopicRow",
        "Rows of the manifest",
        "REBUILT_FROM new_id",
    ),
    (
        "Position",
        "Positions, and what a reader loses that goes on at one",
        "LONGEST_METADATA loss_in metadata",
    ),
    (
        "PartitionState",
        "Positions, and what a reader loses that goes on at one",
        "end holes log_end log_start of_row position",
    ),
    (
        "Positions",
        "Positions, and what a reader loses that goes on at one",
        "group lease made_by number starts",
    ),
    (
        "GroupLag",
        "Positions, and what a reader loses that goes on at one",
        "gone lag",
    ),
    (
        "LeaderEpochs",
        "Positions, and what a reader loses that goes on at one",
        "allows before entries epoch_of epochs_of of_copies stamps_all",
    ),
    (
        "Eras",
        "Positions, and what a reader loses that goes on at one",
        "RANKED ends ranks unknown",
    ),
    (
        "KeyCoverage",
        "What a look-up of keys gives, and what it looked at: an index of keys is an add-on, which a scan asks",
        "runs",
    ),
    (
        "KeyRanges",
        "What a look-up of keys gives, and what it looked at: an index of keys is an add-on, which a scan asks",
        "scanned",
    ),
    (
        "RecordField",
        "What records are looked for by: an add-on has the fields, and another one the indexes on them, which compares "
        "how both decode",
        "encoded fingerprint formats may_decode_later on",
    ),
    (
        "Hole",
        "What a topic remembers of its log: holes, undecided transactions, erasures, captures",
        "REMOVED_BEFORE reason start_offset within",
    ),
    (
        "Undecided",
        "What a topic remembers of its log: holes, undecided transactions, erasures, captures",
        "producer_id",
    ),
    (
        "Erasure",
        "What a topic remembers of its log: holes, undecided transactions, erasures, captures",
        "appends erasure_id keys rewritten",
    ),
    (
        "Captured",
        "What a topic remembers of its log: holes, undecided transactions, erasures, captures",
        "GOES_ON_IN SOURCE_CLUSTER_ID SOURCE_TOPIC_ID at_ms high_watermark late others stable_end",
    ),
    (
        "CapturedBatch",
        "What a topic remembers of its log: holes, undecided transactions, erasures, captures",
        "crc topic_row_without",
    ),
    (
        "CopiedEnd",
        "What a topic remembers of its log: holes, undecided transactions, erasures, captures",
        "",
    ),
    (
        "row_tables",
        "Functions over Arrow tables of segments' rows",
        "in_states with_column without",
    ),
)
"""(name, what its group is there for, members)"""
