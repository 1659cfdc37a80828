"""What a server is told: TOML file, flags, environment; checked once, then immutable.

Precedence: flag, then environment (root credentials only), then file, then default. The file's names are those that
users of OpenLake know. Anything unknown or contradictory is a `ConfigError` that names the place and says what is
accepted.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from forebay.errors import ConfigError

ROOT_USER_VARIABLE = "FOREBAY_ROOT_USER"
ROOT_PASSWORD_VARIABLE = "FOREBAY_ROOT_PASSWORD"  # noqa: S105 - the name of a variable, not a password
BUILT_IN_KEY = "forebayadmin"  # both halves, for loopback only

SET_DRIVES_MAX = 16  # wider sets read and write more drives a stripe than pays, and lose more often
DEFAULT_PORT = 9000
BUFFER_BYTES_MIN = 64 << 20  # a few stripes for each of two workers
ACCESS_KEY_CHARS_MIN = 3
SECRET_KEY_CHARS_MIN = 8


class Credential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pair of keys that may sign requests. The first pair of a configuration is root: it may use the admin API."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        """Without the secret: configurations end up in logs."""
        return f"Credential(access_key={self.access_key!r}, secret_key=<hidden>)"


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine of a cluster. Accepted so that files can be shared; more than one is refused for now."""

    id: int = 0
    rpc_addr: str | None = None
    disk_count: int | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server's configuration. Build it with `load_config`, which also checks and completes it.

    `set_drive_count`, `default_parity_count` and `workers` are 0 or None only before completion.
    """

    data_dirs: tuple[str, ...]
    s3_addr: str = f"127.0.0.1:{DEFAULT_PORT}"
    rpc_addr: str | None = None
    self_id: int = 0
    set_drive_count: int | None = None
    default_parity_count: int | None = None
    region: str = "us-east-1"
    credentials: tuple[Credential, ...] = ()
    nodes: tuple[Node, ...] = ()
    etag: Literal["md5", "auto"] = "auto"
    workers: int = 0
    domains: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    buffer_memory: int | str = "512MiB"
    run_dir: str | None = None
    unix_socket: str | None = None

    @property
    def buffer_bytes(self) -> int:
        """Stripe buffers of the whole server, in bytes."""
        return parse_size(self.buffer_memory, "buffer_memory")

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) to listen on; the host is an IP address or a name; port 0 lets the kernel choose."""
        return parse_address(self.s3_addr, "s3_addr")

    @property
    def parity_count(self) -> int:
        """Parity blocks a stripe, after completion."""
        assert self.default_parity_count is not None
        return self.default_parity_count

    @property
    def set_size(self) -> int:
        """Drives a set, after completion."""
        assert self.set_drive_count is not None
        return self.set_drive_count

    @property
    def root(self) -> Credential:
        """The pair that may use the admin API."""
        return self.credentials[0]

    @property
    def uses_built_in_credentials(self) -> bool:
        """Whether nobody chose a secret, so that the well-known one is in use."""
        return self.root.secret_key == BUILT_IN_KEY


_SIZE = re.compile(r"\s*(\d+)\s*([KMGT]i?B?|B)?\s*", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(value: int | str, where: str) -> int:
    """Bytes from an integer or from text such as `512MiB` (binary units, whatever their spelling)."""
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ConfigError(f"{where}: {value!r} is not a size; write a number of bytes or, for example, '512MiB'")
    unit = (match[2] or "").upper().rstrip("B").rstrip("I")
    return int(match[1]) * _UNIT_BYTES[unit]


def parse_address(value: str, where: str) -> tuple[str, int]:
    """(host, port) from `host:port`, `[v6]:port`, `:port` (every address) or `host` (port 9000)."""
    match = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d+))?", value.strip())
    if match is None or not value.strip():
        raise ConfigError(f"{where}: {value!r} is not an address; write host:port, for example '0.0.0.0:{DEFAULT_PORT}'")
    port = int(match["port"]) if match["port"] else DEFAULT_PORT
    if port > 65535:
        raise ConfigError(f"{where}: port {port} of {value!r} is above 65535")
    return match["six"] or match["host"] or "0.0.0.0", port  # noqa: S104 - `:port` asks for every address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_parity(set_drive_count: int) -> int:
    """Parity blocks for a set of that many drives: none for one, one for 2-7, then two to four."""
    if set_drive_count == 1:
        return 0
    if set_drive_count < 8:
        return 1
    return min(4, set_drive_count // 4)


def default_set_size(drive_count: int) -> int:
    """Drives a set: all of them up to 16, else the largest equal share of at most 16."""
    if drive_count <= SET_DRIVES_MAX:
        return drive_count
    for size in range(SET_DRIVES_MAX, 3, -1):
        if drive_count % size == 0:
            return size
    raise ConfigError(
        f"data_dirs: {drive_count} drives cannot be shared into equal sets of 4 to {SET_DRIVES_MAX}; add or leave out drives until they can"
    )


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(sorted(known))}"


def _refuse_unknown(table: Mapping[str, Any], struct: type[msgspec.Struct], where: str) -> None:
    known = struct.__struct_fields__
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: unknown key '{name}'; {_nearest(name, known)}")


def _check_names(raw: Mapping[str, Any], where: str) -> None:
    _refuse_unknown(raw, Config, where)
    kinds: tuple[tuple[str, type[msgspec.Struct]], ...] = (("credentials", Credential), ("nodes", Node))
    for name, struct in kinds:
        tables = raw.get(name, [])
        if not isinstance(tables, list | tuple):
            raise ConfigError(f"{where}: '{name}' is written as [[{name}]] tables")
        for position, table in enumerate(tables):
            if not isinstance(table, Mapping):
                raise ConfigError(f"{where}: '{name}' is written as [[{name}]] tables")
            _refuse_unknown(table, struct, f"{where}: [[{name}]] number {position + 1}")


def _read_file(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    _check_names(raw, path)
    return raw


def _environment_root(environ: Mapping[str, str]) -> Credential | None:
    user, password = environ.get(ROOT_USER_VARIABLE), environ.get(ROOT_PASSWORD_VARIABLE)
    if user is None and password is None:
        return None
    if not user or not password:
        raise ConfigError(f"set both {ROOT_USER_VARIABLE} and {ROOT_PASSWORD_VARIABLE}, or neither")
    return Credential(access_key=user, secret_key=password)


def load_config(path: str | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """The checked configuration from a TOML file, flags and environment.

    `flags` has the file's names; entries that are None are ignored, others override the file. `environ` defaults to the
    process's. Raises `ConfigError`.
    """
    raw = _read_file(path) if path else {}
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    _refuse_unknown(given, Config, "flags")
    raw.update(given)
    raw.setdefault("data_dirs", [])
    root = _environment_root(os.environ if environ is None else environ)
    try:
        config = msgspec.convert(raw, Config, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path or 'flags'}: {error}") from error
    return _complete(config, root)


def _complete(config: Config, root: Credential | None) -> Config:
    credentials = config.credentials
    if root is not None:
        credentials = (root, *(pair for pair in credentials if pair.access_key != root.access_key))
    data_dirs = tuple(str(Path(path).expanduser().absolute()) for path in config.data_dirs)
    _check_drives(data_dirs)
    _check_nodes(config)
    set_size = config.set_drive_count or default_set_size(len(data_dirs))
    parity = config.default_parity_count
    if parity is None:
        parity = default_parity(set_size)
    _check_geometry(len(data_dirs), set_size, parity)
    workers = config.workers or len(os.sched_getaffinity(0))
    config = msgspec.structs.replace(
        config,
        data_dirs=data_dirs,
        credentials=credentials or (Credential(BUILT_IN_KEY, BUILT_IN_KEY),),
        set_drive_count=set_size,
        default_parity_count=parity,
        workers=workers,
    )
    _check_credentials(config)
    _check_rest(config)
    return config


def _check_drives(data_dirs: tuple[str, ...]) -> None:
    if not data_dirs:
        raise ConfigError("no drives: name at least one folder, as PATH arguments or as data_dirs in the file")
    seen: dict[str, str] = {}
    for path in data_dirs:
        real = os.path.realpath(path)
        if real in seen:
            raise ConfigError(f"data_dirs: {path} and {seen[real]} are the same folder; each drive needs its own")
        seen[real] = path


def _check_nodes(config: Config) -> None:
    if len(config.nodes) > 1:
        raise ConfigError(
            f"[[nodes]]: {len(config.nodes)} nodes are listed; this version serves the drives of one machine. "
            "Keep this machine's entry only"
        )
    for node in config.nodes:
        if node.id != config.self_id:
            raise ConfigError(f"[[nodes]]: the only node has id {node.id}, but self_id is {config.self_id}")
        if node.disk_count is not None and node.disk_count != len(config.data_dirs):
            raise ConfigError(f"[[nodes]]: disk_count is {node.disk_count}, but data_dirs lists {len(config.data_dirs)} drives")


def _check_geometry(drive_count: int, set_size: int, parity: int) -> None:
    if not 1 <= set_size <= SET_DRIVES_MAX:
        raise ConfigError(f"set_drive_count: {set_size} is outside 1 to {SET_DRIVES_MAX}")
    if drive_count % set_size:
        raise ConfigError(f"set_drive_count: {drive_count} drives cannot be shared into sets of {set_size}")
    if not 0 <= parity <= set_size // 2:
        raise ConfigError(f"default_parity_count: {parity} is outside 0 to {set_size // 2}, half of a set of {set_size} drives")


def _check_credentials(config: Config) -> None:
    names = [pair.access_key for pair in config.credentials]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"[[credentials]]: access_key '{name}' is listed twice")
    for pair in config.credentials:
        if len(pair.access_key) < ACCESS_KEY_CHARS_MIN or not re.fullmatch(r"[!-.0-~]+", pair.access_key):
            raise ConfigError(
                f"credentials: access_key {pair.access_key!r} needs at least {ACCESS_KEY_CHARS_MIN} printable ASCII "
                "characters, without spaces and '/'"
            )
        if len(pair.secret_key) < SECRET_KEY_CHARS_MIN:
            raise ConfigError(f"credentials: the secret_key of '{pair.access_key}' is shorter than {SECRET_KEY_CHARS_MIN} characters")
    host, _ = config.address
    if config.uses_built_in_credentials and not is_loopback(host):
        raise ConfigError(
            f"s3_addr {config.s3_addr} can be reached from other machines, and no credentials are set: set "
            f"{ROOT_USER_VARIABLE} and {ROOT_PASSWORD_VARIABLE}, or [[credentials]] in the file, or listen on 127.0.0.1"
        )


def _check_rest(config: Config) -> None:
    if config.rpc_addr is not None:
        parse_address(config.rpc_addr, "rpc_addr")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", config.region):
        raise ConfigError(f"region: {config.region!r} is not a region name (small letters, digits and '-')")
    if not 1 <= config.workers <= 256:
        raise ConfigError(f"workers: {config.workers} is outside 1 to 256")
    if (config.tls_cert is None) != (config.tls_key is None):
        raise ConfigError("tls_cert and tls_key go together: set both or neither")
    if config.buffer_bytes < BUFFER_BYTES_MIN:
        raise ConfigError(f"buffer_memory: {config.buffer_memory!r} is less than {BUFFER_BYTES_MIN >> 20} MiB, too little to work")
    if config.unix_socket is not None and config.unix_socket != "off" and not config.unix_socket.startswith("/"):
        raise ConfigError(f"unix_socket: {config.unix_socket!r} is neither an absolute path nor 'off'")
    for domain in config.domains:
        if not re.fullmatch(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?", domain):
            raise ConfigError(f"domains: {domain!r} is not a host name in small letters, without port")


def warnings_of(config: Config) -> list[str]:
    """What an operator should know before the first byte is stored; one sentence each."""
    found = []
    if config.uses_built_in_credentials:
        found.append(
            f"the built-in credentials {BUILT_IN_KEY}/{BUILT_IN_KEY} are in use; set {ROOT_USER_VARIABLE} and "
            f"{ROOT_PASSWORD_VARIABLE} to keep others out"
        )
    if config.parity_count == 0:
        found.append("there is no parity: the loss of one drive loses data; give two or more drives to survive it")
    return found
