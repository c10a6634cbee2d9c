"""What an archive loses after keys of its topic were erased: the rules that keep its rows, or an error."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.lake.rules import FromOffsets, OtherKeys, Rule, TypedKeys
from spark_segments.lake.table_format import TablePositions
from spark_segments.log import Erasure, Snapshot
from spark_segments.values.batches import Decoder
from spark_segments.values.codecs import Registered
from spark_segments.values.column_types import recast
from spark_segments.values.format_options import NULL, ONE_ENCODING


@dataclass(frozen=True, slots=True)
class ErasedKeys:
    """The keys that are to leave an archive. `forget`: with all rows that the topic no longer has. `alike`: with rows
    that decode to the same typed key, where the archive has no bytes of it.
    """

    keys: Sequence[bytes] = ()
    forget: bool = False
    alike: bool = False

    def check(self) -> None:
        """Raises InvalidOptionError where options of keys have none."""
        if (self.forget or self.alike) and not self.keys:
            raise InvalidOptionError("Which keys?", expected="keys that an archive is to forget", found="none")

    def rules(
        self,
        snapshot: Snapshot,
        positions: Iterator[TablePositions | None],
        other_keys: Callable[[], OtherKeys],
        warn: Callable[[str], None],
    ) -> Sequence[Rule]:
        """What keeps rows: other keys, and, unless the archive is to forget, offsets that were appended after the last
        erasure. Nothing: all rows stay. `positions`: of the archive's commits, the newest first.

        Raises LogDirError where keys were erased since the newest commit, and fewer are named than an erasure had.
        """
        before = next(positions, None)
        if before is None:
            return []
        erasures = Erasure.of(snapshot)
        new = [erasure for erasure in erasures if before.is_before(erasure, snapshot)]
        if new:
            self._check_named(snapshot, new, warn)
        if not self.keys:
            return []
        if self.forget:
            return [other_keys()]
        if not new:
            kept = "the archive keeps what came after the last erasure. With --forget that goes, too"
            warn(f"No keys of topic {snapshot.topic} were erased since the last run: {kept}")
        # What the archive had before the erasure was appended before it. What came in later was in the topic after it.
        for position in itertools.chain([before], positions) if erasures else ():
            if position is None:  # nobody knows what it had
                return [other_keys()]
            if position.is_before(erasures[-1], snapshot):
                return [other_keys(), FromOffsets({number: position.end(number) for number in position.positions})]
        return []  # the archive was made after the last erasure

    def _check_named(self, snapshot: Snapshot, erasures: Sequence[Erasure], warn: Callable[[str], None]) -> None:
        """Raises LogDirError where fewer keys are named than one of these erasures had; warns where all of them may
        have had more. The same key may have been erased twice.
        """
        counts = [1 if erasure.keys is None else erasure.keys for erasure in erasures]
        since = f"erasures since: {'; '.join(map(str, erasures))}"
        named = len(set(self.keys))
        if named < max(counts):
            raise LogDirError(
                "Keys of the topic were erased, and only the topic forgot them",
                path=f"topic {snapshot.topic}",
                expected="the erased keys, for the archive to lose them, too",
                found=f"{named:,} keys named, {since}" if named else since,
                hint="Name all of the keys: segments table … --key KEY",
            )
        if named < sum(counts):
            warn(f"Topic {snapshot.topic}: {named:,} keys named, {since}. Name the others, too: the archive keeps them")


def other_keys(erased: ErasedKeys, decoder: Decoder | None, key_type: pa.DataType, has_bytes: bool) -> OtherKeys:
    """The rule for erased keys of an archive. `decoder`: of its typed keys, None for keys that are bytes. `has_bytes`:
    each row has the bytes of its typed key.
    """
    keys = pa.array(erased.keys, pa.binary())
    if decoder is None:
        return OtherKeys(keys)
    typed = None if has_bytes else _typed_keys(keys, decoder, key_type, erased.alike)
    return OtherKeys(keys, is_typed=True, typed=typed)


def _typed_keys(keys: pa.Array, decoder: Decoder, key_type: pa.DataType, alike: bool) -> TypedKeys:
    chosen = decoder.chosen
    lenient = dataclasses.replace(decoder, chosen=dataclasses.replace(chosen, errors=NULL, raw_column="undecodable"))
    values, undecodable = lenient.decode(keys)
    assert undecodable is not None
    is_undecodable = undecodable.null_count < len(undecodable)
    if is_undecodable and isinstance(decoder.codec, Registered):
        return TypedKeys(None, taken=alike)  # headers may have had the id of the key's schema
    # Without key.errors=null a key that cannot be decoded would have stopped the archive.
    decodes_to_null = values.null_count > (0 if chosen.errors == NULL else len(undecodable) - undecodable.null_count)
    is_exact = chosen.format in ONE_ENCODING or (chosen.format == "json" and chosen.schema is None)
    return TypedKeys(recast(values.drop_null(), key_type), is_exact, decodes_to_null, alike)
