"""What all commands that ask a server have in common: where it is, who asks, and how the answer is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from forebay.cli.client import AdminClient, connect
from forebay.cli.show import print_json

P = ParamSpec("P")

_PANEL = "Which server"


def _shared(
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="Its http://HOST:PORT. Default: FOREBAY_ENDPOINT, AWS_ENDPOINT_URL, else port 9000 here.", rich_help_panel=_PANEL
        ),
    ] = None,
    access_key: Annotated[
        str | None, typer.Option(help="Root access key. Default: FOREBAY_ROOT_USER or AWS_ACCESS_KEY_ID.", rich_help_panel=_PANEL)
    ] = None,
    secret_key: Annotated[
        str | None,
        typer.Option(
            help="Its secret; better in FOREBAY_ROOT_PASSWORD or AWS_SECRET_ACCESS_KEY, where `ps` does not show it.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    region: Annotated[str | None, typer.Option(help="Its region. Default: AWS_REGION, else us-east-1.", rich_help_panel=_PANEL)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Hold the options that every such command has."""


class Session:
    """A server to ask, and the wish for JSON."""

    def __init__(self, server: AdminClient, as_json: bool) -> None:
        self.server = server
        self.as_json = as_json

    def show(self, document: dict[str, Any], tables: Callable[[dict[str, Any]], None]) -> None:
        """Print an answer: as it is for programs, through `tables` for people."""
        if self.as_json:
            print_json(document)
        else:
            tables(document)


def asks_server(command: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
    """Turn `command(session, …)` into a typer command that has the options of `_shared` beside its own."""

    @wraps(command)
    def run(**given: Any) -> None:
        shared = {name: given.pop(name) for name in _SHARED.parameters}
        as_json = shared.pop("as_json")
        command(Session(connect(**shared), as_json), **given)  # type: ignore[call-arg]  # the signature below is what typer fills

    hints = get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    parameters = [each.replace(annotation=hints[each.name]) for each in own] + list(_SHARED.parameters.values())
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


_SHARED = inspect.signature(_shared, eval_str=True)
