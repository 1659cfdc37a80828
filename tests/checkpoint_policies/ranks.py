"""Run one function of a module as several processes, joined by `torch.distributed` (gloo), `jax.distributed`, or not at all.

    results = Ranks("worker_module", "function", 3, "torch", arg).wait()

Each process prints one JSON line as its result. A process that is killed has the result None.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Ranks:
    """The processes; `kill(rank)` ends one with SIGKILL, `wait` collects results in order of rank."""

    def __init__(self, module: str, function: str, size: int, framework: str, *args: Any, devices: int = 1) -> None:
        port = free_port()
        self.processes = []
        for rank in range(size):
            env = {
                **os.environ, "FB_RANK": str(rank), "FB_SIZE": str(size), "FB_PORT": str(port), "FB_FRAMEWORK": framework,
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1",
                "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
            }  # fmt: skip
            command = [sys.executable, str(HERE / "ranks.py"), module, function, json.dumps(args)]
            self.processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float = 90) -> list[Any]:
        results = []
        try:
            for process in self.processes:
                out, err = process.communicate(timeout=timeout_s)
                lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
                if not lines and process.returncode != -signal.SIGKILL:
                    raise AssertionError(f"a rank ended with {process.returncode} and no result:\n{out}\n{err}")
                results.append(json.loads(lines[-1][7:]) if lines else None)
        finally:
            self.end()
        return results

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def join(framework: str, rank: int, size: int, port: int) -> None:
    if framework == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    elif framework == "jax":
        import jax

        jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)


def main() -> None:
    module, function, args = sys.argv[1:]
    rank, size = int(os.environ["FB_RANK"]), int(os.environ["FB_SIZE"])
    join(os.environ["FB_FRAMEWORK"], rank, size, int(os.environ["FB_PORT"]))
    try:
        result = getattr(importlib.import_module(module), function)(rank, *json.loads(args))
    except Exception as error:
        traceback.print_exc()
        result = {"error": type(error).__name__, "message": str(error)}
    print("RESULT " + json.dumps(result), flush=True)
    # The frameworks' own farewells wait for ranks that may be dead.
    from forebay.checkpoint import star

    star._close_all()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
