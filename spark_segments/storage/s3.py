"""Uploads on S3 that were begun and never ended, by Amazon's own client (boto3), where it is installed.

A process that dies within the upload of a large file leaves one. obstore can neither list nor abort it, no listing of
files shows it, and its parts cost money. Other stores drop what was never ended by themselves, within a week.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from spark_segments.errors import StorageError
from spark_segments.storage.clients import boto3_client_settings, boto3_session
from spark_segments.storage.locations import Location


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

    def unfinished_uploads(self) -> list[Upload]:
        """The uploads below the root, in the order of their paths.

        Raises StorageError where the store does not answer, or does not allow it.
        """
        prefix = f"{self._root}/" if self._root else ""
        uploads = []
        with self._failures():
            pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
            for one in (one for page in pages for one in page.get("Uploads", [])):
                started_ms = int(one["Initiated"].timestamp() * 1000)
                uploads.append(Upload(one["Key"].removeprefix(prefix), one["UploadId"], started_ms))
        return sorted(uploads, key=lambda upload: upload.path)

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
        from botocore.config import Config
    except ImportError:
        return None
    settings = boto3_client_settings(location)
    if settings is None:
        return None
    made = boto3_session(location).client("s3", **settings | {"config": Config(**settings["config"])})
    return S3Client(location, made)
