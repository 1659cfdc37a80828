"""The command line itself: help, wrong usage, refusals, and that the pages of the documentation say the same."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.cli import exits, main
from forebay.s3.routing import IMPLEMENTED

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    "", "server", "cluster", "cluster status", "cluster info", "cluster topology", "node", "node info", "drive", "drive list", "drive info",
    "drive replace", "heal", "heal status", "heal start", "scrub", "scrub status", "scrub start", "version", "bench", "bench s3", "ckpt",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert "Usage: forebay" in said
    assert len(said.splitlines()) > 5


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"forebay \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)
    assert main(["version", "--json"]) == 0
    assert '"lmdb"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve"], "server"),
        (["cluster", "statsu"], "status"),
        (["server", "--pariti", "1", "d1"], "--parity"),
        (["drive", "info"], "Missing argument"),
        (["heal", "start", "--wiat"], "--wait"),
    ],
)
def test_wrong_usage_names_the_right_one(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == exits.USAGE
    said = capsys.readouterr()
    assert says in said.err and "Traceback" not in said.err and not said.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["server"], "no drives"),
        (["server", "d1", "d2", "--parity", "2"], "default_parity_count"),
        (["server", "d1", "--address", "nowhere:x"], "s3_addr"),
        (["server", "d1", "--address", "0.0.0.0:9000"], "FOREBAY_ROOT_USER"),
        (["server", "d1", "--config", "absent.toml"], "absent.toml"),
        (["server", "d1", "d1"], "same folder"),
    ],
)
def test_wrong_configuration(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == exits.USAGE
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_unknown_key_in_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text('data_dirs = ["d1"]\ndefault_parity_cuont = 1\n')
    assert main(["server", "--config", str(tmp_path / "forebay.toml")]) == exits.USAGE
    assert "did you mean 'default_parity_count'?" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_a_server_without_assertions_is_refused(tmp_path: Path, how: str) -> None:
    command = [sys.executable, *(["-O"] if how == "flag" else []), "-m", "forebay.cli", "server", str(tmp_path / "d1")]
    environment = {**os.environ, **({"PYTHONOPTIMIZE": "1"} if how == "environment" else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == exits.USAGE and "-O" in done.stderr
    assert not (tmp_path / "d1").exists()


def _marked(page: str, mark: str) -> str:
    return (ROOT / "docs" / page).read_text().split(f"<!-- {mark} -->")[1].split("<!-- end -->")[0]


def test_the_page_of_s3_lists_what_is_built() -> None:
    words = re.findall(r"\b[A-Z][A-Za-z0-9]+\b", _marked("s3.md", "operations"))
    assert sorted(words) == sorted(operation.value for operation in IMPLEMENTED)


def test_the_page_of_the_command_line_lists_the_exit_codes() -> None:
    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", _marked("cli.md", "exit codes"), re.MULTILINE))
    assert table == dict(re.findall(r"^(\d+) +(.+)$", exits.__doc__ or "", re.MULTILINE))
    assert {int(code) for code in table} == {value for name, value in vars(exits).items() if name.isupper()}


def _documented_commands() -> list[tuple[str, list[str]]]:
    """(page, words) of every `forebay …` line in a block of shell, and of every command in a table's code."""
    found = []
    for page in PAGES:
        text = page.read_text()
        lines = [line.strip() for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        lines += re.findall(r"`(forebay [^`]+)`", text)
        for line in lines:
            command = re.search(r"(?:^|/|until )(forebay [^|>;&#]+)", line)
            if command and "COMMAND" not in line:
                found.append((page.name, shlex.split(re.sub(r"[\[\]…]", " ", command[1]))[1:]))
    return found


@pytest.mark.parametrize(("page", "words"), _documented_commands(), ids=lambda value: " ".join(value) if isinstance(value, list) else value)
def test_documented_commands_and_options_exist(page: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names = [word for word in words[:2] if re.fullmatch(r"[a-z0-9]+", word)]
    assert main([*names, "--help"]) == 0, page
    said = capsys.readouterr().out
    for option in (word.split("=")[0] for word in words if word.startswith("--")):
        assert re.search(rf"{option}\b", said), f"{page}: {option} is no option of forebay {' '.join(names)}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
