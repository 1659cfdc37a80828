"""From a URL to a location."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from forebay.errors import ConfigError
from forebay.locations.folder import Folder
from forebay.locations.interface import Location


def open_location(url: str | os.PathLike[str], **options: Any) -> Location:
    """The location of `/path`, `file:///path`, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://name`.

    `options` are the keywords of `locations.s3.S3` or `locations.cloud.Cloud`. Raises `ConfigError` for a URL that is
    none of these; opens no connection yet.
    """
    text = os.fspath(url)
    parts = urlsplit(text)
    if "://" not in text:
        return Folder(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{text}: a file URL has three slashes before its path, as in file:///data/run-7")
        return Folder(unquote(parts.path))
    raise ConfigError(f"{text}: not a path, file://, s3://, gs://, az:// or memory:// URL")
