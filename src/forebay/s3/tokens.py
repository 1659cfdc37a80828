"""Continuation tokens of listings: opaque to clients, checked on return."""

from __future__ import annotations


def encode_token(position: str) -> str:
    """A token that says where a listing goes on (a key, or a common prefix, to start after)."""
    raise NotImplementedError


def decode_token(token: str) -> str:
    """The position. Raises StoreError InvalidArgument if the token is not one of ours or was damaged."""
    raise NotImplementedError
