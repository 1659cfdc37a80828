"""When to save and what to keep. Pure: steps, clocks and metrics are arguments.

A save by step is permanent; a save by the clock is temporary and deleted once something newer is complete; what is
permanent stays until `Keep` says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.errors import ConfigError

MINUTES_DEFAULT = 15.0


@dataclass(frozen=True, slots=True)
class Every:
    """One rule of a schedule, for the steps up to `until` (included; None: for ever).

    `steps`: save permanently at multiples of it (None: never). `minutes`: save temporarily when so many have passed
    since the last save (None: never).
    """

    steps: int | None = None
    minutes: float | None = MINUTES_DEFAULT
    until: int | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"Every(steps={self.steps}): it must be at least 1; None turns saving by steps off")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"Every(minutes={self.minutes}): it must be above 0; None turns saving by the clock off")


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the `count` checkpoints whose `metric`, as given to `maybe_save(metrics=…)`, is lowest (`min`) or highest
    (`max`). One without the metric, or with NaN, is never the best.
    """

    metric: str
    count: int = 1
    mode: str = "min"

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if self.mode not in ("min", "max") or self.count < 1:
            raise ConfigError(f"Best(count={self.count}, mode={self.mode!r}): count must be at least 1, mode 'min' or 'max'")


@dataclass(frozen=True, slots=True)
class Keep:
    """Which permanent checkpoints stay: the `last` so many, those at multiples of `every`, and the `best`.

    With none of these, all stay. The newest always does.
    """

    last: int | None = None
    every: int | None = None
    best: Best | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        for name, value in (("last", self.last), ("every", self.every)):
            if value is not None and value < 1:
                raise ConfigError(f"Keep({name}={value}): it must be at least 1; None turns this rule off")

    @property
    def keeps_all(self) -> bool:
        """Whether nothing permanent is ever deleted."""
        return self.last is None and self.every is None and self.best is None


@dataclass(frozen=True, slots=True)
class Complete:
    """A complete checkpoint, as far as deleting asks."""

    step: int
    temporary: bool
    metrics: dict[str, float]


class Schedule:
    """Rules in order of their `until`; the first whose `until` has not passed holds. After all of them the clock of the
    last goes on. Raises `ConfigError` if they are out of order.
    """

    def __init__(self, rules: Every | Sequence[Every]) -> None:
        self.rules = (rules,) if isinstance(rules, Every) else tuple(rules)
        if not self.rules:
            self.rules = (Every(minutes=None),)
        for rule, after in zip(self.rules, self.rules[1:], strict=False):
            if rule.until is None or (after.until is not None and after.until <= rule.until):
                raise ConfigError(f"{rule} is followed by {after}: `until` must rise, and only the last may have none")

    def due(self, step: int, since_save_s: float) -> str:
        """Why to save now: `step`, `clock`, or an empty string."""
        rule = next((r for r in self.rules if r.until is None or step <= r.until), None)
        if rule is not None and rule.steps is not None and step % rule.steps == 0:
            return "step"
        minutes = (rule or self.rules[-1]).minutes
        return "clock" if minutes is not None and since_save_s >= minutes * 60 else ""


def to_delete(complete: Iterable[Complete], keep: Keep) -> list[int]:
    """The steps to delete, oldest first: temporary ones with something newer, and permanent ones that no rule keeps."""
    by_step = sorted(complete, key=lambda c: c.step)
    if not by_step:
        return []
    newest = by_step[-1].step
    permanent = [c for c in by_step if not c.temporary]
    kept = {newest} | _kept(permanent, keep)
    return [c.step for c in by_step if c.step not in kept]


def _kept(permanent: Sequence[Complete], keep: Keep) -> set[int]:
    if keep.keeps_all or not permanent:
        return {c.step for c in permanent}
    kept = {c.step for c in permanent[-(keep.last or 1) :]}
    if keep.every is not None:
        kept |= {c.step for c in permanent if c.step % keep.every == 0}
    if keep.best is not None:
        kept |= {c.step for c in _best(permanent, keep.best)}
    return kept


def _best(permanent: Sequence[Complete], best: Best) -> list[Complete]:
    """The best, the newer of equals first."""
    sign = 1 if best.mode == "min" else -1
    judged = [c for c in permanent if not math.isnan(c.metrics.get(best.metric, math.nan))]
    return sorted(judged, key=lambda c: (sign * c.metrics[best.metric], -c.step))[: best.count]
