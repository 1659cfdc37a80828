"""The exact-resume examples: killed with -9 at a random moment, resumed on another number of workers, the same to the last bit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.timeout(300)  # compilers and imports, three times; on a busy machine they take their time
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_exact_resume(tmp_path: Path, framework: str) -> None:
    plot = tmp_path / "curves.svg"
    command = [sys.executable, str(EXAMPLES / f"exact_resume_{framework}.py"), "--steps", "30", "--kills", "1", "--plot", str(plot)]
    command += ["--folder", str(tmp_path / "logs")]
    example = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        out, _ = example.communicate(timeout=280)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(example.pid, signal.SIGKILL)  # its workers too
    assert example.returncode == 0, out
    losses = re.search(r"the same to the last bit: (\d+) losses of 30 steps", out)
    assert losses is not None and "killed with -9" in out and int(losses[1]) >= 30, out
    assert b"<svg" in plot.read_bytes()


def test_a_difference_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import exact_resume

    job = exact_resume.Job("test", "", (1,), processes=False)
    calm, disturbed = tmp_path / "calm.log", tmp_path / "disturbed.log"
    calm.write_text("".join(f"{step} {float(step).hex()}\n" for step in (1, 2, 3)))
    disturbed.write_text(calm.read_text() + "3 0x1.8000000000000p+1\n3 0x1.8")
    assert exact_resume.verdict(job, calm, disturbed, 3, [(0, 1)])
    disturbed.write_text(calm.read_text().replace("3 0x1.8000000000000p+1", "3 0x1.8000000000001p+1"))
    assert not exact_resume.verdict(job, calm, disturbed, 3, [(0, 1)])
    assert "first at step 3" in capsys.readouterr().out
    disturbed.write_text("".join(calm.read_text().splitlines(keepends=True)[:2]))
    assert not exact_resume.verdict(job, calm, disturbed, 3, [(0, 1)]), "a step is missing"
