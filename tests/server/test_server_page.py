"""docs/server.md says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from forebay.server import connection, head, orders, transfer, worker
from forebay.server.config import Config, load_config

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def test_limits() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 10
    for name, value in rows:
        found = [getattr(module, name) for module in (head, transfer, connection, orders, worker) if hasattr(module, name)]
        assert found, name
        assert set(found) == {int(value)}, name


def test_configuration_keys(tmp_path: Path) -> None:
    section = PAGE[PAGE.index("## Configuration") : PAGE.index("## Health")]
    cells = re.findall(r"^\| (`[^|]+)\|([^|]*)\|", section, re.MULTILINE)
    keys = {key.strip("[]"): default.strip() for names, default in cells for key in re.findall(r"`([^`]+)`", names)}
    assert keys.keys() == set(Config.__struct_fields__)
    config = load_config(None, {"data_dirs": [str(tmp_path)]}, {})
    for name in ("s3_addr", "region", "etag", "buffer_memory"):
        assert keys[name].strip("`") == getattr(config, name)
