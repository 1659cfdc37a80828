"""Configuration: what is accepted, completed and refused, with the place named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ConfigError
from forebay.server.config import Config, default_parity, default_set_size, load_config, parse_size, warnings_of

KEYS = {"FOREBAY_ROOT_USER": "admin", "FOREBAY_ROOT_PASSWORD": "long-enough"}


def load(text: str = "", flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None, *, at: Path) -> Config:
    path = at / "forebay.toml"
    path.write_text(text)
    return load_config(str(path), flags, environ or {})


def test_file_with_every_familiar_name(tmp_path: Path) -> None:
    config = load(
        f"""
        self_id = 3
        data_dirs = ["{tmp_path}/a", "{tmp_path}/b", "{tmp_path}/c", "{tmp_path}/d"]
        s3_addr = "0.0.0.0:9001"
        rpc_addr = "0.0.0.0:9100"
        set_drive_count = 4
        default_parity_count = 2
        region = "eu-1"
        [[credentials]]
        access_key = "one"
        secret_key = "secret-one"
        [[credentials]]
        access_key = "two"
        secret_key = "secret-two"
        [[nodes]]
        id = 3
        rpc_addr = "127.0.0.1:9100"
        disk_count = 4
        """,
        at=tmp_path,
    )
    assert config.address == ("0.0.0.0", 9001)
    assert (config.set_size, config.parity_count, config.region) == (4, 2, "eu-1")
    assert config.root.access_key == "one"
    assert "secret-one" not in repr(config)
    assert warnings_of(config) == []


def test_defaults(tmp_path: Path) -> None:
    config = load_config(None, {"data_dirs": [str(tmp_path / "a"), str(tmp_path / "b")]}, {})
    assert config.address == ("127.0.0.1", 9000)
    assert (config.set_size, config.parity_count) == (2, 1)
    assert config.uses_built_in_credentials
    assert config.workers >= 1
    assert len(warnings_of(config)) == 1
    assert len(warnings_of(load_config(None, {"data_dirs": [str(tmp_path / "a")]}, {}))) == 2


def test_flags_override_the_file_and_the_environment_is_root(tmp_path: Path) -> None:
    text = """
    data_dirs = ["/x"]
    region = "from-file"
    [[credentials]]
    access_key = "user"
    secret_key = "user-secret"
    """
    flags = {"region": "from-flag", "data_dirs": ["/y"], "workers": None}
    config = load(text, flags, KEYS, at=tmp_path)
    assert config.region == "from-flag"
    assert config.data_dirs == ("/y",)
    assert [pair.access_key for pair in config.credentials] == ["admin", "user"]


@pytest.mark.parametrize(
    ("drives", "size", "parity"), [(1, 1, 0), (2, 2, 1), (7, 7, 1), (8, 8, 2), (12, 12, 3), (16, 16, 4), (32, 16, 4), (24, 12, 3)]
)
def test_default_geometry(drives: int, size: int, parity: int) -> None:
    assert default_set_size(drives) == size
    assert default_parity(size) == parity


@pytest.mark.parametrize(("text", "size"), [(5, 5), ("5", 5), ("4KiB", 4096), ("2 mb", 2 << 20), ("1G", 1 << 30), ("7B", 7)])
def test_sizes(text: int | str, size: int) -> None:
    assert parse_size(text, "here") == size


DRIVES = 'data_dirs = ["/a", "/b", "/c", "/d"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no drives"),
        ("data_dir = ['/a']", "unknown key 'data_dir'; did you mean 'data_dirs'"),
        (DRIVES + "[[credentials]]\nacess_key = 'x'", "number 1: unknown key 'acess_key'; did you mean 'access_key'"),
        (DRIVES + "credentials = 5", r"written as \[\[credentials\]\]"),
        (DRIVES + "region = 5", "region"),
        (DRIVES + "region = 'A b'", "region"),
        (DRIVES + "not toml", "not TOML"),
        ("data_dirs = ['/a', '/a']", "same folder"),
        (DRIVES + "set_drive_count = 3", "cannot be shared"),
        (DRIVES + "default_parity_count = 3", "outside 0 to 2"),
        (DRIVES + "s3_addr = '1.2.3.4:5:6'", "not an address"),
        (DRIVES + "s3_addr = '127.0.0.1:99999'", "above 65535"),
        (DRIVES + "s3_addr = '0.0.0.0:9000'", "no credentials are set"),
        (DRIVES + "[[nodes]]\nid=0\n[[nodes]]\nid=1", "2 nodes are listed"),
        (DRIVES + "[[nodes]]\nid=1", "self_id is 0"),
        (DRIVES + "[[nodes]]\ndisk_count = 3", "disk_count is 3"),
        (DRIVES + "etag = 'sha'", "etag"),
        (DRIVES + "workers = 1000", "workers"),
        (DRIVES + "buffer_memory = 'lots'", "not a size"),
        (DRIVES + "buffer_memory = '1MiB'", "too little"),
        (DRIVES + "tls_cert = '/x'", "go together"),
        (DRIVES + "domains = ['UPPER']", "domains"),
        (DRIVES + "[[credentials]]\naccess_key = 'abc'\nsecret_key = 'short'", "shorter than 8"),
        (DRIVES + "[[credentials]]\naccess_key = 'a b c'\nsecret_key = 'long-enough'", "printable"),
        (DRIVES + 2 * "[[credentials]]\naccess_key = 'abc'\nsecret_key = 'long-enough'\n", "twice"),
    ],
)  # fmt: skip
def test_refusals_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text, at=tmp_path)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(str(tmp_path / "none.toml"), {}, {})
    with pytest.raises(ConfigError, match="set both"):
        load_config(None, {"data_dirs": ["/a"]}, {"FOREBAY_ROOT_USER": "x"})
    with pytest.raises(ConfigError, match="equal sets"):
        load_config(None, {"data_dirs": [f"/{number}" for number in range(17)]}, {})
    with pytest.raises(ConfigError, match="unknown key 'parity'"):
        load_config(None, {"parity": 1}, {})
