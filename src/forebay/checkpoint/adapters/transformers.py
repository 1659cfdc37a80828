"""Hugging Face's Trainer: its training state, saved by a Forebay schedule, and given back as the folder that it resumes from."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from forebay.checkpoint import api
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoint.group import SingleProcess
from forebay.checkpoint.read import LoadOptions


class ForebayCallback(TrainerCallback):
    """Saves model, optimizer, scheduler, random states and Trainer's own state, by the rules of a `Checkpointer`, whose
    arguments it takes.

        forebay = ForebayCallback("s3://bucket/run", every=Every(steps=500), keep=Keep(last=3))
        trainer = Trainer(…, callbacks=[forebay])
        trainer.train(resume_from_checkpoint=forebay.fetch(args.output_dir))

    Use `save_strategy="no"`, or Trainer also writes its own.
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

    def fetch(self, output_dir: str) -> str | None:
        """The newest checkpoint as a folder `checkpoint-<step>` of Trainer's format below `output_dir`; None if there is none.

        Rank 0 writes it; all ranks must see that folder. Raises `CheckpointCorrupt`, `LocationError`.
        """
        step = self.checkpointer.latest_step()
        if step is None:
            return None
        folder = Path(output_dir) / f"checkpoint-{step}"
        if self.checkpointer.group.rank == 0:
            saved = api.load(self.checkpointer.location, step=step, group=SingleProcess(), options=LoadOptions(arrays="torch"))
            _write_folder(folder, saved)
        self.checkpointer.group.broadcast(b"written" if self.checkpointer.group.rank == 0 else None, 1800.0)
        return str(folder)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Watch for signals."""
        self.checkpointer.__enter__()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save if it is time."""
        logged = state.log_history[-1] if state.log_history else {}
        metrics = {name: value for name, value in logged.items() if isinstance(value, int | float)}
        self.checkpointer.maybe_save(state.global_step, metrics=metrics, make_state=lambda: _state(state, kwargs))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Wait, and raise what went wrong."""
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.close()


def _state(state: TrainerState, parts: dict[str, Any]) -> dict[str, Any]:
    model = getattr(parts["model"], "module", parts["model"])
    return {
        "model": model.state_dict(), "optimizer": parts["optimizer"].state_dict(), "scheduler": parts["lr_scheduler"].state_dict(),
        "trainer": json.dumps(dataclasses.asdict(state), sort_keys=True), "random": _gathered(_random_state()),
    }  # fmt: skip


def _gathered(mine: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's, on every rank: a checkpoint holds one tree that all agree on."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return [mine]
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine)
    return gathered


def _random_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    name, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
        "numpy": {"name": name, "keys": keys, "place": int(place), "has_gauss": int(has_gauss), "cached": float(cached)},
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _write_folder(folder: Path, saved: dict[str, Any]) -> None:
    """Trainer's own files, as its `_save_checkpoint` and `_save_rng_state` name them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous().clone() for name, tensor in saved["model"].items()}  # safetensors refuses shared memory
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    torch.save(saved["optimizer"], folder / "optimizer.pt")
    torch.save(saved["scheduler"], folder / "scheduler.pt")
    (folder / "trainer_state.json").write_text(saved["trainer"] + "\n")
    alone = len(saved["random"]) == 1
    for rank, state in enumerate(saved["random"]):
        torch.save(_as_trainer_has_it(state, alone), folder / ("rng_state.pth" if alone else f"rng_state_{rank}.pth"))


def _as_trainer_has_it(state: dict[str, Any], alone: bool) -> dict[str, Any]:
    python, numpy_state = state["python"], state["numpy"]
    keys = np.asarray(numpy_state["keys"])
    states = {
        "python": (python["version"], tuple(int(word) for word in python["words"]), python["gauss"]),
        "numpy": (numpy_state["name"], keys, numpy_state["place"], numpy_state["has_gauss"], numpy_state["cached"]),
        "cpu": state["cpu"],
    }
    return {**states, "cuda": state["cuda"][0] if alone else state["cuda"]} if state["cuda"] else states
