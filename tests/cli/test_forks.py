"""The forks in which tests run commands and programs (``tests/makers/command.py``)."""

from __future__ import annotations

from pathlib import Path

from tests.makers.command import run_program


def test_a_program_has_its_arguments_folder_and_code(tmp_path: Path) -> None:
    code = "import sys, os; print(sys.argv, __name__, os.getcwd()); sys.exit(3)"
    done = run_program(code, 1, "b", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"['-c', '1', 'b'] __main__ {tmp_path}\n", "")
    done = run_program("raise ValueError('wrong')")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: wrong\n")
