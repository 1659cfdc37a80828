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
