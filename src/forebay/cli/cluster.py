"""`forebay cluster …`: the store as a whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from forebay.cli.admin import Session, asks_server
from forebay.cli.client import AdminClient
from forebay.cli.drive import print_drives
from forebay.cli.exits import NO
from forebay.cli.show import print_pairs, print_verdict, shown_bytes, shown_seconds, state_text

app = typer.Typer(help="The store as a whole: is it well, how is it built, how full is it.", no_args_is_help=True)


def _verdict(cluster: dict[str, Any]) -> tuple[bool, str]:
    drives = cluster["drives"]
    away = [drive["path"] for drive in drives if drive["state"] != "current"]
    lacking = [drive["path"] for drive in drives if drive["missing_shards"] or drive["is_filling"]]
    if not cluster["ready"]:
        return False, "not ready: a write would fail now" + (f"; not current: {', '.join(away)}" if away else "")
    if away:
        return False, f"degraded: reads and writes go on, {len(away)} of {len(drives)} drives not current: {', '.join(away)}"
    if lacking:
        return False, f"degraded: reads and writes go on, being healed: {', '.join(lacking)}"
    return True, f"ready, all {len(drives)} drives current and complete"


@app.command()
@asks_server
def status(session: Session) -> None:
    """Say in one line whether the store is well, and show its drives.

    Exit code 0: ready, and every drive has everything. 1: degraded, being healed, or not ready. A check for a script:

        forebay cluster status --json > status.json || mail -s "store degraded" ops < status.json
    """
    cluster = session.server.ask("cluster")
    good, sentence = _verdict(cluster)

    def tables(document: dict[str, Any]) -> None:
        print_verdict(good, sentence)
        print_drives(document["drives"])

    session.show(cluster, tables)
    raise typer.Exit(0 if good else NO)


@app.command()
@asks_server
def info(session: Session) -> None:
    """Print identity, geometry and space of the store.

    `usable` counts what objects can occupy: the space of the data drives of a set, without parity.
    """
    session.show(session.server.ask("cluster"), _print_info)


def _print_info(cluster: dict[str, Any]) -> None:
    data = cluster["drives_per_set"] - cluster["parity"]
    sets = f"{cluster['sets']} set" + ("s" if cluster["sets"] != 1 else "")
    usable = data / cluster["drives_per_set"]
    total = sum(drive.get("total_bytes", 0) for drive in cluster["drives"])
    free = sum(drive.get("free_bytes", 0) for drive in cluster["drives"])
    print_pairs(
        {
            "deployment": cluster["deployment"],
            "version": cluster["version"],
            "region": cluster["region"],
            "nodes": cluster["nodes"],
            "drives": f"{len(cluster['drives'])} in {sets} of {data}+{cluster['parity']}",
            "survives": f"the loss of any {cluster['parity']} of the {cluster['drives_per_set']} drives of a set",
            "write quorum": f"{cluster['write_quorum']} drives of a set",
            "raw space": f"{shown_bytes(total)}, {shown_bytes(free)} free",
            "usable space": f"{shown_bytes(total * usable)}, {shown_bytes(free * usable)} free",
        }
    )


@app.command()
@asks_server
def topology(
    session: Session,
    probe: Annotated[bool, typer.Option("--probe", help="Ask the node for its health, and say how long it takes.")] = False,
) -> None:
    """Draw nodes, erasure sets and the drives in them, each drive with its position and state.

    With --probe the exit code is 1 if the node does not answer that it is ready.
    """
    document = session.server.ask("topology")
    if probe:
        document["probe"] = _probe(session.server)
    session.show(document, _draw)
    if probe and not all(answer["status"] == 200 for answer in document["probe"].values()):
        raise typer.Exit(NO)


def _probe(server: AdminClient) -> dict[str, dict[str, Any]]:
    answers = {name: server.look(f"health/{name}") for name in ("live", "ready")}
    return {name: {"status": answer.status, "seconds": round(answer.seconds, 6)} for name, answer in answers.items()}


def _draw(document: dict[str, Any]) -> None:
    tree = Tree(Text(f"deployment {document['deployment']}", style="bold"))
    for node in document["nodes"]:
        label = Text(f"node {node['id']}  {node['address']}")
        for name, answer in document.get("probe", {}).items():
            good = answer["status"] == 200
            label.append(f"  {name} {'yes' if good else 'no'} in {shown_seconds(answer['seconds'])}", style="green" if good else "bold red")
        branch = tree.add(label)
        for each in document["sets"]:
            drives = branch.add(f"set {each['index']}  {each['published']} commits")
            for drive in each["drives"]:
                drives.add(Text(f"{drive['position']:>2}  ").append(state_text(drive["state"])).append(f"  {drive['path']}"))
    Console().print(tree, soft_wrap=True)
