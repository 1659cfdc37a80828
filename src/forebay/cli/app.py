"""Puts the command line together.

Only the commands that the arguments name are imported, so that `forebay --help` is fast and the store's commands load no
framework of the library; the others are stand-ins that know their one line of help.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

import typer

from forebay._version import __version__
from forebay.cli import exits
from forebay.errors import ConfigError, ForebayError

HELP = """Checkpoint storage for training: an erasure-coded, S3-compatible store.

Start a store over four drives, and look at it from another terminal:

    forebay server /mnt/d1 /mnt/d2 /mnt/d3 /mnt/d4

    forebay cluster status

Exit codes: 0 yes; 1 no, degraded or failed; 2 wrong usage; 3 no server there; 4 access denied.
"""


class Part(NamedTuple):
    """A command, or a group of commands: where it is (`module:attribute`) and its line in the list."""

    home: str
    summary: str


PARTS = {
    "server": Part("forebay.cli.server:server", "Serve S3 from drive folders of this machine."),
    "cluster": Part("forebay.cli.cluster:app", "The store as a whole: status, topology, info."),
    "node": Part("forebay.cli.node:app", "The machine that serves it."),
    "drive": Part("forebay.cli.drive:app", "Its drives: list, info, replace."),
    "heal": Part("forebay.cli.heal:app", "Put back what a drive lacks: status, start."),
    "scrub": Part("forebay.cli.scrub:app", "Read everything and check it: status, start."),
    "ckpt": Part("forebay.cli.ckpt:app", "Checkpoints: list, show, verify, compare, copy, convert, remove."),
    "bench": Part("forebay.bench:app", "Measure a store against the limits of its machine."),
    "version": Part("forebay.cli.version:version", "Print the versions of Forebay and of what it stands on."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's) and return the exit code. Prints errors, raises none."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _build(given)(args=given, prog_name="forebay")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else exits.OK if end.code is None else exits.NO
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except ConfigError as error:
        return _fail(str(error), exits.USAGE)
    except exits.CommandFailed as error:
        return _fail(str(error), error.exit_code)
    except ForebayError as error:
        return _fail(str(error), exits.NO)
    except Exception as error:
        if os.environ.get("FOREBAY_DEBUG"):
            traceback.print_exc()
        return _fail(f"a bug: {type(error).__name__}: {error} (with FOREBAY_DEBUG=1 set, the traceback is shown)", exits.BUG)
    return exits.OK


def _fail(message: str, exit_code: int) -> int:
    print(f"forebay: {message}", file=sys.stderr)
    return exit_code


def _build(arguments: list[str]) -> typer.Typer:
    app = typer.Typer(
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_root)
    wanted = next((each for each in arguments if not each.startswith("-")), None)
    completing = "_FOREBAY_COMPLETE" in os.environ
    for name, part in PARTS.items():
        if name == wanted or completing:
            _mount(app, name, part)
        else:
            app.command(name, help=part.summary)(_stand_in)
    return app


def _mount(app: typer.Typer, name: str, part: Part) -> None:
    module, attribute = part.home.split(":")
    target: typer.Typer | Callable[..., None] = getattr(import_module(module), attribute)
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name, short_help=part.summary)
    else:
        app.command(name, short_help=part.summary)(target)


def _stand_in() -> None:
    raise AssertionError("a command that was not named is run")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"forebay {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version and end."),
) -> None:
    """Take the options that come before a command."""
