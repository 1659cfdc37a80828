"""From a URL to a location."""

from __future__ import annotations

from typing import Any

from forebay.locations.interface import Location


def open_location(url: str, **options: Any) -> Location:
    """The location of `/path`, `file://…`, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://name`. `options` are
    the implementation's keywords."""
    raise NotImplementedError
