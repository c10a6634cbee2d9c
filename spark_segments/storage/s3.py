"""What Amazon's own client does on S3, where it is installed (boto3): many deletions at once, and multipart uploads.

pyarrow deletes a file by several requests. It can neither list nor abort a multipart upload that was begun and never
ended, as a process leaves it that dies within a write. No listing of files shows such an upload, and its parts cost
money. Other stores drop what was never ended by themselves, within a week.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spark_segments.errors import StorageError
from spark_segments.storage.locations import Location, s3_client_settings

KEYS_A_REQUEST = 1000


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was never ended: the path of its file relative to the root, when it was begun (store's clock)."""

    path: str
    upload_id: str
    started_ms: int


class S3Client:
    """The client of a location. One object serves all threads."""

    def __init__(self, location: Location, client: Any) -> None:
        self._location = location
        self._client = client
        self._bucket, _, self._root = location.root.partition("/")

    def delete(self, paths: Sequence[str]) -> bool:
        """Deletes up to KEYS_A_REQUEST files; those that are gone are fine. False where the store does not take that.

        Some that claim S3's interface do not: then files may be left, or all of them.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        keys = [{"Key": self._key(path)} for path in paths]
        try:
            done = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})
        except (BotoCoreError, ClientError):
            return False
        return not done.get("Errors")

    def unfinished_uploads(self) -> list[Upload]:
        """The uploads below the root, in the order of their paths.

        Raises StorageError where the store does not answer, or does not allow it.
        """
        prefix = f"{self._root}/" if self._root else ""
        found = []
        with self._failures():
            pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
            for one in (one for page in pages for one in page.get("Uploads", [])):
                started_ms = int(one["Initiated"].timestamp() * 1000)
                found.append(Upload(one["Key"].removeprefix(prefix), one["UploadId"], started_ms))
        return sorted(found, key=lambda upload: upload.path)

    def abort_uploads(self, uploads: Iterable[Upload]) -> None:
        """Takes the parts of uploads away. A writer that is still at it gets an error. Missing uploads are fine."""
        with self._failures():
            for one in uploads:
                with contextlib.suppress(self._client.exceptions.NoSuchUpload):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=self._key(one.path), UploadId=one.upload_id
                    )

    def _key(self, path: str) -> str:
        return self._location.join(path).partition("/")[2]

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            text = " ".join(self._location.hidden(str(error)).split())
            raise StorageError(
                f"Uploads that were never ended cannot be listed or aborted ({text})",
                path=self._location.uri,
                hint="Allow s3:ListBucketMultipartUploads and s3:AbortMultipartUpload, or give the bucket a lifecycle "
                "rule that aborts such uploads",
            ) from error


def s3_client(location: Location) -> S3Client | None:
    """The client of a location of S3; None where boto3 is not installed, or the options name a role to take on."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        return None
    settings = s3_client_settings(location)
    if settings is None:
        return None
    try:
        made = boto3.Session().client("s3", **settings | {"config": Config(**settings["config"])})
    except BotoCoreError as error:  # such as a profile that is not there
        raise StorageError(f"boto3 takes no such settings: {location.hidden(str(error))}", path=location.uri) from error
    return S3Client(location, made)
