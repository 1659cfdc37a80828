"""The sections that every report ends with: the limits of the machine, and the machine."""

from __future__ import annotations

from forebay.bench.figures import median_of, show_rate, show_size
from forebay.bench.limits import Limits, LimitSample
from forebay.bench.report import Section, Table
from forebay.bench.result import Head

ABOVE_RATIO = 1.03  # what is measured further above its limit is pointed out


def limits_section(limits: Limits) -> Section:
    """What the machine can do, and how much that moved while the run lasted."""
    samples = limits.samples
    rows = [
        _row("direct write", [s.direct_write_bytes_per_s for s in samples], [s.direct_write_cpu_s_per_gib for s in samples]),
        _row("direct read", [s.direct_read_bytes_per_s for s in samples], [s.direct_read_cpu_s_per_gib for s in samples]),
        _row("loopback TCP", [s.loopback_bytes_per_s for s in samples], [s.loopback_cpu_s_per_gib for s in samples]),
    ]
    text = (
        f"{limits.threads} threads, {show_size(limits.block_bytes)} blocks, O_DIRECT, one file each, fdatasync at the end, "
        f"in {limits.folder} ({limits.filesystem_type}); one loopback connection. {len(samples)} samples spread over the run."
    )
    return Section("The limits of this machine", [text], [Table(["limit", "median", "lowest", "highest", "CPU-s/GiB"], rows)])


def unsteady(samples: list[LimitSample]) -> str | None:
    """A warning when the disk's own speed moved by more than a quarter during the run."""
    if len(samples) < 2:
        return None
    for name in ("direct_write_bytes_per_s", "direct_read_bytes_per_s"):
        values = [getattr(sample, name) for sample in samples]
        if max(values) > 1.25 * min(values):
            what = name.removesuffix("_bytes_per_s").replace("_", " ")
            return (
                f"The {what} limit moved from {show_rate(min(values))} to {show_rate(max(values))} during the run: ratios to it are rough."
            )
    return None


def above_limit(names: list[str]) -> str | None:
    """A warning about figures above the limit they are compared with: the machine was not the same while it was measured."""
    if not names:
        return None
    return f"Above the measured limit: {', '.join(names)}. The disk was faster then than while its limit was measured."


def machine_section(head: Head, facts: list[tuple[str, str]]) -> Section:
    """The host, the versions, and what the benchmark knows besides (`facts`)."""
    machine = head.machine
    rows = [[name, value] for name, value in facts]
    rows += [
        ["CPU", f"{machine.cpu}, {machine.cores} cores usable"],
        ["memory", show_size(machine.memory_bytes)],
        ["kernel", machine.kernel],
        ["Python", machine.python],
    ]
    for filesystem in machine.filesystems:
        place = f"{filesystem.type} on {filesystem.device}, {show_size(filesystem.free_bytes)} free"
        rows.append([f"filesystem of {filesystem.folder}", place])
    rows.append(["Forebay", head.forebay_version])
    rows += [[name, version] for name, version in sorted(machine.versions.items())]
    rows += [["started", head.started_at], ["took", f"{head.seconds:.0f} s"], ["command", head.command]]
    return Section("The machine and the run", [], [Table(["what", "fact"], rows, text_columns=2)])


def _row(name: str, rates: list[float], cpu_s_per_gib: list[float]) -> list[str]:
    return [name, show_rate(median_of(rates)), show_rate(min(rates)), show_rate(max(rates)), f"{median_of(cpu_s_per_gib):.3f}"]
