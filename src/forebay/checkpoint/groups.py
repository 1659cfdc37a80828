"""The group that the program has already: `jax.distributed`, `torch.distributed`, or this process alone.

Each is used only to find rank 0 (their key-value stores carry its port); the talking is `star`'s.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from forebay.checkpoint.group import Group, SingleProcess
from forebay.checkpoint.star import Hub, Spoke
from forebay.errors import ConfigError, SaveFailed

CONNECT_LIMIT_S = 120.0
_KEY = "forebay/group/1"
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "ip6-localhost")


class Rendezvous(Protocol):
    """What a framework tells: who this is, and a place for one small value of rank 0's."""

    rank: int
    size: int
    host: str
    """Where rank 0 runs, as the framework's own processes reach it; empty if it does not say."""
    identity: object
    """The same as long as the framework's group is."""

    def publish(self, value: bytes) -> None:
        """Rank 0: make the value known."""

    def look_up(self, timeout_s: float) -> bytes:
        """The others: wait for it."""


class _Address(msgspec.Struct):
    hosts: list[str]
    port: int
    token: bytes


_lock = threading.Lock()
_formed: tuple[object, Group] | None = None


def current_group() -> Group:
    """Collective at its first call. The group of `jax.distributed` or `torch.distributed`, whichever is initialized with
    more than one process; else a group of one.

    Raises `ConfigError` if both are and disagree, `SaveFailed` if the ranks cannot reach each other.
    """
    global _formed  # noqa: PLW0603 - one group a process, as the frameworks have it
    found = [r for r in (_jax_rendezvous(), _torch_rendezvous()) if r is not None and r.size > 1]
    if not found:
        return SingleProcess()
    if len({(r.rank, r.size) for r in found}) > 1:
        raise ConfigError("jax.distributed and torch.distributed are both initialized and number the processes differently; pass group=")
    with _lock:
        if _formed is None or _formed[0] is not found[0].identity:
            _formed = (found[0].identity, form_group(found[0]))
        return _formed[1]


def form_group(rendezvous: Rendezvous, timeout_s: float = CONNECT_LIMIT_S) -> Group:
    """Collective: connect the ranks. `FOREBAY_GROUP_HOST` and `FOREBAY_GROUP_PORT`, on rank 0, replace its address."""
    if rendezvous.rank > 0:
        address = msgspec.json.decode(_look_up(rendezvous, timeout_s), type=_Address)
        return Spoke(rendezvous.rank, rendezvous.size, address.hosts, address.port, address.token, timeout_s)
    host = os.environ.get("FOREBAY_GROUP_HOST") or rendezvous.host
    local = host in _LOOPBACK
    hub = Hub(rendezvous.size, "127.0.0.1" if local else "", int(os.environ.get("FOREBAY_GROUP_PORT") or 0))
    hosts = ["127.0.0.1"] if local else [host] if host else [socket.getfqdn(), socket.gethostname(), "127.0.0.1"]
    rendezvous.publish(msgspec.json.encode(_Address(hosts, hub.port, hub.token)))
    hub.wait_for_all(timeout_s)
    return hub


def _look_up(rendezvous: Rendezvous, timeout_s: float) -> bytes:
    try:
        return rendezvous.look_up(timeout_s)
    except RuntimeError as error:  # the frameworks' store errors are kinds of it
        raise SaveFailed(0, f"rank {rendezvous.rank} waited {timeout_s:.0f} s for it to begin saving or restoring: {error}") from error


class _JaxRendezvous:
    """`jax.distributed`'s coordination service. Its client has no public name yet; Orbax takes it from here too."""

    def __init__(self, state: Any) -> None:
        self.rank, self.size = int(state.process_id), int(state.num_processes)
        self.identity = self._client = state.client
        self.host = str(state.coordinator_address or "").rpartition(":")[0].strip("[]")

    def publish(self, value: bytes) -> None:
        """See `Rendezvous`."""
        self._client.key_value_set(_KEY, value.decode())

    def look_up(self, timeout_s: float) -> bytes:
        """See `Rendezvous`."""
        return str(self._client.blocking_key_value_get(_KEY, int(timeout_s * 1000))).encode()


def _jax_rendezvous() -> Rendezvous | None:
    module = sys.modules.get("jax._src.distributed")
    state = getattr(module, "global_state", None)
    return _JaxRendezvous(state) if getattr(state, "client", None) is not None else None


class _TorchRendezvous:
    """`torch.distributed`'s default store."""

    def __init__(self, distributed: Any) -> None:
        self.rank, self.size = int(distributed.get_rank()), int(distributed.get_world_size())
        self._store = distributed.distributed_c10d._get_default_store()
        self.identity = distributed.group.WORLD
        store = self._store
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        self.host = str(getattr(store, "host", "") or os.environ.get("MASTER_ADDR", ""))

    def publish(self, value: bytes) -> None:
        """See `Rendezvous`."""
        self._store.set(_KEY, value)

    def look_up(self, timeout_s: float) -> bytes:
        """See `Rendezvous`."""
        self._store.wait([_KEY], timedelta(seconds=timeout_s))
        return bytes(self._store.get(_KEY))


def _torch_rendezvous() -> Rendezvous | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _TorchRendezvous(distributed)
