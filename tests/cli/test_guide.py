"""``packstore guide``: the pages in a terminal's pager, and as plain text."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import packstore

COMMAND = [sys.executable, "-m", "packstore", "guide"]
PAGES = {path.stem: path for path in (Path(packstore.__file__).parent / "guide").glob("*.md")}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_without_a_topic_it_lists_all_pages_with_their_summaries() -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line[0] != " "] == sorted(PAGES)
    assert max(map(len, done.stdout.splitlines())) <= 80
    for path in PAGES.values():
        title, summary, *_ = path.read_text("utf-8").split("\n\n")
        assert title.startswith("# "), path
        assert " ".join(summary.split()) in " ".join(done.stdout.split()), path


@pytest.mark.parametrize("topic", PAGES)
def test_a_page_is_printed_as_it_is(topic: str) -> None:
    done = run(topic)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == PAGES[topic].read_text("utf-8").rstrip("\n")


def test_a_terminal_gets_a_pager(tmp_path: Path) -> None:
    (tmp_path / "pager").write_text(f'#!/bin/sh\necho "paged by $0"\ncat > {tmp_path}/seen\n')
    (tmp_path / "pager").chmod(0o755)
    master, slave = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "packing"],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, "PAGER": str(tmp_path / "pager"), "TERM": "xterm"},
        check=False,
    )
    os.close(slave)
    os.close(master)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "seen").read_text("utf-8").rstrip() == PAGES["packing"].read_text("utf-8").rstrip()


def test_an_unknown_topic_is_wrong_usage_and_lists_the_pages() -> None:
    done = run("cooking")
    assert done.returncode == 2
    assert "Usage:" in done.stderr
    assert f"no page about 'cooking'; pages: {', '.join(sorted(PAGES))}" in done.stderr
    assert run("../../README").returncode == 2
