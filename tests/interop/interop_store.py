"""What the interoperability tests share: a running store, client programs, trees of files."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from botocore.config import Config

MIB = 1 << 20
ACCESS_KEY, SECRET_KEY = "interop-root", "interop/Secret+key=1"  # characters that clients have to escape
# Names that clients and servers must not bend: spaces, signs, another script, a folder of the same name as an object.
ODD_KEYS = ["plain.bin", "dir/with space+plus.bin", "dir", "ünï/日本 (1).bin", "a~b=c&d;e@f$g,h!.bin"]
START_TIMEOUT_S = 30.0


@dataclass
class Store:
    """Where the server listens, and its processes."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    host: str = "127.0.0.1"
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = "us-east-1"

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def boto(self, **config: object) -> object:
        options = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}} | config
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(**options),
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def wait_ready(store: Store) -> None:
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up and store.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{store.endpoint}/forebay/health/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server did not become ready:\n{store.log.read_text()}")


@dataclass
class Programs:
    """Runs a client program with nothing of the machine user's configuration. Fails on a non-zero exit code."""

    environment: dict[str, str]
    ended: list[subprocess.CompletedProcess[str]] = field(default_factory=list)

    def run(self, name: str, *arguments: object, cwd: Path | None = None) -> str:
        """Standard output; `warnings` has what it said on standard error."""
        command = [str(Path(sys.executable).parent / name), *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL)
        self.ended.append(done)
        assert done.returncode == 0, f"{' '.join(command)}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def warnings(self) -> str:
        """What the last program said on standard error."""
        return self.ended[-1].stderr


def write_tree(folder: Path, small: bytes, large: bytes) -> dict[str, bytes]:
    """Files as a sync would find them; returns path -> content."""
    tree = {"one.bin": small, "empty.bin": b"", "sub/two.bin": small[::-1], "sub/deep/big one.bin": large}
    for name, content in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tree


def read_tree(folder: Path) -> dict[str, bytes]:
    """path -> content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
