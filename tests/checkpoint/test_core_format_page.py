"""The tables of docs/formats/checkpoint.md name the fields that the records have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.checkpoint import manifest as records

PAGE = (Path(__file__).parent.parent.parent / "docs/formats/checkpoint.md").read_text()


def table_after(heading: str) -> list[str]:
    """The first column of the first table after a heading."""
    section = PAGE.split(f"\n### `{heading}`\n", 1)[1].split("\n##", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize(
    "record", [records.Manifest, records.ArrayEntry, records.Piece, records.FileEntry, records.HostIndex, records.HostFailure]
)
def test_tables_list_the_fields(record: type) -> None:
    assert table_after(record.__name__) == list(record.__struct_fields__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("node", [records.Mapping, records.Sequence, records.Fields, records.Array, records.Value])
def test_nodes_are_listed_with_their_fields(node: type) -> None:
    tag = node.__struct_config__.tag  # type: ignore[attr-defined]
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{tag}` |"))
    assert set(re.findall(r"`(\w+)`", row.split("|")[2])) >= set(node.__struct_fields__)  # type: ignore[attr-defined]


def test_constants() -> None:
    assert f"Version {records.VERSION}." in PAGE
    assert f"{records.BLOCK_BYTES // 2**20} MiB" in PAGE
    for name in (records.MANIFEST_FORMAT, records.INDEX_FORMAT, records.FAILURE_FORMAT):
        assert f"`{name}`" in PAGE
    envelope = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Records", 1)[1].split("###", 1)[0], re.MULTILINE)
    assert envelope == list(records._Envelope.__struct_fields__)
