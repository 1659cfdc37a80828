"""Every exception a user can meet: what happened, to which object, what to do.

Two owners: `StoreError` answers a caller's request and carries an S3 error code (its status and default sentence are in
`forebay.s3.errors`); `DriveError` and its kinds say what a drive of ours did. `CheckpointError` and its kinds belong to the
library. Anything else that escapes a public function is a bug in Forebay.
"""

from __future__ import annotations


class ForebayError(Exception):
    """Base of every exception that Forebay raises on purpose."""


class ConfigError(ForebayError):
    """A flag, a configuration file or an environment variable is wrong; the message names it and says what is accepted."""


class StoreError(ForebayError):
    """A request that the store refuses or cannot serve.

    `code` is S3's error code (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html); `fields` are further
    elements of the error document, such as `BucketName` or `ArgumentName`; `headers` go with the answer.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        headers: dict[str, str] | None = None,
        **fields: str,
    ) -> None:
        super().__init__(message or code)
        self.code = code
        self.message = message
        self.headers = headers or {}
        self.fields = fields


class DriveError(ForebayError):
    """A drive could not do what was asked. `drive` names it (its path)."""

    def __init__(self, drive: str, message: str) -> None:
        super().__init__(f"{drive}: {message}")
        self.drive = drive


class DriveFull(DriveError):  # noqa: N818 - these are states of a drive, named as operators speak of them
    """No space (ENOSPC, EDQUOT, or the reserve that keeps deletes possible). What is stored is unharmed."""


class DriveFailed(DriveError):  # noqa: N818
    """An I/O error, a time-out, or a vanished mount. The drive is taken out until it proves itself again."""


class DriveMismatch(DriveError):  # noqa: N818
    """The folder is not the drive that was expected here: another deployment, position, geometry or format version."""


class RecordCorrupt(DriveError):  # noqa: N818
    """A record or block failed its checksum. Another drive has it."""


class LocationError(ForebayError):
    """A place where checkpoints live (a folder, a bucket) could not do what was asked.

    `url` names the object, never with credentials; `operation` is the verb, such as `put` or `read`.
    """

    def __init__(self, operation: str, url: str, message: str) -> None:
        super().__init__(f"{operation} {url}: {message}")
        self.operation = operation
        self.url = url
        self.message = message

    def __reduce__(self) -> tuple[type[LocationError], tuple[str, str, str]]:
        """Pickle by the constructor's arguments, so that a failure can be sent to another process."""
        return type(self), (self.operation, self.url, self.message)


class ObjectMissing(LocationError):  # noqa: N818 - these are answers of a location
    """There is no such object."""


class PreconditionFailed(LocationError):  # noqa: N818
    """A conditional write found another object than it required. Nothing was changed."""


class LocationDenied(LocationError):  # noqa: N818
    """The credentials are missing, wrong, or do not allow it; or the folder's permissions do not."""


class LocationFull(LocationError):  # noqa: N818
    """No space, or a quota. What is stored is unharmed."""


class LocationUnavailable(LocationError):  # noqa: N818
    """Time-outs, cut connections or server errors outlasted the retries."""


class CheckpointError(ForebayError):
    """A checkpoint could not be saved, found, read or understood. The message names which, and what to do."""


class LeafRefused(CheckpointError):  # noqa: N818
    """The tree holds something that would not come back as it was. Nothing was written. `path` names it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path or '(root)'}: {message}")
        self.path = path


class CheckpointExists(CheckpointError):  # noqa: N818
    """Another save of the same step was committed first. It is whole; this one was discarded."""


class CheckpointMissing(CheckpointError):  # noqa: N818
    """No complete checkpoint there."""


class CheckpointCorrupt(CheckpointError):  # noqa: N818
    """Bytes failed their checksum, or a record is not what it claims to be. Names array, file and byte range."""


class CheckpointMismatch(CheckpointError):  # noqa: N818
    """The checkpoint's entries are not those that `like` asks for. The message is one report of all of them."""


class FormatUnknown(CheckpointError):  # noqa: N818
    """A checkpoint of a newer format version, or of another program. Never guessed at."""


class SaveFailed(CheckpointError):  # noqa: N818
    """A save stopped. `rank` is the process it failed on; the checkpoint before it stays the newest."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(f"rank {rank}: {message}")
        self.rank = rank
        self.message = message
