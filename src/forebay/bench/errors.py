"""The one exception of the benchmarks."""

from __future__ import annotations

from forebay.errors import ForebayError


class BenchmarkFailed(ForebayError):  # noqa: N818 - said as people say it
    """An option, a client, a server or a measurement is wrong; nothing is reported as measured."""
