"""`Checkpointer`: saves a run by its policy, in the background, and restores its newest checkpoint.

Rank 0 decides at every step, by its own clock, and broadcasts; so the methods that say "collective" are called by every
rank with the same step. What goes wrong behind is raised at the next such call or at the end, after this rank has taken
its part in what all decided.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import msgspec

from forebay.checkpoint import catalog
from forebay.checkpoint.api import Place, as_location
from forebay.checkpoint.foreign.find import find
from forebay.checkpoint.group import Group
from forebay.checkpoint.groups import current_group
from forebay.checkpoint.housekeeping import FACTS_KEY, Housekeeper, facts
from forebay.checkpoint.manifest import MANIFEST_KEY
from forebay.checkpoint.policy import Every, Keep, Schedule
from forebay.checkpoint.preemption import PreemptionWatch
from forebay.checkpoint.read import LoadOptions, load, read_manifest
from forebay.checkpoint.stage import Staging
from forebay.checkpoint.timeline import Timeline
from forebay.checkpoint.write import PendingSave, SaveOptions, start_save
from forebay.errors import CheckpointMissing, ForebayError, SaveFailed
from forebay.locations import Location

SAVES_IN_FLIGHT_MAX = 2
"""A save of arrays that need no copy holds on to them until it is durable; so many states may be held."""
TIMELINES_MAX = 16


class _Decision(msgspec.Struct):
    """What rank 0 says of a step."""

    step: int
    why: str = ""
    temporary: bool = False
    preempted: bool = False


class _Request(msgspec.Struct):
    """What a rank asks of rank 0."""

    preempted: bool = False


class _Answer(msgspec.Struct):
    """What came of something that rank 0 did for all."""

    value: Any = None
    error: str = ""


class _Found(msgspec.Struct):
    """A complete checkpoint: in which of the homes, which step; or, where there is none of ours, another program's."""

    home: int
    step: int | None
    temporary: bool = False
    foreign: bool = False


class Checkpointer:
    """Checkpoints of one run at `location`.

    `every`: when `maybe_save` saves (default: temporarily, every 15 minutes). `keep`: which permanent checkpoints stay
    (default: all). `temporary`: another place, reached by all ranks, for the temporary ones. `group`: the processes that
    save together (default: those of `jax.distributed` or `torch.distributed`, else this one). `signals`: inside `with`,
    one of them makes the next `maybe_save` save, wait, and end the process with status 128 + signal, as the signal would
    have, unless the program handles it itself: then `preempted` is set. `overwrite`: replace a complete checkpoint
    of the same step instead of refusing. `adopt_temporary`: temporary checkpoints of earlier processes of this run are deleted
    like its own. `clock`: seconds, for tests.
    """

    def __init__(
        self,
        location: Place,
        every: Every | Sequence[Every] = Every(),  # noqa: B008 - frozen
        keep: Keep = Keep(),  # noqa: B008 - frozen
        *,
        temporary: Place | None = None,
        group: Group | None = None,
        save_options: SaveOptions | None = None,
        load_options: LoadOptions | None = None,
        overwrite: bool = False,
        adopt_temporary: bool = True,
        signals: Iterable[int] = (signal.SIGTERM,),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.location = as_location(location)
        self.temporary_location = as_location(temporary) if temporary is not None else self.location
        self.schedule, self.keep = Schedule(every), keep
        self.group = group or current_group()
        self.save_options, self.load_options = save_options or SaveOptions(), load_options or LoadOptions()
        self.overwrite = overwrite
        self.restored_step: int | None = None
        """The step that `restore` loaded."""
        self.preempted = False
        """Whether a signal announced the end, on any rank, and the state was saved for it."""
        self.timelines: deque[Timeline] = deque(maxlen=TIMELINES_MAX)
        """What the last saves and restores did and when, oldest first."""
        self._clock = clock
        self._watch = PreemptionWatch(signals)
        self._staging = Staging(self.save_options.memory_bytes)
        self._requested = threading.Event()
        self._told = False
        self._pending: deque[tuple[int, PendingSave]] = deque()
        self._last: tuple[int, bool] | None = None
        self._last_save_s = clock()
        self._base: Location | None = None
        self._newest_save: tuple[Location, PendingSave] | None = None
        homes = dict.fromkeys([self.location.url, self.temporary_location.url])
        self._keeper = Housekeeper((self.location, self.temporary_location)[: len(homes)], keep)
        self._behind = ThreadPoolExecutor(1, "forebay-housekeeping")
        self._chores: list[Future[None]] = []
        if self.group.rank == 0:
            if not adopt_temporary:
                self._keeper.spared = frozenset(name for home in self._keeper.homes for _, name in catalog.step_folders(home))
            self._chores.append(self._behind.submit(self._keeper.sweep))

    # --- saving

    def maybe_save(
        self, step: int, state: Any = None, metrics: dict[str, Any] | None = None, *, make_state: Callable[[], Any] | None = None
    ) -> PendingSave | None:
        """Collective. Save if it is due, requested, or the end was announced; returns when `state` may be changed again.

        `make_state` gives the state, where putting it together costs something, and is called only to save. `metrics` are
        numbers to keep with the checkpoint, for `Keep(best=…)`. Step 0 and a step saved already are not saved again; a
        temporary checkpoint of a step that turns out to be wanted is made permanent. Raises what went wrong with earlier
        saves, and `SystemExit` when the process was told to end.
        """
        decision = self._decide(step)
        pending = None
        if decision.why:
            pending = self._save(decision, make_state or (lambda: state), metrics, repeat=False)
        elif step == 0:
            self._last_save_s = self._clock()
        self._raise_failures()
        if decision.preempted:
            self._end(step)
        return pending

    def save(self, step: int, state: Any, metrics: dict[str, Any] | None = None, *, temporary: bool = False) -> PendingSave:
        """Collective. Save now whatever the schedule says, also at step 0; a checkpoint that this object made or restored
        at the same step is replaced. `wait()` on the result to have it durable.
        """
        self._agree_on(step)
        pending = self._save(_Decision(step, "forced", temporary), lambda: state, metrics, repeat=True)
        assert pending is not None
        self._raise_failures()
        return pending

    def request_save(self) -> None:
        """Make the next `maybe_save`, or the one after, save permanently. From any thread, on any rank."""
        self._requested.set()

    def wait(self) -> None:
        """Until all saves so far are durable and the housekeeping is done. Raises what went wrong."""
        for _, pending in self._pending:
            _ended(pending)
        self._finish_chores()
        self._raise_failures()

    def close(self) -> None:
        """`wait`, and give everything back."""
        self._watch.remove()
        try:
            self.wait()
        finally:
            self._behind.shutdown()

    def __enter__(self) -> Self:
        """Watch for `signals`."""
        self._watch.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait and raise what went wrong with the saves; if the block raised, that is added to its exception as a note."""
        try:
            self.close()
        except ForebayError as failure:
            if error is None:
                raise
            error.add_note(f"Beside this, a checkpoint failed: {failure}")

    # --- restoring

    def latest_step(self) -> int | None:
        """Collective. The step of the newest complete checkpoint, temporary ones included."""
        found = self._newest(None)
        return None if found is None else found.step

    def restore(self, like: Any = None, *, step: int | None = None, **how: Any) -> Any:
        """Collective. The newest complete checkpoint, or that of `step`, as `forebay.load(like=…, **how)` gives it; `like`
        itself if there is none. Where another program began the run, its newest one, until there is one of ours.

        `restored_step` tells which. Raises `CheckpointMissing` if `step` was asked for and is not there. A checkpoint that
        is damaged or cannot be reached is an error, never a reason to take an older one or to begin anew.
        """
        found = self._newest(step)
        if found is None:
            return like
        home = self._homes[found.home]
        timeline = Timeline(self.group.rank, f"load {home.url} step {found.step}")
        self.timelines.append(timeline)
        options = how.pop("options", self.load_options)
        wanted = None if found.foreign else found.step
        loaded = load(home, like, step=wanted, group=self.group, options=options, timeline=timeline, **how)
        self.restored_step = found.step
        if found.step is not None and not found.foreign:
            self._last = (found.step, found.temporary)
            self._base = home.child(catalog.step_name(found.step)) if home.copies_parts else None
        self._last_save_s = self._clock()
        return loaded

    def load_or_initialize(self, init: Callable[..., Any], *args: Any, **how: Any) -> Any:
        """Collective. `restore`, or `init(*args)` if there is no checkpoint.

        For JAX, `init` is only traced for its shapes when there is one; if it is jitted with `out_shardings`, arrays
        are restored to those. With `allow_missing=True`, what the checkpoint lacks is taken from `init`.
        """
        if self._newest(None) is None:
            return init(*args)
        jax: Any = sys.modules.get("jax")
        shapes = None
        if jax is not None:
            with contextlib.suppress(TypeError):  # not a function of JAX arrays
                shapes = jax.eval_shape(init, *args)
        if jax is None or shapes is None:
            return self.restore(init(*args), **how)
        loaded = self.restore(shapes, **how)

        def is_shape(leaf: Any) -> bool:
            return isinstance(leaf, jax.ShapeDtypeStruct)

        if not any(map(is_shape, jax.tree.leaves(loaded))):
            return loaded
        return jax.tree.map(lambda leaf, made: made if is_shape(leaf) else leaf, loaded, init(*args))

    # --- deciding

    def _decide(self, step: int) -> _Decision:
        preempted = self._watch.received is not None and not self._told
        self._told = self._told or preempted
        if preempted or self._requested.is_set():
            self._requested.clear()
            self.group.post(msgspec.json.encode(_Request(preempted)))
        decision = self._judge(step) if self.group.rank == 0 else None
        return self._broadcast(step, decision)

    def _judge(self, step: int) -> _Decision:
        """Rank 0's decision."""
        requests = [msgspec.json.decode(posted, type=_Request) for posted in self.group.take_posted()]
        saved = self._last is not None and self._last[0] == step
        if any(request.preempted for request in requests):
            return _Decision(step, "" if saved else "preempted", temporary=True, preempted=True)
        why = self.schedule.due(step, self._clock() - self._last_save_s) if step > 0 else ""
        if requests:
            why = "requested"
        if saved and (why == "clock" or (self._last is not None and not self._last[1])):
            why = ""
        return _Decision(step, why, temporary=why == "clock")

    def _agree_on(self, step: int) -> None:
        self._broadcast(step, _Decision(step) if self.group.rank == 0 else None)

    def _broadcast(self, step: int, decision: _Decision | None) -> _Decision:
        payload = msgspec.json.encode(decision) if decision is not None else None
        agreed = msgspec.json.decode(self.group.broadcast(payload, self.save_options.timeout_s), type=_Decision)
        if agreed.step != step:
            raise SaveFailed(self.group.rank, f"it is at step {step}, rank 0 at {agreed.step}: all ranks must call with the same steps")
        return agreed

    def _on_rank_0(self, action: Callable[[], Any]) -> Any:
        """Collective. What `action` gives on rank 0; what it raises there is raised everywhere."""
        payload, failure = None, None
        if self.group.rank == 0:
            try:
                answer = _Answer(action())
            except ForebayError as error:
                answer, failure = _Answer(error=str(error)), error
            payload = msgspec.json.encode(answer)
        agreed = msgspec.json.decode(self.group.broadcast(payload, self.save_options.timeout_s), type=_Answer)
        if failure is not None:
            raise failure
        if agreed.error:
            raise SaveFailed(0, agreed.error)
        return agreed.value

    # --- carrying out

    def _save(
        self, decision: _Decision, make_state: Callable[[], Any], metrics: dict[str, Any] | None, *, repeat: bool
    ) -> PendingSave | None:
        step, temporary = decision.step, decision.temporary
        mine = self._last is not None and self._last[0] == step
        if mine and not repeat and self.temporary_location is self.location:
            self._promote(step)
            return None
        home = self.temporary_location if temporary else self.location
        self._make_room()
        self._choose_base()
        numbers = {name: float(value) for name, value in (metrics or {}).items()}
        pending = start_save(
            home.child(catalog.step_name(step)), make_state(), step=step, group=self.group,
            metadata=facts(self.location, decision.why, numbers), temporary=temporary, base=self._base,
            overwrite=self.overwrite or (mine and repeat), options=self.save_options, staging=self._staging,
            latest=self.location if home is self.location else None,
        )  # fmt: skip
        self._last, self._last_save_s = (step, temporary), self._clock()
        self._pending.append((step, pending))
        self._newest_save = (home.child(catalog.step_name(step)), pending)
        self.timelines.append(pending.timeline)
        self._chores.append(self._behind.submit(self._after, pending))
        return pending

    def _promote(self, step: int) -> None:
        """Make the temporary checkpoint of this step permanent. If its save failed, that is raised by the caller."""
        failures = [_ended(pending) for saved, pending in self._pending if saved == step]

        def promote() -> bool:
            if failures and failures[-1] is not None:
                return False
            catalog.set_temporary(self.location.child(catalog.step_name(step)), False)
            return True

        if self._on_rank_0(promote):
            self._last = (step, False)

    def _make_room(self) -> None:
        going = [pending for _, pending in self._pending if not pending.done]
        for pending in going[: len(going) - SAVES_IN_FLIGHT_MAX + 1]:
            _ended(pending)

    def _choose_base(self) -> None:
        """The newest complete checkpoint of this object, for the next to share its bytes. Saves in flight may end later, so of
        two that follow at once the second shares with an older one.
        """
        if self._newest_save is not None and self._newest_save[1].done:
            checkpoint, pending = self._newest_save
            if pending.error is None:
                self._base = checkpoint if checkpoint.copies_parts else None
            self._newest_save = None

    def _after(self, pending: PendingSave) -> None:
        """Behind: once a save has ended well, tidy up."""
        if _ended(pending) is not None:
            return
        if self.group.rank == 0:
            self._keeper.tidy()

    def _finish_chores(self) -> None:
        chores, self._chores = self._chores, []
        for chore in chores:
            chore.result()

    def _raise_failures(self) -> None:
        """Raise the first failure of a save that has ended; the others become its notes."""
        ended = [(step, pending) for step, pending in self._pending if pending.done]
        self._pending = deque((step, pending) for step, pending in self._pending if not pending.done)
        self._chores = [chore for chore in self._chores if not chore.done() or chore.exception() is not None]
        failures = [(step, error) for step, pending in ended if (error := _ended(pending)) is not None]
        if not failures:
            return
        for step, error in failures:
            error.add_note(f"This was the checkpoint of step {step} of {self.location.url}; the one before it stays the newest.")
        for step, error in failures[1:]:
            failures[0][1].add_note(f"So did the checkpoint of step {step} fail: {error}")
        raise failures[0][1]

    def _end(self, step: int) -> None:
        """The end was announced and the state is in a checkpoint: make it durable, then leave as the signal would."""
        self.preempted = True
        self.wait()
        number = self._watch.received or (self._watch.signals[0] if self._watch.signals else signal.SIGTERM)
        self._watch.received, self._told = None, False
        if self._watch.ends_process(number):
            print(f"forebay: signal {int(number)}: saved step {step} in {self.temporary_location.url}; ending", file=sys.stderr)
            raise SystemExit(128 + number)

    @property
    def _homes(self) -> tuple[Location, ...]:
        return self._keeper.homes

    def _newest(self, step: int | None) -> _Found | None:
        """Collective. The newest complete checkpoint, or the one asked for."""
        answer = self._on_rank_0(lambda: self._look(step))
        if answer is None and step is not None:
            raise CheckpointMissing(f"{self.location.url} has no complete checkpoint of step {step}")
        return None if answer is None else msgspec.convert(answer, _Found)

    def _look(self, step: int | None) -> _Found | None:
        """On rank 0: by listing."""
        best: tuple[int, int] | None = None
        for index, home in enumerate(self._homes):
            for number, name in reversed(catalog.step_folders(home)):
                newer = best is None or number > best[1]
                if newer and step in (None, number) and home.head(f"{name}/{MANIFEST_KEY}") is not None:
                    best = (index, number)
                    break
        if best is None:
            other = find(self.location) if step is None else None
            return None if other is None else _Found(0, other.step, foreign=True)
        manifest, _ = read_manifest(self._homes[best[0]].child(catalog.step_name(best[1])))
        return _Found(best[0], best[1], manifest.temporary)


def _ended(pending: PendingSave) -> Exception | None:
    """Wait for the end; what it failed with."""
    try:
        pending.wait()
    except Exception as error:
        return error
    return None


def user_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's metadata without what Forebay adds."""
    return {key: value for key, value in metadata.items() if key != FACTS_KEY}
