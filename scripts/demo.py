"""The main job, watched: checkpoints survive a killed server and a lost drive. `make demo` runs it; exit code 0 means they did.

First as any S3 client sees it: a store over four drive folders; a .safetensors file goes in with `aws s3 cp`; every process of the
server is killed with -9; one drive is emptied; the server starts again; the file comes back and is compared byte for byte; the drive is
healed. Then another drive is emptied, because only that shows that the first one really was healed.

Then as a training run sees it: a small transformer is trained with JAX and saves its checkpoints to the store; trainer and server are
killed with -9 at a random moment and a drive is lost; training resumes on another number of devices. Every loss must be that of a run
that nobody disturbed, to the last bit.
"""

from __future__ import annotations

import filecmp
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text
from safetensors import safe_open
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import exact_resume
import exact_resume_jax

FOLDER = Path("demo-data")
DRIVES = [FOLDER / f"drive{number}" for number in range(1, 5)]
CHECKPOINT = FOLDER / "checkpoint.safetensors"
BUCKET, KEY = "training", "run-7/checkpoint.safetensors"
BIN = Path(sys.executable).parent
LAYERS, WIDTH = 8, 1024
TRAINING_STEPS = 60
READY_TIMEOUT_S, HEAL_TIMEOUT_S, END_TIMEOUT_S = 60.0, 180.0, 20.0

out = Console(highlight=False)


class DemoFailed(Exception):  # noqa: N818 - it is an outcome
    """The store did not keep its promise, or a step could not be made."""


def say(step: str) -> None:
    """Announce a step."""
    out.print(Text(f"\n▸ {step}", style="bold cyan"))


def note(text: str) -> None:
    """One line under a step."""
    out.print(f"  {text}")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Demo:
    """The server under test, and the environment of those who talk to it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        user, password = "demo", secrets.token_urlsafe(24)
        nothing = str(FOLDER / "no-configuration")  # the user's own AWS profile must not interfere
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FOREBAY_"))},
            "FOREBAY_ROOT_USER": user,
            "FOREBAY_ROOT_PASSWORD": password,
            "FOREBAY_ENDPOINT": self.endpoint,
            "AWS_ACCESS_KEY_ID": user,
            "AWS_SECRET_ACCESS_KEY": password,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": nothing,
            "AWS_SHARED_CREDENTIALS_FILE": nothing,
        }

    def run(self, *arguments: object, allowed: tuple[int, ...] = (0,)) -> str:
        """Run a program of the virtual environment, showing it; its standard output. Raises DemoFailed."""
        command = [str(each) for each in arguments]
        out.print(Text(f"  $ {' '.join(command)}", style="dim"))
        done = subprocess.run([BIN / command[0], *command[1:]], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode not in allowed:
            raise DemoFailed(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self) -> None:
        """Start the server and wait until a write would succeed."""
        command = ["forebay", "server", *map(str, DRIVES), "--address", f"127.0.0.1:{self.port}"]
        out.print(Text(f"  $ {' '.join(command)}", style="dim"))
        before_s = time.monotonic()
        with (FOLDER / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / command[0], *command[1:]], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() - before_s > READY_TIMEOUT_S:
                raise DemoFailed("the server did not become ready")
            time.sleep(0.02)
        note(f"ready at {self.endpoint} after {time.monotonic() - before_s:.1f} s")

    def is_ready(self) -> bool:
        """Whether a write would succeed now, by the server's own word."""
        try:
            with urllib.request.urlopen(f"{self.endpoint}/forebay/health/ready", timeout=5) as answer:  # noqa: S310 - our own
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def kill(self) -> None:
        """kill -9 to the supervisor and to every worker; returns when all are gone."""
        if self.process is None or self.process.poll() is not None:
            return
        pids = [self.process.pid, *children_of(self.process.pid)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the kernel ends workers with their supervisor
        self.process.wait()
        give_up_s = time.monotonic() + END_TIMEOUT_S
        while any(is_running(pid) for pid in pids):
            if time.monotonic() > give_up_s:
                raise DemoFailed("a killed process is still there")
            time.sleep(0.01)
        note(f"processes {', '.join(map(str, pids))} are gone")

    def stop(self) -> None:
        """End it gracefully."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def drives(self) -> list[dict[str, object]]:
        """What the server says of its drives."""
        listed = self.run_quietly("drive", "list", "--json")
        return list(json.loads(listed)["drives"])

    def run_quietly(self, *arguments: str) -> str:
        """A `forebay` command whose exit code 1 is an answer too."""
        done = subprocess.run([BIN / "forebay", *arguments], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise DemoFailed(f"forebay {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def heal(self) -> None:
        """Watch until every drive is current and complete."""
        columns = (TextColumn("  healing"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
        before_s = time.monotonic()
        with Progress(*columns, console=out) as progress:
            task = progress.add_task("", total=None, state="")
            while True:
                status = json.loads(self.run_quietly("heal", "status", "--json"))
                away = [drive for drive in self.drives() if drive["state"] != "current"]
                state = f"{status['blobs_done']} of {status['blobs_total']} blobs, {status['missing_shards']} shards missing"
                progress.update(task, completed=status["bytes_done"], total=status["bytes_total"] or None, state=state)
                busy = away or any(status[name] for name in ("running", "missing_shards", "drives_filling", "drives_waiting"))
                if status["failed"]:
                    raise DemoFailed(f"healing failed for {status['failed']} blobs")
                if not busy:
                    progress.update(task, completed=1, total=1, state="complete")
                    return
                if time.monotonic() - before_s > HEAL_TIMEOUT_S:
                    raise DemoFailed(f"not healed after {HEAL_TIMEOUT_S:.0f} s: {state}")
                time.sleep(0.2)


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def is_running(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def used_bytes(folder: Path) -> int:
    """Bytes of the files below a folder, as allocated."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def make_checkpoint() -> None:
    """Write a file shaped like a small transformer's state, with random weights."""
    random = np.random.default_rng()
    state = {"embedding.weight": random.standard_normal((16_384, WIDTH), dtype=np.float32)}
    for layer in range(LAYERS):
        state[f"layers.{layer}.attention.weight"] = random.standard_normal((WIDTH, WIDTH), dtype=np.float32)
        state[f"layers.{layer}.mlp.weight"] = random.standard_normal((2 * WIDTH, WIDTH), dtype=np.float32).astype(np.float16)
        state[f"layers.{layer}.norm.bias"] = np.zeros(WIDTH, np.float32)
    save_file(state, CHECKPOINT, metadata={"step": "1000"})
    note(f"{CHECKPOINT}: {len(state)} tensors, {CHECKPOINT.stat().st_size / 2**20:.1f} MiB")


def empty(drive: Path) -> None:
    """Remove all that a drive folder holds; the folder stays, as with a new disk mounted in its place."""
    out.print(Text(f"  $ rm -rf {drive}/*", style="dim"))
    size_bytes = used_bytes(drive)
    for entry in drive.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    note(f"{size_bytes / 2**20:.1f} MiB of the store are gone")


def download_and_compare(demo: Demo, name: str) -> None:
    """Get the checkpoint back and compare every byte; then open it as a user would."""
    back = FOLDER / name
    demo.run("aws", "s3", "cp", "--no-progress", f"s3://{BUCKET}/{KEY}", back)
    if not filecmp.cmp(CHECKPOINT, back, shallow=False):
        raise DemoFailed(f"{back} differs from {CHECKPOINT}")
    with safe_open(back, "np") as file:
        tensors = len(file.keys())
    note(f"identical, all {back.stat().st_size:,} bytes; safetensors opens it: {tensors} tensors")


def play(demo: Demo) -> None:
    """All steps. Raises DemoFailed."""
    say("Start a store over four drives: any one of them may be lost")
    demo.start()
    say("Make a checkpoint and upload it with aws-cli")
    make_checkpoint()
    demo.run("aws", "s3", "mb", f"s3://{BUCKET}")
    demo.run("aws", "s3", "cp", "--no-progress", CHECKPOINT, f"s3://{BUCKET}/{KEY}")
    say("Kill every process of the server with -9")
    demo.kill()
    say(f"Lose a drive: {DRIVES[2]}")
    empty(DRIVES[2])
    say("Start again")
    demo.start()
    print(demo.run("forebay", "cluster", "status", allowed=(0, 1)).rstrip())
    say("Download, compare byte for byte")
    download_and_compare(demo, "back-1.safetensors")
    say("Watch the drive being healed")
    demo.heal()
    print(demo.run("forebay", "cluster", "status").rstrip())
    note(f"{DRIVES[2]} holds {used_bytes(DRIVES[2]) / 2**20:.1f} MiB again")
    say(f"The proof that it was: lose another drive, {DRIVES[0]}, and download again")
    demo.kill()
    empty(DRIVES[0])
    demo.start()
    download_and_compare(demo, "back-2.safetensors")


def play_training(demo: Demo) -> None:
    """Train, kill, lose a drive, resume, compare. Raises DemoFailed."""
    say("Heal again, then train: a small transformer, by JAX, first without disturbance")
    demo.heal()
    os.environ.update(demo.environment)  # the trainers are started from here
    job = exact_resume_jax.JOB
    calm_log, log = FOLDER / "calm.log", FOLDER / "disturbed.log"
    exact_resume.finish(job.start(str(FOLDER / "calm"), calm_log, TRAINING_STEPS, 8))
    note(f"{TRAINING_STEPS} steps on 8 devices, loss {exact_resume.read_log(calm_log)[-1][1]:.4f}")
    location = f"s3://{BUCKET}/exact-resume"
    say(f"Train again, with checkpoints to {location}; kill -9 the trainer and the server at a random moment")
    trainer = job.start(location, log, TRAINING_STEPS, 8)
    if not exact_resume.kill_at_random(trainer, log, TRAINING_STEPS, random.SystemRandom()):
        raise DemoFailed("the training was over before it was killed")
    demo.kill()
    note(f"the trainer was killed after step {exact_resume.read_log(log)[-1][0]}")
    say(f"Lose a drive: {DRIVES[3]}; start the server again, and resume on 4 devices instead of 8")
    empty(DRIVES[3])
    demo.start()
    resumed_at = len(exact_resume.read_log(log))
    exact_resume.finish(job.start(location, log, TRAINING_STEPS, 4))
    if not exact_resume.verdict(job, calm_log, log, TRAINING_STEPS, [(0, 8), (resumed_at, 4)]):
        raise DemoFailed("the resumed run is another one than the undisturbed run")
    print(demo.run("forebay", "ckpt", "ls", location).rstrip())


def main() -> int:
    """Play, clean up, and give the verdict."""
    before_s = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    demo = Demo()
    try:
        play(demo)
        play_training(demo)
    except DemoFailed as error:
        demo.stop()
        out.print(Panel(Text(f"FAILED: {error}\n\nThe server's log and the drives are in {FOLDER}/", style="bold red")))
        return 1
    except KeyboardInterrupt:
        demo.stop()
        shutil.rmtree(FOLDER)
        return 130
    demo.stop()
    shutil.rmtree(FOLDER)
    sentence = (
        "PASSED: the checkpoint survived kill -9 and the loss of a drive, twice: every byte came back. "
        "The training survived them too: every loss is the same to the last bit."
    )
    out.print()
    out.print(Panel(Text(f"{sentence}  ({time.monotonic() - before_s:.0f} s)", style="bold green"), expand=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
