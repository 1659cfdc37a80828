"""What the two examples share: start the training, kill it with -9 at random moments, resume it on other numbers of
processes, and compare every loss with that of a run that nobody disturbed.

    python examples/exact_resume.py --plot curves.svg

runs both.

A worker appends one line a step to its log: the step and the loss as hexadecimal text, so that nothing is rounded.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics


def text() -> bytes:
    """The reference manual's topics that come with Python: about 700 KB of English."""
    return "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")


@dataclass(frozen=True)
class Job:
    """One training program: its script, and how a number of workers is started."""

    name: str
    script: str
    workers: Sequence[int]
    """How many processes or devices each start has, in turn."""
    processes: bool
    """Whether these are processes; else they are devices of one."""

    def start(self, location: str, log: Path, steps: int, count: int) -> list[subprocess.Popen[bytes]]:
        """Start the workers of one run."""
        ranks = count if self.processes else 1
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
        command = [sys.executable, self.script, "--worker", location, str(log), str(steps), str(count)]
        return [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(ranks)]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def read_log(log: Path) -> list[tuple[int, float]]:
    """Every loss that was logged, in order. A line that the kill cut short is left out."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [(int(line.split()[0]), float.fromhex(line.split()[1])) for line in lines if line.endswith("\n") and len(line.split()) == 2]


def finish(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for an undisturbed end."""
    for process in processes:
        if process.wait(600) != 0:
            raise SystemExit(f"a worker ended with status {process.returncode}")


def kill_at_random(processes: list[subprocess.Popen[bytes]], log: Path, steps: int, chance: random.Random) -> bool:
    """Kill -9 all workers at a random step and moment; False if they finished before."""
    done = len({step for step, _ in read_log(log)})
    target = chance.randint(done + 1, max(done + 2, done + (steps - done) * 3 // 4))
    while len({step for step, _ in read_log(log)}) < target:
        if any(process.poll() is not None for process in processes):
            finish(processes)
            return False
        time.sleep(0.002)
    time.sleep(chance.random() * 0.05)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.wait()
    return True


def run(job: Job, location: str, folder: Path, steps: int, kills: int, seed: int) -> bool:
    """Both runs and the verdict. `location` is where the disturbed run keeps its checkpoints."""
    chance = random.Random(seed)
    calm_log, log = folder / "calm.log", folder / "disturbed.log"
    print(f"{job.name}: {steps} steps without disturbance, on {job.workers[0]}")
    finish(job.start(str(folder / "calm"), calm_log, steps, job.workers[0]))
    starts = []
    for number in range(kills + 1):
        count = job.workers[(number + 1) % len(job.workers)]
        starts.append((len(read_log(log)), count))
        processes = job.start(location, log, steps, count)
        if number < kills and kill_at_random(processes, log, steps, chance):
            print(f"{job.name}: killed with -9 on {count} after step {read_log(log)[-1][0]}")
            continue
        finish(processes)
        break
    return verdict(job, calm_log, log, steps, starts)


def verdict(job: Job, calm_log: Path, log: Path, steps: int, starts: list[tuple[int, int]]) -> bool:
    """Whether every loss of the disturbed run, also of steps that were done twice, is that of the calm one to the last bit."""
    calm, disturbed = dict(read_log(calm_log)), read_log(log)
    different = [step for step, loss in disturbed if loss.hex() != calm[step].hex()]
    complete = {step for step, _ in disturbed} == set(calm) == set(range(1, steps + 1))
    first = [disturbed[place][0] for place, _ in starts[1:] if place < len(disturbed)]
    print(f"{job.name}: resumed at steps {first}; loss {calm[1]:.4f} → {calm[steps]:.4f}")
    if different or not complete:
        print(f"{job.name}: NOT the same: {len(different)} of {len(disturbed)} losses differ, first at step {min(different, default=0)}")
        return False
    print(f"{job.name}: the same to the last bit: {len(disturbed)} losses of {steps} steps, {len(disturbed) - steps} done twice")
    return True


def plot(jobs: Sequence[tuple[Job, Path]], target: Path) -> None:
    """Both curves, the disturbed one over the calm one, with a mark where it was resumed."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "forebay"
    figure, axes = plt.subplots(1, len(jobs), figsize=(5.2 * len(jobs), 3.2), squeeze=False, sharey=True)
    for axis, (job, folder) in zip(axes[0], jobs, strict=True):
        calm, disturbed = read_log(folder / "calm.log"), read_log(folder / "disturbed.log")
        axis.plot(*zip(*calm, strict=True), color="#b0b0b0", linewidth=5, label="never disturbed")
        axis.plot(*zip(*sorted(dict(disturbed).items()), strict=True), color="#0b5cad", linewidth=1.2, label="killed with -9 and resumed")
        resumed = [(b, loss) for (a, _), (b, loss) in itertools.pairwise(disturbed) if b <= a]
        if resumed:
            axis.plot(*zip(*resumed, strict=True), "o", color="#c0392b", markersize=5, label="resumed here")
        axis.set(title=job.name, xlabel="step", ylabel="loss (nats per character)")
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
    print(f"plotted in {target}")


def main(*jobs: Job) -> int:
    """The command line of an example, or of both."""
    parser = argparse.ArgumentParser(description=f"Exact resume: {' and '.join(job.name for job in jobs)}.")
    parser.add_argument("--location", help="where the disturbed run saves: a folder or an s3://, gs:// or az:// URL")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="of the random moments (default: another one each time)")
    parser.add_argument("--folder", type=Path, help="where logs go, and stay (default: a temporary folder)")
    parser.add_argument("--plot", type=Path, help="an .svg or .png to write")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="exact-resume-"))
    folder.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}, logs in {folder}")
    folders = [(job, folder / job.name.partition(",")[0].lower()) for job in jobs]
    try:
        same = True
        for job, below in folders:
            below.mkdir(exist_ok=True)
            location = f"{given.location.rstrip('/')}/{below.name}" if given.location else str(below / "disturbed")
            same = run(job, location, below, given.steps, given.kills, seed) and same
        if given.plot:
            plot(folders, given.plot)
    finally:
        if given.folder is None:
            shutil.rmtree(folder)
    return 0 if same else 1


if __name__ == "__main__":
    import exact_resume_jax
    import exact_resume_torch

    sys.exit(main(exact_resume_jax.JOB, exact_resume_torch.JOB))
