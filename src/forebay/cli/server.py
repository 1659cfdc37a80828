"""`forebay server`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.exits import WrongUsage
from forebay.server import load_config, run


def server(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH...", help="One folder a drive, each best on a filesystem of its own.")
    ] = None,
    parity: Annotated[int | None, typer.Option(help="Drives of a set that may be lost. Default: 1 for 2-7 drives, then 2 to 4.")] = None,
    address: Annotated[str | None, typer.Option(help="HOST:PORT to listen on. Default: 127.0.0.1:9000.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes. Default: one a core.")] = None,
    region: Annotated[str | None, typer.Option(help="The region that requests must be signed for. Default: us-east-1.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; flags override it.")] = None,
    set_drives: Annotated[int | None, typer.Option(help="Drives a set. Default: all of them up to 16.")] = None,
    etag: Annotated[str | None, typer.Option(help="auto: no MD5 of large bodies (fast); md5: always MD5.")] = None,
    domain: Annotated[list[str] | None, typer.Option(help="A host name that buckets are below: BUCKET.DOMAIN. May be repeated.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM. With --tls-key the server speaks HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key, PEM.")] = None,
    buffer_memory: Annotated[str | None, typer.Option(help="Memory for bodies on their way. Default: 512MiB.")] = None,
    unix_socket: Annotated[
        str | None, typer.Option(help="Path of the socket for clients on this host, or off. Default: found from the port.")
    ] = None,
) -> None:
    """Serve S3 from drive folders of this machine.

    Every object is split and erasure-coded over the drives of a set; with parity M, any M of them may be lost. The first start formats
    empty folders; later starts need the same folders, in any order. Stop it with Ctrl-C or SIGTERM; kill -9 is safe too.

    Try it, with the built-in credentials, on this machine only:

        forebay server /mnt/d1 /mnt/d2 /mnt/d3 /mnt/d4

    Serve a network; root's credentials come from the environment:

        FOREBAY_ROOT_USER=... FOREBAY_ROOT_PASSWORD=... forebay server --address 0.0.0.0:9000 /mnt/d*

    Everything in one file (docs/operations.md lists its names):

        forebay server --config forebay.toml
    """
    if not __debug__:
        raise WrongUsage("Python runs with -O, which removes checks that guard stored data; start without -O and PYTHONOPTIMIZE")
    flags = {
        "data_dirs": paths or None,
        "default_parity_count": parity,
        "s3_addr": address,
        "workers": workers,
        "region": region,
        "set_drive_count": set_drives,
        "etag": etag,
        "domains": domain or None,
        "tls_cert": str(tls_cert) if tls_cert else None,
        "tls_key": str(tls_key) if tls_key else None,
        "buffer_memory": buffer_memory,
        "unix_socket": unix_socket,
    }
    raise typer.Exit(run(load_config(str(config) if config else None, flags)))
