"""What `like` asks for against what a checkpoint has: every difference goes into one report."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from forebay.checkpoint.manifest import Path, path_text
from forebay.errors import CheckpointMismatch

LISTED_MAX = 50
"""Entries listed of each kind; the others are counted."""


@dataclass(slots=True)
class Report:
    """The differences found so far."""

    where: str
    missing: list[Path] = field(default_factory=list)
    extra: list[Path] = field(default_factory=list)
    different: list[tuple[Path, str]] = field(default_factory=list)

    def check(self, *, allow_missing: bool, allow_extra: bool) -> None:
        """Raises `CheckpointMismatch` with all of them, if there are any that are not allowed."""
        missing = [] if allow_missing else self.missing
        extra = [] if allow_extra else self.extra
        if not (missing or extra or self.different):
            return
        lines = [f"{self.where} does not hold what `like` asks for"]
        lines += _section("missing from the checkpoint (allow_missing=True keeps those of `like`)", missing, self.extra)
        lines += _section("only in the checkpoint (allow_extra=True leaves them out)", extra, self.missing)
        lines += _listed("different", [f"{path_text(path)}: {what}" for path, what in self.different])
        raise CheckpointMismatch("\n".join(lines))


def _section(title: str, paths: list[Path], others: Iterable[Path]) -> list[str]:
    candidates = [path_text(path) for path in others]
    entries = []
    for path in paths[:LISTED_MAX]:
        near = difflib.get_close_matches(path_text(path), candidates, n=1, cutoff=0.7)
        entries.append(path_text(path) + (f"  (nearest: {near[0]})" if near else ""))
    return _listed(title, entries, len(paths))


def _listed(title: str, entries: list[str], count: int | None = None) -> list[str]:
    count = len(entries) if count is None else count
    if not count:
        return []
    more = [f"    … and {count - LISTED_MAX} more"] if count > LISTED_MAX else []
    return [f"  {count} {title}:", *(f"    {entry}" for entry in entries[:LISTED_MAX]), *more]
