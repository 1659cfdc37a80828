"""CPU seconds and memory of processes that are not ours, from /proc (Linux; proc(5))."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on; None if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def tree_of(roots: set[int]) -> set[int]:
    """`roots` that live and all their descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    alive: set[int] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            alive.add(int(entry.name))
            children[int(stat[1])].append(int(entry.name))
    found: set[int] = set()
    open_ends = list(roots & alive)
    while open_ends:
        pid = open_ends.pop()
        if pid not in found:
            found.add(pid)
            open_ends += children[pid]
    return found


def cpu_seconds_of(roots: set[int]) -> float | None:
    """User and system time of the trees below `roots`, those of children already waited for included; None if all are
    gone.

    Good to about 10 ms a process (the kernel's tick).
    """
    stats = [stat for pid in tree_of(roots) if (stat := _stat(pid)) is not None]
    if not stats:
        return None
    return sum(sum(map(int, stat[11:15])) for stat in stats) / _TICKS_PER_S


def peak_resident_bytes_of(roots: set[int]) -> int:
    """The sum of the peak resident memory of each process below `roots`.

    Pages that they share are counted once for each.
    """
    total = 0
    for pid in tree_of(roots):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    return total


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if Path(table).exists():
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _holds(pid: int, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") in inodes for fd in os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH115, PTH208
    except OSError:  # gone, or another user's: then it cannot be counted
        return False


def listeners(port: int) -> set[int]:
    """Processes of this host (and user) that listen on TCP `port`."""
    inodes = _listening_inodes(port)
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {pid for pid in pids if _holds(pid, inodes)} if inodes else set()


def server_roots(host: str, port: int) -> set[int]:
    """The processes that serve `host`:`port`, with a supervisor above several of them.

    Empty if they are not on this host.
    """
    if not is_local(host):
        return set()
    pids = listeners(port)
    parents = [int(stat[1]) for pid in pids if (stat := _stat(pid)) is not None]
    shared = {parent for parent in parents if parents.count(parent) > 1 and parent > 1}
    return pids | shared


def is_local(host: str) -> bool:
    """Whether `host` resolves to an address of this machine (one that a socket can be bound to)."""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False
