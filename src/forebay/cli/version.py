"""`forebay version`."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated

import typer

from forebay._version import __version__
from forebay.cli.show import print_json, print_pairs

PACKAGES = ("awscrt", "lmdb", "uvloop", "msgspec", "pyeclib", "obstore", "numpy")


def version(as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Print the versions of Forebay, of Python, and of the libraries that move its bytes: what a report of a fault needs."""
    found = {"forebay": __version__, "python": platform.python_version(), "kernel": platform.release()}
    found |= {name: metadata.version(name) for name in PACKAGES}
    if as_json:
        print_json(found)
    else:
        print_pairs(found)
