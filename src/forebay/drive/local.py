"""A drive that is a folder of this machine."""

from __future__ import annotations

from forebay.drive.interface import Drive, Identity


class LocalDrive(Drive):
    """A drive that is a folder. See `Drive` for its methods."""

    @classmethod
    def format(cls, path: str, identity: Identity) -> None:
        """Make `path` (missing or empty) a drive with this identity. Raises DriveMismatch if it holds anything else."""
        raise NotImplementedError

    @classmethod
    def open(cls, path: str, expected: Identity | None = None, *, reserve_bytes: int | None = None) -> LocalDrive:
        """Open the drive in `path`.

        Raises DriveMismatch if it is not a drive, has an unknown format version, a damaged identity, or another deployment,
        set, position or geometry than `expected` (its `drive_id` and `device` are compared when not empty).
        """
        raise NotImplementedError

    @classmethod
    def read_identity(cls, path: str) -> Identity:
        """The identity in `path`, without opening the drive. Raises as `open` does."""
        raise NotImplementedError
