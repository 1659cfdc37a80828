"""Lightning: its whole training state, saved by a Forebay schedule, and a plugin with which it loads and saves by itself.

What the state consists of is Lightning's own business (`dump_checkpoint`, which `Trainer.save_checkpoint` calls too).
"""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import CheckpointIO

from forebay.checkpoint import api, catalog
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoint.group import SingleProcess
from forebay.checkpoint.read import LoadOptions
from forebay.checkpoint.write import PendingSave
from forebay.errors import ForebayError


class ForebayIO(CheckpointIO):
    """Makes every checkpoint of Lightning's (`ModelCheckpoint`, `Trainer.save_checkpoint`, `ckpt_path=`) one of Forebay's.

        Trainer(plugins=[ForebayIO()], default_root_dir="s3://bucket/run")

    Saving returns when training may go on; a failure is raised at the next save and at the end. Lightning calls it on rank 0.
    """

    def __init__(self) -> None:
        self._pending: list[PendingSave] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None) -> None:
        """Start saving; an older checkpoint at `path` is replaced at the commit. Raises `LeafRefused`."""
        self._wait()
        self._pending.append(api.save_async(checkpoint, path, overwrite=True, group=SingleProcess()))

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The state, on the CPU; Lightning moves it. Raises `CheckpointMissing`, `CheckpointCorrupt`."""
        self._wait()
        loaded: dict[str, Any] = api.load(path, group=SingleProcess(), options=LoadOptions(arrays="saved"))
        return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove it, manifest first."""
        self._wait()
        catalog.delete(api.as_location(path))

    def teardown(self) -> None:
        """Wait, and raise what went wrong."""
        self._wait()

    def _wait(self) -> None:
        pending, self._pending = self._pending, []
        for save in pending:
            save.wait()


class ForebayCheckpoint(Callback):
    """Saves by the rules of a `Checkpointer`: steps, minutes, SIGTERM, what to keep. Its arguments are those of `Checkpointer`.

    forebay = ForebayCheckpoint("s3://bucket/run", every=Every(steps=1000), keep=Keep(last=3))
    trainer = Trainer(callbacks=[forebay], plugins=[ForebayIO()])
    trainer.fit(model, data, ckpt_path=forebay.newest())
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._arguments, self._options = args, options
        self._checkpointer: Checkpointer | None = None

    @property
    def checkpointer(self) -> Checkpointer:
        """Made when it is first needed, on all ranks."""
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(*self._arguments, **self._options)
        return self._checkpointer

    def newest(self) -> str | None:
        """The URL of the newest complete checkpoint, for `fit(ckpt_path=…)`; None if there is none. Of this process alone, for
        Lightning has not joined the ranks yet.
        """
        run = api.as_location(self._arguments[0] if self._arguments else self._options["location"])
        steps = catalog.list_steps(run)
        return run.child(steps[-1].name).url if steps else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch for signals."""
        self.checkpointer.__enter__()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Save if it is time; every optimizer step counts once."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.checkpointer.maybe_save(trainer.global_step, metrics=metrics, make_state=lambda: _dump(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait, and raise what went wrong."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Wait; what went wrong with the saves is noted on the exception."""
        try:
            self._close()
        except ForebayError as failure:
            exception.add_note(f"Beside this, a checkpoint failed: {failure}")

    def _close(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.close()


def _dump(trainer: Trainer) -> dict[str, Any]:
    state: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return state
