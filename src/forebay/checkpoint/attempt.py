"""One attempt to save a checkpoint, seen from one rank: its reports, the wait for the others, and the commit.

Ranks speak only through the location. Each writes its index, or its failure; whoever finds all indexes may write the
manifest, whose conditional put decides. Rank 0 does it at once, the others only if it does not. A commit cannot be
taken back, so a rank that failed to hear of it looks for the manifest before it says that the save failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from forebay.checkpoint import manifest as records
from forebay.checkpoint import views
from forebay.checkpoint.group import Group
from forebay.checkpoint.manifest import MANIFEST_KEY, HostFailure, HostIndex, Manifest
from forebay.errors import (
    CheckpointCorrupt,
    CheckpointExists,
    LocationError,
    ObjectMissing,
    PreconditionFailed,
    SaveFailed,
)
from forebay.locations import Absent, Location, Unchanged

POLL_S = 0.5
"""How often a waiting rank lists the reports."""
COMMIT_GRACE_S = 5.0
"""How long the other ranks leave the commit to rank 0 once all reports are in; rank by rank a second more."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt `name` at the checkpoint `location`; `replaces` and `replaced_attempt` are the entity tag and the attempt of the
    manifest that it may overwrite.
    """

    location: Location
    name: str
    group: Group
    replaces: str | None = None
    replaced_attempt: str | None = None

    def report(self, index: HostIndex) -> None:
        """Say that this rank's data is durable."""
        data = records.encode(records.INDEX_FORMAT, index)
        self.location.put(f"{self._folder}/{_index_name(self.group.rank)}", data)

    def report_failure(self, error: BaseException) -> None:
        """Stop the other ranks. Best effort: what cannot be reported they notice by time or by the group.

        A rank that stops because of another passes on whose failure it was.
        """
        if isinstance(error, SaveFailed):
            record = HostFailure(error.rank, error.message)
        else:
            record = HostFailure(self.group.rank, str(error) or repr(error))
        try:
            key = f"{self._folder}/{_failure_name(self.group.rank)}"
            self.location.put(key, records.encode(records.FAILURE_FORMAT, record))
        except LocationError:
            self.group.check_peers()

    def check_failures(self) -> set[str]:
        """The names of the reports so far. Raises `SaveFailed` if there is a failure among them, or a rank is gone."""
        names = {entry.key.rsplit("/", 1)[-1] for entry in self.location.list_folder(self._folder).objects}
        for rank in range(self.group.size):
            if _failure_name(rank) in names:
                failure = self._read_failure(rank)
                raise SaveFailed(failure.rank, failure.message)
        return names

    def committed(self) -> str | None:
        """The manifest's entity tag if this attempt was committed, None if there is no manifest yet (but the one
        replaced).

        Raises `CheckpointExists` if another attempt was.
        """
        try:
            data, etag = self.location.get(MANIFEST_KEY)
        except ObjectMissing:
            return None
        if etag == self.replaces:
            return None
        found = records.decode(data, records.MANIFEST_FORMAT, Manifest, f"{self.location.url}/{MANIFEST_KEY}")
        if found.attempt != self.name:
            raise CheckpointExists(f"{self.location.url}: attempt {found.attempt} was committed before {self.name}")
        return etag

    def finish(self, index: HostIndex, build: Callable[[list[HostIndex]], Manifest], deadline_s: float) -> tuple[Manifest | None, str]:
        """Report, wait for all reports and commit, or wait until another rank has; a rank that is alone just commits.

        The manifest, if it was this rank that committed, and its entity tag. `deadline_s` is on the monotonic clock.
        """
        if self.group.size == 1:
            return self._commit(build([index]))
        self.report(index)
        expected = {_index_name(rank) for rank in range(self.group.size)}
        complete_since: float | None = None
        for names in self._poll(deadline_s):
            if not expected <= names:
                continue
            now_s = time.monotonic()
            complete_since = now_s if complete_since is None else complete_since
            grace_s = 0.0 if self.group.rank == 0 else COMMIT_GRACE_S + self.group.rank
            if now_s - complete_since >= grace_s:
                return self._commit(build(self._read_indexes()))
            if (etag := self.committed()) is not None:
                return None, etag
        raise AssertionError("unreachable: polling ends by an exception")

    def _poll(self, deadline_s: float) -> Iterator[set[str]]:
        while True:
            names = self.check_failures()
            yield names
            missing = [r for r in range(self.group.size) if _index_name(r) not in names]
            if missing:
                self.group.check_peers()
            if time.monotonic() > deadline_s:
                who = ", ".join(map(str, missing[:8])) or "0"
                raise SaveFailed(missing[0] if missing else 0, f"no report in time from rank {who}")
            time.sleep(POLL_S)

    def remove_replaced(self) -> None:
        """After the commit: remove the files of the attempt that this one replaced."""
        old = self.replaced_attempt
        if old is not None:
            folders = (f"data/{old}", f"index/{old}")
            self.location.delete([entry.key for folder in folders for entry in self.location.walk(folder)] + [f"d/{old}"])

    def _read_indexes(self) -> list[HostIndex]:
        with ThreadPoolExecutor(8, "forebay-index") as pool:
            return list(pool.map(self._read_index, range(self.group.size)))

    def _commit(self, built: Manifest) -> tuple[Manifest | None, str]:
        condition = Absent() if self.replaces is None else Unchanged(self.replaces)
        try:
            data = views.encode_manifest(built)
            return built, self.location.put(MANIFEST_KEY, data, condition)
        except PreconditionFailed as error:
            etag = self.committed()
            if etag is None:
                raise CheckpointExists(f"{self.location.url}: its manifest was removed or replaced meanwhile") from error
            return None, etag

    def _read_index(self, rank: int) -> HostIndex:
        key = f"{self._folder}/{_index_name(rank)}"
        data, _ = self.location.get(key)
        index = records.decode(data, records.INDEX_FORMAT, HostIndex, f"{self.location.url}/{key}")
        if index.rank != rank:
            raise CheckpointCorrupt(f"{self.location.url}/{key} is the report of rank {index.rank}")
        return index

    def _read_failure(self, rank: int) -> HostFailure:
        key = f"{self._folder}/{_failure_name(rank)}"
        data, _ = self.location.get(key)
        return records.decode(data, records.FAILURE_FORMAT, HostFailure, f"{self.location.url}/{key}")

    @property
    def _folder(self) -> str:
        return f"index/{self.name}"


def _index_name(rank: int) -> str:
    return f"h{rank:05d}.json"


def _failure_name(rank: int) -> str:
    return f"failed-h{rank:05d}.json"
