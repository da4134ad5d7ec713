"""The command line in a shell: what it completes, and where it has colours."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.internals import ENCODINGS, FORMATS, SOURCES
from tests.makers.command import COMMAND, run
from tests.makers.datasets import make_folder

ROOT = Path(__file__).parents[2]
ESCAPE = "\x1b["


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with ``packstore``, as an installation puts it on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "packstore"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m packstore "$@"\n')
    program.chmod(0o755)
    return folder


def completed(programs: Path, *words: str) -> list[str]:
    """What bash proposes for the last of ``words``."""
    typed = " ".join(f"'{word}'" for word in ("packstore", *words))
    script = (
        'eval "$(packstore completion bash)"\n'
        "complete -p packstore | grep -q _packstore_completion || exit 9\n"
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}\n"
        "_packstore_completion packstore\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.sampled(5, fast=1)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["con"], ["convert"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["convert", "--shard"], ["--shard-size"]),
        (["convert", "--encoding", ""], list(ENCODINGS)),
        (["convert", "--format", ""], list(FORMATS)),
        (["verify", "a.lmdb", "--source", ""], list(SOURCES)),
        (["app"], ["append"]),
        (["merge", "--on-duplicate", "s"], ["skip"]),
        (["select", "--strat"], ["--stratify"]),
        (["convert", "--check", "d"], ["decode"]),
        (["guide", "pack"], ["packing"]),
    ],
)
def test_bash_completes(programs: Path, words: list[str], expected: list[str]) -> None:
    assert completed(programs, *words) == expected


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells(shell: str) -> None:
    done = run("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_PACKSTORE_COMPLETE" in done.stdout
    if shutil.which(shell) is not None:
        check = subprocess.run([shell, "-n"], input=done.stdout, capture_output=True, text=True, check=False)
        assert (check.returncode, check.stderr) == (0, "")
    assert f"packstore completion {shell} >" in run("completion", "--help").stdout


def in_terminal(*arguments: object, **environment: str) -> str:
    """What a command writes to a terminal, on standard output and error."""
    terminal, side = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
        env=inherited | {"TERM": "xterm", "PYTHONPATH": str(ROOT)} | environment,
    )
    os.close(side)
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # Linux says EIO when the other side has closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    process.wait(timeout=120)
    return shown.decode()


@pytest.mark.slow
def test_colours_in_a_terminal(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", splits=())
    (tmp_path / "photos" / "bee" / "bad.jpg").write_bytes(b"")
    packed = in_terminal("convert", tmp_path / "photos", tmp_path / "a.h5", "--on-error", "skip")
    assert re.search(r"\x1b\[1m12\s+records\x1b\[0m", packed)  # a long path may end the line between them
    assert re.search(r"\x1b\[33m.*skipped\x1b\[0m", packed)
    assert "\x1b[1mundamaged\x1b[0m" in in_terminal("verify", tmp_path / "a.h5")
    assert re.search(r"\x1b\[31m.*packstore: error:\x1b\[0m .*nowhere", in_terminal("info", "nowhere"))
    assert re.search(r"\x1b\[31m.*Error:\x1b\[0m No such command", in_terminal("nothing"))


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_they_are_not_wanted(tmp_path: Path, environment: dict[str, str]) -> None:
    make_folder(tmp_path / "photos", splits=())
    for arguments in (["-q", tmp_path / "photos"], [tmp_path / "photos"]):
        packed = in_terminal("convert", *arguments, tmp_path / "a.h5", "--overwrite", **environment)
        assert not re.search(r"\x1b\[[0-9;]*m", packed)
    assert ESCAPE not in in_terminal("verify", "-q", tmp_path / "a.h5", **environment)
    for failing in (["info", "nowhere"], ["nothing"]):
        assert ESCAPE not in in_terminal(*failing, **environment)


@pytest.mark.slow
def test_no_colours_in_pipes(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", splits=())
    for arguments in (
        ["convert", tmp_path / "photos", tmp_path / "a.h5"],
        ["verify", tmp_path / "a.h5"],
        ["info", "no"],
    ):
        done = run(*arguments)
        assert ESCAPE not in done.stdout + done.stderr
