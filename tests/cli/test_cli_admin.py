"""The commands that ask a server: what they say, and the exit codes that scripts rely on."""

from __future__ import annotations

import json
import socket

import pytest
from fake_server import FakeServer, cluster, drive, heal, scrub

from forebay.cli import main, progress
from forebay.cli.client import Endpoint, connect, parse_endpoint
from forebay.cli.exits import WrongUsage


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_S", 0.001)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


HEALTHY = cluster()
DEGRADED = cluster(drive(0), drive(1), drive(2, "offline", total_bytes=0, free_bytes=0), drive(3))
FILLING = cluster(drive(0), drive(1), drive(2, is_filling=True, missing_shards=3), drive(3))


@pytest.mark.parametrize(
    ("document", "code", "says"),
    [
        (HEALTHY, 0, "ready, all 4 drives current and complete"),
        (DEGRADED, 1, "degraded: reads and writes go on, 1 of 4 drives not current: /mnt/d3"),
        (FILLING, 1, "being healed: /mnt/d3"),
        (cluster(*DEGRADED["drives"], ready=False), 1, "not ready: a write would fail now; not current: /mnt/d3"),
    ],
)
def test_cluster_status(fake: FakeServer, capsys: pytest.CaptureFixture[str], document: dict, code: int, says: str) -> None:
    fake.answers["GET cluster"] = document
    ended, out, _ = run(capsys, "cluster", "status")
    assert ended == code
    assert says in out
    assert all(each["path"] in out for each in document["drives"])
    ended, out, _ = run(capsys, "cluster", "status", "--json")
    assert (ended, json.loads(out)) == (code, document)


def test_cluster_info(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers["GET cluster"] = HEALTHY
    code, out, _ = run(capsys, "cluster", "info")
    assert code == 0
    assert "4 in 1 set of 3+1" in out
    assert "4 TiB, 2 TiB free" in out and "3 TiB, 1.5 TiB free" in out, "raw and usable space"


@pytest.mark.parametrize(("ready", "code"), [(True, 0), (False, 1)])
def test_cluster_topology_probe(fake: FakeServer, capsys: pytest.CaptureFixture[str], ready: bool, code: int) -> None:
    drives = HEALTHY["drives"]
    fake.answers["GET topology"] = {
        "deployment": "d" * 32,
        "nodes": [{"id": 0, "address": "127.0.0.1:9000"}],
        "sets": [{"index": 0, "published": 7, "drives": drives}],
    }
    fake.ready = ready
    assert run(capsys, "cluster", "topology")[0] == 0
    ended, out, _ = run(capsys, "cluster", "topology", "--probe")
    assert ended == code
    assert f"ready {'yes' if ready else 'no'} in" in out and "/mnt/d4" in out
    document = json.loads(run(capsys, "cluster", "topology", "--probe", "--json")[1])
    assert document["probe"]["ready"]["status"] == (200 if ready else 503)


def test_node_info(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers["GET node"] = {"id": 0, "pid": 4711, "uptime_s": 93_784.0, "buffer_bytes": 512 << 20}
    code, out, _ = run(capsys, "node", "info")
    assert code == 0 and "4711" in out and "1 d 2 h" in out and "512 MiB" in out


def test_drive_list(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers["GET drives"] = {"drives": HEALTHY["drives"]}
    code, out, _ = run(capsys, "drive", "list")
    assert code == 0 and "50%" in out and "512 GiB" in out and "why" not in out
    fake.answers["GET drives"] = {"drives": DEGRADED["drives"]}
    code, out, _ = run(capsys, "drive", "list")
    assert code == 1 and "no such folder" in out and "offline" in out


@pytest.mark.parametrize("name", ["/mnt/d3", "/mnt/d3/", "0:2", f"{2:032x}"])
def test_drive_info(fake: FakeServer, capsys: pytest.CaptureFixture[str], name: str) -> None:
    fake.answers["GET drives"] = {"drives": DEGRADED["drives"]}
    code, out, _ = run(capsys, "drive", "info", name, "--json")
    assert code == 1 and json.loads(out) == DEGRADED["drives"][2]


def test_drive_info_of_an_unknown_drive_names_the_nearest(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers["GET drives"] = {"drives": HEALTHY["drives"]}
    code, _, err = run(capsys, "drive", "info", "/mnt/f3")
    assert code == 2 and "did you mean /mnt/d3?" in err


def test_drive_replace(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers |= {"GET drives": {"drives": DEGRADED["drives"]}, "POST drives/replace": drive(2, "syncing", is_filling=True)}
    assert run(capsys, "drive", "replace", "/mnt/d3")[0] != 0, "it asks, and nobody answers"
    assert fake.asked[-1][0] == "GET drives", "nothing was done"
    code, out, _ = run(capsys, "drive", "replace", "/mnt/d3", "--yes")
    assert code == 0 and "syncing" in out
    assert fake.asked[-1] == ("POST drives/replace", {"set": 0, "position": 2})


@pytest.mark.parametrize(
    ("report", "drives", "code", "says"),
    [
        (heal(), HEALTHY, 0, "nothing is left to heal"),
        (heal(running=True, blobs_total=5, bytes_total=5 << 20), FILLING, 1, "healing"),
        (heal(drives_waiting=1), DEGRADED, 1, "waiting for drives that are out"),
        (heal(failed=2), HEALTHY, 1, "2 blobs could not be rebuilt"),
        (heal(), FILLING, 1, "something is left to heal"),
    ],
)
def test_heal_status(fake: FakeServer, capsys: pytest.CaptureFixture[str], report: dict, drives: dict, code: int, says: str) -> None:
    fake.answers |= {"GET heal": report, "GET drives": {"drives": drives["drives"]}}
    ended, out, _ = run(capsys, "heal", "status")
    assert ended == code and says in out


def test_heal_start_waits_for_the_end(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers |= {
        "POST heal": heal(),
        "GET heal": [
            heal(),
            heal(running=True, bytes_done=1, bytes_total=3),
            heal(running=True, bytes_done=2, bytes_total=3),
            heal(blobs_done=3),
        ],
        "GET drives": [{"drives": FILLING["drives"]}] * 4 + [{"drives": HEALTHY["drives"]}],
    }
    code, out, _ = run(capsys, "heal", "start", "--wait")
    assert code == 0 and "nothing is left to heal" in out
    assert [question for question, _ in fake.asked].count("GET heal") == 5


def test_heal_start_gives_up_when_nothing_happens(
    fake: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.cli.heal.IDLE_S_MAX", 0.01)
    fake.answers |= {"POST heal": heal(), "GET heal": heal(drives_waiting=1), "GET drives": {"drives": DEGRADED["drives"]}}
    code, out, _ = run(capsys, "heal", "start", "--wait")
    assert code == 1 and "forebay drive replace" in out


@pytest.mark.parametrize(
    ("report", "code", "says"),
    [
        (scrub(), 0, "no damage"),
        (scrub(blocks_bad=3), 1, "0 records and 3 blocks are damaged or missing"),
        (scrub(running=True, records_bad=1), 1, "scrubbing; so far 1 records"),
        (scrub(started_s=0, finished_s=0), 0, "no scrub has run"),
    ],
)
def test_scrub_status(fake: FakeServer, capsys: pytest.CaptureFixture[str], report: dict, code: int, says: str) -> None:
    fake.answers["GET scrub"] = report
    ended, out, _ = run(capsys, "scrub", "status")
    assert ended == code and says in out


def test_scrub_start_waits_for_the_end(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers |= {"POST scrub": scrub(running=True), "GET scrub": [scrub(running=True), scrub(running=True), scrub(blocks_bad=1)]}
    code, out, _ = run(capsys, "scrub", "start", "--wait", "--json")
    assert code == 1 and json.loads(out)["blocks_bad"] == 1
    fake.answers["POST scrub"] = scrub(running=True)
    assert run(capsys, "scrub", "start")[0] == 0


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    code, out, err = run(capsys, "cluster", "status", "--endpoint", f"http://127.0.0.1:{port}")
    assert code == 3 and out == ""
    assert f"no server listens at http://127.0.0.1:{port}" in err and "forebay server" in err


def test_another_server(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers["GET cluster"] = "<html>"
    code, _, err = run(capsys, "cluster", "status")
    assert code == 3 and "no Forebay server" in err


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (("nobody", "root-password"), "does not know the access key 'nobody'"),
        (("root-user", "wrong-password"), "secret key of 'root-user' is not"),
    ],
)
def test_wrong_credentials(fake: FakeServer, capsys: pytest.CaptureFixture[str], keys: tuple[str, str], says: str) -> None:
    code, _, err = run(capsys, "drive", "list", "--access-key", keys[0], "--secret-key", keys[1])
    assert code == 4 and says in err and "FOREBAY_ROOT_PASSWORD" in err and keys[1] not in err


def test_wrong_region(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "drive", "list", "--region", "eu-west-1")
    assert code == 4 and "us-east-1" in err and "--region" in err


def test_a_malformed_answer_is_a_bug_without_traceback(
    fake: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers["GET drives"] = {"drives": [{}]}
    code, _, err = run(capsys, "drive", "list")
    assert code == 70 and "a bug: KeyError" in err and "Traceback" not in err
    monkeypatch.setenv("FOREBAY_DEBUG", "1")
    assert "Traceback" in run(capsys, "drive", "list")[2]


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("http://127.0.0.1:9000", Endpoint("http", "127.0.0.1", 9000)),
        ("http://store", Endpoint("http", "store", 80)),
        ("https://store/", Endpoint("https", "store", 443)),
        ("store:9001", Endpoint("http", "store", 9001)),
        ("store", Endpoint("http", "store", 9000)),
        ("http://[::1]:9000", Endpoint("http", "::1", 9000)),
    ],
)
def test_endpoints(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize("text", ["ftp://store", "http://store/bucket", "http://store:port", "http://", "http://store:99999"])
def test_wrong_endpoints(text: str) -> None:
    with pytest.raises(WrongUsage, match="http://HOST:PORT"):
        parse_endpoint(text)


def test_where_endpoint_and_keys_come_from() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://aws:1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "r"}
    assert connect(environ=environ).endpoint.url == "http://aws:1"
    assert connect(environ=environ | {"FOREBAY_ENDPOINT": "http://own:2"}).endpoint.url == "http://own:2"
    assert connect("http://flag:3", environ=environ).endpoint.url == "http://flag:3"
    assert connect(environ={}).endpoint.url == "http://127.0.0.1:9000"
    with pytest.raises(WrongUsage, match="no credentials"):
        connect("http://far.example:9000", environ={})
    with pytest.raises(WrongUsage, match="go together"):
        connect(access_key="a", environ={})
