"""`python -m forebay.server [--config FILE] [--address HOST:PORT] [--workers N] [--parity M] PATH…`: a server without the CLI."""

from __future__ import annotations

import argparse
import sys

from forebay.errors import ConfigError
from forebay.server import load_config, run


def main() -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m forebay.server")
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--config")
    parser.add_argument("--address")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--parity", type=int)
    parser.add_argument("--region")
    given = parser.parse_args()
    flags = {
        "data_dirs": given.paths or None,
        "s3_addr": given.address,
        "workers": given.workers,
        "default_parity_count": given.parity,
        "region": given.region,
    }
    try:
        config = load_config(given.config, flags)
    except ConfigError as error:
        print(f"forebay: {error}", file=sys.stderr)
        return 2
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
