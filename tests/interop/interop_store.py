"""What the interoperability tests share: client programs, trees of files."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
# Names that clients and servers must not bend: spaces, signs, another script, a folder of the same name as an object.
ODD_KEYS = ["plain.bin", "dir/with space+plus.bin", "dir", "ünï/日本 (1).bin", "a~b=c&d;e@f$g,h!.bin"]


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
