"""The commands against a real server: a drive is lost, refused, given back, and the store is whole again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.cli import main
from running_store import Store, running_store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with running_store(tmp_path) as running:
        monkeypatch.setenv("FOREBAY_ENDPOINT", running.endpoint)
        monkeypatch.setenv("FOREBAY_ROOT_USER", running.access_key)
        monkeypatch.setenv("FOREBAY_ROOT_PASSWORD", running.secret_key)
        yield running


def test_a_lost_drive_and_its_replacement(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    client, lost = store.boto(), store.drives[2]
    client.create_bucket(Bucket="bucket")
    bodies = {str(number): random.Random(number).randbytes(300_000) for number in range(20)}
    for key, body in bodies.items():
        client.put_object(Bucket="bucket", Key=key, Body=body)
    for command in (
        "cluster status",
        "cluster info",
        "cluster topology --probe",
        "node info",
        "drive list",
        "drive info 0:2",
        "heal status",
    ):
        code, out, err = run(*command.split())
        assert code == 0 and out and not err, command
    assert run("scrub", "start", "--wait")[0] == 0

    lost.rename(lost.with_name("taken-away"))
    lost.write_text("something else")
    client.put_object(Bucket="bucket", Key="20", Body=bodies["0"])  # the write goes on, and finds the drive gone
    assert run("cluster", "status")[0] == 1
    drives = json.loads(run("drive", "list", "--json")[1])["drives"]
    assert [drive["state"] for drive in drives if drive["path"] == str(lost)] == ["offline"]
    assert run("heal", "status")[0] == 1
    code, _, err = run("drive", "replace", str(lost), "--yes")
    assert code == 1 and str(lost) in err and "mpty" in err, "a file is in its place"
    assert run("drive", "replace", str(store.drives[0]), "--yes")[0] == 1, "that one is in service"

    lost.unlink()
    lost.mkdir()
    run("drive", "replace", str(lost), "--yes")  # too late if the server was faster: it is the same filesystem
    assert run("heal", "start", "--wait")[0] == 0
    assert run("cluster", "status")[0] == 0
    assert run("scrub", "start", "--wait")[0] == 0
    assert all(client.get_object(Bucket="bucket", Key=key)["Body"].read() == body for key, body in bodies.items())
