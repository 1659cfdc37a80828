"""Lightning and Hugging Face's Trainer: stopped, resumed, and the same as never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks

import forebay
from forebay.checkpoint import catalog
from forebay.checkpoint.policy import Every, Keep
from forebay.errors import CheckpointMissing
from forebay.locations import open_location

pytestmark = pytest.mark.filterwarnings("ignore")  # of the trainers


def data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def steps_in(path: Path) -> list[int]:
    return [item.step for item in catalog.list_steps(open_location(path))]


# --- Lightning


def lightning_fit(path: Path, steps: int, every: int, resume: str | None) -> tuple[Any, list[float]]:
    """`resume`: from `forebay`, or from `lightning`'s own file of the same step."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from forebay.lightning import ForebayCheckpoint, ForebayIO

    losses: list[float] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            losses.append(float(loss))
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    pl.seed_everything(1, verbose=False)
    ours = ForebayCheckpoint(path / "ours", every=Every(steps=every), keep=Keep(last=2))
    theirs = ModelCheckpoint(path / "theirs", filename="newest", every_n_train_steps=every, enable_version_counter=False)
    own_format = resume == "lightning" or resume is None
    trainer = pl.Trainer(
        max_steps=steps, callbacks=[ours, theirs] if resume is None else [], plugins=[] if own_format else [ForebayIO()],
        accelerator="cpu", logger=False, enable_checkpointing=resume is None, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=path,
    )  # fmt: skip
    module = Module()
    newest = {"forebay": ours.newest(), "lightning": str(path / "theirs" / "newest.ckpt"), None: None}[resume]
    loader = torch.utils.data.DataLoader(data(), batch_size=8)
    trainer.fit(module, loader, ckpt_path=newest, weights_only=False if resume == "lightning" else None)
    return module.state_dict(), losses


@pytest.mark.parametrize("every", [4, 8])
def test_lightning_resumes_from_ours_as_from_its_own(tmp_path: Path, every: int) -> None:
    """In the middle of an epoch (4 of 8 batches), where Lightning begins the data anew, and at the end of one."""
    lightning_fit(tmp_path, 13, every, None)
    assert steps_in(tmp_path / "ours") == ([8, 12] if every == 4 else [8])
    weights, losses = lightning_fit(tmp_path, 20, every, "lightning")
    our_weights, our_losses = lightning_fit(tmp_path, 20, every, "forebay")
    assert losses == our_losses and len(losses) == 20 - steps_in(tmp_path / "ours")[-1], "bit for bit"
    assert all(torch.equal(weights[name], our_weights[name]) for name in weights)
    loaded = forebay.load(tmp_path / "ours")
    assert loaded["global_step"] == steps_in(tmp_path / "ours")[-1] and loaded["lr_schedulers"][0]["step_size"] == 1


def test_lightnings_own_checkpoints_are_forebays(tmp_path: Path) -> None:
    from forebay.lightning import ForebayIO

    io = ForebayIO()
    io.save_checkpoint({"state_dict": {"w": torch.ones(3)}, "epoch": 1}, tmp_path / "last.ckpt")
    io.save_checkpoint({"state_dict": {"w": torch.zeros(3)}, "epoch": 2}, tmp_path / "last.ckpt")
    loaded = io.load_checkpoint(tmp_path / "last.ckpt")
    assert loaded["epoch"] == 2 and torch.equal(loaded["state_dict"]["w"], torch.zeros(3))
    io.remove_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(CheckpointMissing):
        io.load_checkpoint(tmp_path / "last.ckpt")
    io.teardown()


# --- Hugging Face


class Regression(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.net(x), labels)}


def hf_train(path: Path, steps: int, total: int, resume: bool) -> tuple[Any, list[float]]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from forebay.transformers import ForebayCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step >= steps

    torch.manual_seed(3)
    callback = ForebayCallback(path / "run", every=Every(steps=4))
    args = TrainingArguments(
        output_dir=str(path / "out"), max_steps=total, per_device_train_batch_size=8, save_strategy="no", report_to=[], logging_steps=1,
        use_cpu=True, disable_tqdm=True, learning_rate=0.05, seed=3,
    )  # fmt: skip
    rows = [{"x": x, "labels": y} for x, y in data()]
    trainer = Trainer(model=Regression(), args=args, train_dataset=rows, callbacks=[callback, Stop()])
    trainer.train(resume_from_checkpoint=callback.fetch(args.output_dir) if resume else None)
    return trainer.model.state_dict(), [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer_resumes_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole, losses = hf_train(tmp_path / "a", 12, 12, resume=False)
    hf_train(tmp_path / "b", 9, 12, resume=False)
    assert steps_in(tmp_path / "b" / "run") == [4, 8]
    resumed, again = hf_train(tmp_path / "b", 12, 12, resume=True)
    assert again == losses[:7] + losses[8:], "bit for bit; Trainer logs step 8 after its callbacks, so that line is lost"
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_trainers_folder_for_several_ranks(tmp_path: Path) -> None:
    from forebay.checkpoint.adapters.transformers import _random_state

    state = {
        "model": {"w": torch.ones(2, 2)}, "optimizer": {"state": {}, "param_groups": []}, "scheduler": {"last_epoch": 3},
        "trainer": '{"global_step": 3}', "random": [_random_state(), _random_state()],
    }  # fmt: skip
    forebay.save(state, tmp_path / "run", step=3)
    results = Ranks("adapters_work", "fetch_for_trainer", 2, "torch", str(tmp_path / "run"), str(tmp_path / "out")).wait()
    folder = tmp_path / "out" / "checkpoint-3"
    assert results == [{"folder": str(folder), "heard": "in step"}] * 2
    assert sorted(p.name for p in folder.iterdir()) == [
        "model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth", "scheduler.pt", "trainer_state.json",
    ]  # fmt: skip
    assert torch.load(folder / "scheduler.pt", weights_only=True) == {"last_epoch": 3}
