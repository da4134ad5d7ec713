"""A disk on which writing fails from any system call on: one error that names the destination, for every operation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.makers.failing_operations import EXPORTS, STORES

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")
REASONS = ("No space left on device", "Input/output error", "Disk quota exceeded", "Read-only file system",
           "No usable temporary directory found")  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*STORES, *EXPORTS])
def test_writing_fails_from_any_call_on(tmp_path: Path, need: Any, name: str) -> None:
    """In the default run, from every fifth call on."""
    need("cc", shutil.which("cc") is not None and sys.platform == "linux")
    command = [sys.executable, "-m", "tests.makers.failing_calls", tmp_path, name, "5", ",".join(ERRORS)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes: dict[str, int] = json.loads(done.stdout)
    assert outcomes.pop("done") >= 1
    assert sum(outcomes.values()) >= 3
    for outcome in outcomes:
        assert outcome.startswith(f"DestinationError: cannot write {tmp_path}"), outcome
        assert any(reason in outcome for reason in REASONS), outcome
