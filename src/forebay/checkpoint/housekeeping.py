"""What rank 0 does after a commit: delete temporary checkpoints that something newer replaces, and permanent ones that
no rule keeps; at the start, sweep what died.

A run's own facts lie in its manifests' metadata under `forebay`: the run's URL, why it was saved, the metrics. A
temporary checkpoint that names another run was copied here, so it is not ours to delete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from forebay.checkpoint import catalog
from forebay.checkpoint.manifest import Manifest
from forebay.checkpoint.policy import Complete, Keep, to_delete
from forebay.checkpoint.read import read_manifest
from forebay.errors import CheckpointError, ForebayError
from forebay.locations import Location

logger = logging.getLogger("forebay")
FACTS_KEY = "forebay"
SWEEP_AGE_S = 86_400.0
"""What nobody has written to for so long is dead: a save gives up after `SaveOptions.timeout_s`, half an hour."""
_T = TypeVar("_T")


def facts(run: Location, why: str, metrics: dict[str, float]) -> dict[str, Any]:
    """What a manifest says of its run."""
    return {FACTS_KEY: {"run": run.url, "why": why, "metrics": metrics}}


@dataclass(frozen=True, slots=True)
class Held:
    """A complete checkpoint in one of a run's places."""

    home: Location
    name: str
    complete: Complete
    run: str

    @classmethod
    def of(cls, home: Location, step: catalog.Step, manifest: Manifest) -> Held:
        """From its manifest."""
        said = manifest.metadata.get(FACTS_KEY)
        said = said if isinstance(said, dict) else {}
        metrics = {str(key): float(value) for key, value in dict(said.get("metrics") or {}).items()}
        return cls(home, step.name, Complete(step.step, manifest.temporary, metrics), str(said.get("run", "")))


def doomed(held: Iterable[Held], keep: Keep, run: str) -> list[Held]:
    """What is to be deleted of the checkpoints of a run, oldest first. A step that is there twice counts as permanent if
    one of the two is, and its temporary one goes.
    """
    rows = sorted(held, key=lambda h: h.complete.step)
    by_step: dict[int, Complete] = {}
    for row in rows:
        known = by_step.get(row.complete.step)
        by_step[row.complete.step] = row.complete if known is None or known.temporary else known
    steps = set(to_delete(by_step.values(), keep))
    gone = [row for row in rows if row.complete.step in steps or row.complete.temporary != by_step[row.complete.step].temporary]
    return [row for row in gone if not row.complete.temporary or row.run == run]


@dataclass(slots=True)
class Housekeeper:
    """Keeps one run tidy. `homes`: the run's location first, then the one of temporary checkpoints if that is another."""

    homes: tuple[Location, ...]
    keep: Keep
    spared: frozenset[str] = frozenset()
    """Names of checkpoints that are never deleted."""
    failure: ForebayError | None = None
    """The last thing that went wrong; it is tried again after the next commit."""
    _known: dict[tuple[str, str], Held] = field(default_factory=dict)

    def sweep(self) -> None:
        """Remove attempts and uploads that died long ago."""
        for home in self.homes:
            for name in self._try(f"sweep {home.url}", catalog.sweep, home, SWEEP_AGE_S) or ():
                logger.info("swept what an unfinished save had left in %s/%s", home.url, name)

    def tidy(self) -> None:
        """Delete what is not to be kept. One failure does not keep the rest from being tried; it is logged and noted."""
        self.failure = None
        looks = [self._try(f"list {home.url}", self._look, home) for home in self.homes]
        held = [row for look in looks if look is not None for row in look]
        if None in looks:
            return  # a place that cannot be seen may hold the newest
        for row in doomed(held, self.keep, self.homes[0].url):
            if row.name in self.spared:
                continue
            self._try(f"delete {row.home.url}/{row.name}", catalog.delete, row.home.child(row.name))

    def _look(self, home: Location) -> list[Held]:
        """The complete checkpoints there. A manifest is read once."""
        rows = []
        for step in catalog.list_steps(home):
            key = (f"{home.url}/{step.name}", step.etag)
            try:
                if key not in self._known:
                    self._known[key] = Held.of(home, step, read_manifest(home.child(step.name))[0])
                rows.append(self._known[key])
            except CheckpointError as error:
                logger.warning("%s is left alone: %s", step.name, error)
        return rows

    def _try(self, what: str, action: Callable[..., _T], *args: Any) -> _T | None:
        try:
            return action(*args)
        except ForebayError as error:
            self.failure = error
            logger.warning("%s: %s; it will be tried again after the next checkpoint", what, error)
            return None
