"""From a URL to a location."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from forebay.errors import ConfigError
from forebay.locations import cloud
from forebay.locations.folder import Folder
from forebay.locations.interface import Location
from forebay.locations.s3 import S3


def open_location(url: str | os.PathLike[str], **options: Any) -> Location:
    """The location of `/path`, `file:///path`, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://name`.

    `options` are those of `locations.s3_bucket.S3Options` or of obstore's stores. Raises `ConfigError` for a URL that is none of these;
    opens no connection yet.
    """
    text = os.fspath(url)
    parts = urlsplit(text)
    if "://" not in text:
        return Folder(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"{text}: a file URL has three slashes before its path, as in file:///data/run-7")
        return Folder(unquote(parts.path))
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{parts.scheme}://…: a URL is {parts.scheme}://bucket/prefix, without credentials, query or fragment")
    return _remote(parts.scheme, parts.netloc, parts.path, options)


def _remote(scheme: str, name: str, path: str, options: dict[str, Any]) -> Location:
    if scheme in ("s3", "s3a"):
        return S3(name, path, **options)
    if scheme in ("gs", "gcs", "az", "abfs", "memory"):
        if scheme == "memory":
            return cloud.memory(name).child(path)
        return (cloud.google if scheme in ("gs", "gcs") else cloud.azure)(name, path, **options)
    raise ConfigError(f"{scheme}://{name}: not a path, file://, s3://, gs://, az:// or memory:// URL")
