"""Groups over the real frameworks: agreement, and how soon a death is known."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time

import pytest
from ranks import Ranks

from forebay.checkpoint.group import SingleProcess
from forebay.checkpoint.groups import current_group, form_group
from forebay.checkpoint.star import Hub, Spoke, frame, frames
from forebay.errors import SaveFailed


@pytest.mark.parametrize(("framework", "size"), [("torch", 2), ("jax", 2)])
def test_ranks_agree(framework: str, size: int) -> None:
    results = Ranks("group_work", "talk", size, framework).wait()
    assert [r["size"] for r in results] == [size] * size
    assert all(r["heard"] for r in results)
    assert results[0]["posted"] == [f"from {rank}" for rank in range(size)]
    assert all(r["posted"] == [] for r in results[1:])


@pytest.mark.parametrize(("framework", "victim", "with_child"), [("torch", 2, True), ("jax", 1, False)])
def test_a_death_is_known_by_name_within_seconds(framework: str, victim: int, with_child: bool) -> None:
    results = Ranks("group_work", "lose", 3 if framework == "torch" else 2, framework, victim, with_child).wait()
    survivors = [r for rank, r in enumerate(results) if rank != victim]
    assert results[victim] is None
    for result in survivors:
        assert result["rank"] == victim
        assert "ended or was killed" in result["message"]
        assert result["seconds"] < 4, "before the orphaned child ends: the kernel says it at once"


def test_jax_ends_the_others_when_its_coordinator_dies() -> None:
    """JAX aborts every process that loses rank 0, often before Python runs again: they stop at once, but not always with our error."""
    ranks = Ranks("group_work", "lose", 2, "jax", 0, False)
    try:
        ranks.processes[0].wait(60)
        death_s = time.monotonic()
        out, err = ranks.processes[1].communicate(timeout=10)
        assert time.monotonic() - death_s < 10, "the limit that docs/checkpointer.md gives"
    finally:
        ranks.end()
    if ranks.processes[1].returncode == -signal.SIGABRT and "RESULT" not in out:
        assert "JAX distributed service detected fatal errors" in err
        return
    result = json.loads(next(line for line in out.splitlines() if line.startswith("RESULT "))[7:])
    assert result["rank"] == 0 and "ended or was killed" in result["message"]


def test_a_silent_rank_0_is_not_waited_for_beyond_the_limit() -> None:
    hub = Hub(2, "127.0.0.1")
    spoke = connect(hub, 1)
    with pytest.raises(SaveFailed, match=r"rank 0: rank 1 waited 0 s for its decision"):
        spoke.broadcast(None, 0.3)
    spoke.close()
    hub.close()


def test_without_frameworks_the_group_is_this_process() -> None:
    group = current_group()
    assert isinstance(group, SingleProcess)
    assert group.broadcast(b"x", 1.0) == b"x"
    group.post(b"a")
    assert (group.take_posted(), group.take_posted()) == ([b"a"], [])


def connect(hub: Hub, rank: int) -> Spoke:
    return Spoke(rank, hub.size, ["127.0.0.1"], hub.port, hub.token, 5.0)


def test_strangers_are_turned_away_and_harm_nobody() -> None:
    hub = Hub(2, "127.0.0.1")
    with pytest.raises(SaveFailed, match="something else answers there"):
        Spoke(1, 2, ["127.0.0.1"], hub.port, b"\0" * 16, 0.5)
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", frame(b"H", hub.token + (7).to_bytes(4, "big")), b"H\xff\xff\xff\xff"):
        with socket.create_connection(("127.0.0.1", hub.port)) as sock:
            sock.sendall(nonsense)
            sock.settimeout(5)
            assert sock.recv(100) == b""
    spoke = connect(hub, 1)
    hub.wait_for_all(5.0)
    hub.broadcast(b"still here", 1.0)
    assert spoke.broadcast(None, 5.0) == b"still here"
    spoke.close()
    hub.close()


def test_an_orderly_end_is_told_from_a_death() -> None:
    hub = Hub(3, "127.0.0.1")
    one, two = connect(hub, 1), connect(hub, 2)
    hub.wait_for_all(5.0)
    two.close()
    for group in (hub, one):
        with pytest.raises(SaveFailed, match="rank 2: it ended"):
            wait_for_news(group)
    hub.close()
    deadline_s = time.monotonic() + 5
    while 0 not in one._gone and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert one._gone[0] == "it ended"
    one.close()


def wait_for_news(group: Hub | Spoke) -> None:
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        group.check_peers()
        time.sleep(0.01)


def test_who_never_connects_is_named() -> None:
    hub = Hub(3, "127.0.0.1")
    one = connect(hub, 1)
    with pytest.raises(SaveFailed, match="rank 2: it did not connect"):
        hub.wait_for_all(0.2)
    one.close()
    hub.close()


def test_an_unreachable_rank_0_says_which_port_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blocked:
        rank, size, host, identity = 1, 2, "127.0.0.1", object()

        def publish(self, value: bytes) -> None:
            raise AssertionError

        def look_up(self, timeout_s: float) -> bytes:
            with socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))
                port = unused.getsockname()[1]
            return b'{"hosts":["127.0.0.1"],"port":%d,"token":"AAAAAAAAAAAAAAAAAAAAAA=="}' % port

    with pytest.raises(SaveFailed, match="FOREBAY_GROUP_PORT"):
        form_group(Blocked(), 0.5)


def test_a_fork_does_not_keep_the_connection_open() -> None:
    hub = Hub(2, "127.0.0.1")
    spoke = connect(hub, 1)
    hub.wait_for_all(5.0)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"closed" if spoke._sock.fileno() == -1 else b"open")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"closed"
    os.close(reader)
    os.close(writer)
    hub.broadcast(b"x", 1.0)
    assert spoke.broadcast(None, 5.0) == b"x", "the parent's connection lives on"
    spoke.close()
    hub.close()


def test_frames_come_out_however_the_bytes_were_cut() -> None:
    wire = frame(b"B", b"abc") + frame(b"Q") + frame(b"P", b"x" * 1000)
    whole = list(frames(bytearray(wire)))
    received, cut = bytearray(), []
    for byte in wire:
        received.append(byte)
        cut += frames(received)
    assert cut == whole == [(b"B", b"abc"), (b"Q", b""), (b"P", b"x" * 1000)]
    assert threading.active_count() < 50
