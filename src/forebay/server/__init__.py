"""Processes, the HTTP wire, S3 handlers, configuration, admin API, metrics.

`load_config(path, flags)` gives a checked `Config`; `run(config)` serves until SIGTERM or SIGINT and returns an exit code.
"""

from forebay.server.config import Config, load_config
from forebay.server.supervisor import run

__all__ = ["Config", "load_config", "run"]
