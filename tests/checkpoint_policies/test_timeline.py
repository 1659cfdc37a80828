"""Timelines: totals, the table, Perfetto's format, and that each save and load leaves one."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np

import forebay
from forebay.checkpoint.timeline import RECENT_MAX, SPANS_MAX, Timeline


def test_totals_over_threads() -> None:
    timeline = Timeline(3)
    timeline.add("upload", "a", 1.0, 2.0, 100)
    thread = threading.Thread(target=timeline.add, args=("upload", "b", 2.0, 3.0, 50), name="part-1")
    thread.start()
    thread.join()
    timeline.add("plan", "", 0.0, 0.5)
    totals = timeline.totals()
    assert list(totals) == ["plan", "upload"]
    upload = totals["upload"]
    assert (upload.count, upload.busy_s, upload.elapsed_s, upload.size_bytes) == (2, 5.0, 4.0, 150)


def test_perfetto_has_a_row_a_thread_and_microseconds() -> None:
    timeline = Timeline(3)
    timeline.add("upload", "h0", 0.5, 0.25, 100)
    thread = threading.Thread(target=timeline.add, args=("read", "", 1.0, 1.0, 7), name="reader")
    thread.start()
    thread.join()
    document = json.loads(timeline.perfetto())
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    names = {event["tid"]: event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M"}
    assert [(e["name"], e["pid"], e["ts"], e["dur"], e["args"]["bytes"]) for e in complete] == [
        ("upload h0", 3, 500_000.0, 250_000.0, 100), ("read", 3, 1_000_000.0, 1_000_000.0, 7),
    ]  # fmt: skip
    assert [names[event["tid"]] for event in complete] == ["MainThread", "reader"]


def test_spans_are_bounded_and_totals_go_on() -> None:
    timeline = Timeline()
    for _ in range(SPANS_MAX + 10):
        timeline.add("s", "", 0.0, 1.0, 1)
    assert len(timeline.spans()) == SPANS_MAX and timeline.totals()["s"].size_bytes == SPANS_MAX + 10


def test_a_span_that_raises_is_recorded() -> None:
    timeline = Timeline()
    try:
        with timeline.span("commit"):
            raise ValueError
    except ValueError:
        pass
    assert timeline.totals()["commit"].count == 1


def test_each_save_and_load_leaves_one(tmp_path: Path) -> None:
    tree = {"w": np.arange(300_000, dtype=np.float32)}
    for step in range(RECENT_MAX):
        forebay.save(tree, tmp_path, step=step)
    forebay.load(tmp_path)
    kept = forebay.timelines()
    assert len(kept) == RECENT_MAX
    assert kept[-1].what == f"load {tmp_path}/step-{RECENT_MAX - 1:08d}" and kept[-2].what == f"save {tmp_path}/step-{RECENT_MAX - 1:08d}"
    saved, loaded = kept[-2].totals(), kept[-1].totals()
    assert {"plan", "upload", "commit"} <= set(saved) and saved["upload"].size_bytes >= 1_200_000
    assert {"match", "read", "checksum"} <= set(loaded) and loaded["read"].size_bytes >= 1_200_000
    table = kept[-1].text().splitlines()
    assert table[0].startswith("load ") and table[1].split()[:2] == ["stage", "spans"] and any(line.startswith("read") for line in table)
