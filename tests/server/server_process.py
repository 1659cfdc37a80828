"""A real server in its own processes, over folders in a temporary directory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "root-user", "root-secret"
OTHER_KEY, OTHER_SECRET = "other-user", "other-secret"
START_TIMEOUT_S = 30.0


class ServerProcess:
    """Starts at once; `stop` or `kill` ends it. `folder` holds the drives d1 … dn and the configuration."""

    def __init__(self, folder: Path, *, drives: int = 4, workers: int = 2, extra: str = "", port: int = 0) -> None:
        self.folder = folder
        self.drives = [folder / f"d{number}" for number in range(1, drives + 1)]
        config = folder / "forebay.toml"
        config.write_text(
            f"""
data_dirs = [{", ".join(f'"{path}"' for path in self.drives)}]
s3_addr = "127.0.0.1:{port}"
workers = {workers}
buffer_memory = "128MiB"
run_dir = "{folder}/run"
{extra}
[[credentials]]
access_key = "{ACCESS_KEY}"
secret_key = "{SECRET_KEY}"
[[credentials]]
access_key = "{OTHER_KEY}"
secret_key = "{OTHER_SECRET}"
"""
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay.server", "--config", str(config)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},  # where it puts its UNIX socket
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._ready.wait(START_TIMEOUT_S)
        if not any(line.startswith("forebay: ready") for line in self.lines):
            self.kill()
            raise RuntimeError("the server did not start:\n" + "".join(self.lines))
        self.port = int(re.search(r"listening on \S+:(\d+)", "".join(self.lines))[1])
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.unix_socket = folder / "forebay" / f"{self.port}.sock"

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("forebay: ready"):
                self._ready.set()
        self._ready.set()

    def worker_pids(self) -> list[int]:
        """The processes of the workers."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def stop(self) -> int:
        """End it gracefully; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end(20)

    def kill(self) -> None:
        """Kill the supervisor, and with it the workers."""
        workers = self.worker_pids() if self.process.poll() is None else []
        self.process.kill()
        self._end(10)
        give_up = time.monotonic() + 10
        while any(is_alive(pid) for pid in workers):
            assert time.monotonic() < give_up, "workers outlive their supervisor"
            time.sleep(0.01)

    def _end(self, timeout_s: float) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        self.process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            assert self.stop() == 0, "".join(self.lines)


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def environment() -> dict[str, str]:
    """For clients: no configuration of the machine's user."""
    return {**os.environ, "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true"}
