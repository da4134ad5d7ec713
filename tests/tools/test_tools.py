"""The scripts under tools/ and what surrounds them, without a network: pip, apt-get and Python are stand-ins here."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("tools/packstore", "tools/test", "tools/lib.sh", ".ci/run")

NATIVE = "packstore/images/seekable/_native.c"

# Stands in for Python: notes what it is asked, pretends to make environments and to install; else it is Python.
FAKE_PYTHON = """#!/usr/bin/env bash
case "$1 $2" in
'-m venv')
    echo "venv" >>"$FAKE_LOG"
    mkdir -p "$3/bin" && cp "${FAKE_SELF:-$0}" "$3/bin/python"
    ;;
'-m pip')
    [[ $3 == --version ]] && exit
    echo "pip ${*:4}" >>"$FAKE_LOG"
    [[ ! -e $FAKE_HANG ]] || sleep 60
    [[ ! -e $FAKE_FAIL ]] || exit 1
    printf '#!/bin/sh\\necho "ran:$*"\\n' >"${0%/*}/packstore"
    chmod +x "${0%/*}/packstore"
    ;;
*ensurepip*)
    [[ ! -e $FAKE_NO_VENV ]]
    ;;
*)
    exec "$REAL_PYTHON" "$@"
    ;;
esac
"""


# What the scripts call. Nothing else is in PATH: no other Python, no apt-get, no sudo.
COMMANDS = (
    *("bash", "sh", "cat", "chmod", "cp", "env", "find", "grep", "id", "ls", "mkdir", "mktemp", "readlink", "rm"),
    *("sleep", "tail", "timeout", "touch", "true", "uname"),
)


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Clone:
    """A copy of what the tools need, in a path with blanks, with stand-ins first in PATH."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "a clone"
        self.bin = tmp_path / "bin"
        self.log = tmp_path / "log"
        self.hang, self.fail, self.no_venv = (tmp_path / name for name in ("hang", "fail", "no-venv"))
        for file in (*SCRIPTS, "tools/constraints.txt", "pyproject.toml", NATIVE):
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, self.root / file)
        self.root = self.root.resolve()
        self.venv = self.root / ".venv"
        self.log.touch()
        executable(self.bin / "python3", FAKE_PYTHON)
        system = tmp_path / "system"
        system.mkdir()
        for name in COMMANDS:
            command = shutil.which(name)
            assert command is not None, name
            (system / name).symlink_to(command)
        self.env = {
            "PATH": f"{self.bin}:{system}",
            "HOME": str(tmp_path),
            "PACKSTORE_NO_SYSTEM_PACKAGES": "1",
            "REAL_PYTHON": sys.executable,
            "FAKE_LOG": str(self.log),
            "FAKE_HANG": str(self.hang),
            "FAKE_FAIL": str(self.fail),
            "FAKE_NO_VENV": str(self.no_venv),
        }

    def start(self, *arguments: str, script: Path | None = None, **env: str) -> subprocess.Popen[str]:
        command = [str(script or self.root / "tools" / "packstore"), *arguments]
        return subprocess.Popen(
            command,
            env={**self.env, **env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, script: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, script=script, **env) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ok(self, *arguments: str, script: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        run = self.run(*arguments, script=script, **env)
        assert run.returncode == 0, run.stderr
        assert run.stdout == f"ran:{' '.join(arguments)}\n"
        return run

    def steps(self) -> list[str]:
        """What Python was asked to do since the last call: ``venv``, ``pip …``."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return lines

    def wait_for(self, step: str) -> None:
        deadline = time.monotonic() + 30
        while not any(line.startswith(step) for line in self.log.read_text().splitlines()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


PIP = "pip --no-input --use-pep517 --quiet -c tools/constraints.txt -e ."


# --- the scripts as text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_can_read_it(script: str) -> None:
    subprocess.run(["bash", "-n", ROOT / script], check=True)


@pytest.mark.parametrize("script", [s for s in SCRIPTS if not s.endswith(".sh")])
def test_it_is_executable(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in (ROOT / script).read_text()


def test_ci_runs_what_developers_run() -> None:
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    assert lines[-1] == "exec ./tools/test"
    assert len(lines) == 3


def test_shellcheck_is_content() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    run = subprocess.run([shellcheck, "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


# --- tools/packstore --------------------------------------------------------------------------------------------------


def test_the_first_use_installs_and_the_next_only_runs(clone: Clone) -> None:
    first = clone.ok("convert", "a", "b")
    assert "This takes a few minutes the first time" in first.stderr
    assert clone.steps() == ["venv", PIP]
    assert clone.ok("info").stderr == ""
    assert clone.steps() == []


def test_arguments_and_exit_code_pass_through(clone: Clone) -> None:
    clone.ok()
    executable(clone.venv / "bin" / "packstore", '#!/bin/sh\nprintf "<%s>" "$@"\ncat\nexit 3\n')
    run = clone.run("a b", "", "*", "$HOME")
    assert (run.returncode, run.stdout, run.stderr) == (3, "<a b><><*><$HOME>", "")


def test_through_a_link(clone: Clone, tmp_path: Path) -> None:
    link, relative = tmp_path / "links" / "packstore", tmp_path / "links" / "again"
    link.parent.mkdir()
    link.symlink_to(clone.root / "tools" / "packstore")
    relative.symlink_to("packstore")
    clone.ok("1", script=link)
    clone.ok("2", script=relative)
    assert clone.steps() == ["venv", PIP]


@pytest.mark.parametrize("file", ["pyproject.toml", "tools/constraints.txt", NATIVE])
def test_a_change_of_what_it_depends_on_installs_again(clone: Clone, file: str) -> None:
    clone.ok()
    clone.steps()
    with (clone.root / file).open("a") as out:
        out.write("\n# changed\n")
    clone.ok()
    assert clone.steps() == [PIP]
    clone.ok()
    assert clone.steps() == []


def test_a_compiler_that_comes_later_compiles(clone: Clone) -> None:
    clone.ok()
    clone.steps()
    executable(clone.bin / "gcc", "#!/bin/sh\n")
    clone.ok()
    assert clone.steps() == [PIP]
    clone.ok()
    assert clone.steps() == []


def test_a_failed_first_use_is_done_again(clone: Clone) -> None:
    clone.fail.touch()
    run = clone.run()
    assert run.returncode == 1
    assert "pip could not install packstore" in run.stderr
    assert clone.steps() == ["venv", PIP]
    clone.fail.unlink()
    clone.ok()
    assert clone.steps() == ["venv", PIP]


def test_a_failed_update_keeps_the_environment(clone: Clone) -> None:
    clone.ok()
    (clone.venv / "mark").touch()
    (clone.root / "pyproject.toml").write_text("changed")
    clone.fail.touch()
    assert clone.run().returncode == 1
    clone.fail.unlink()
    clone.steps()
    clone.ok()
    assert clone.steps() == [PIP]
    assert (clone.venv / "mark").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_first_use_ends_at_once_and_is_done_again(clone: Clone, number: signal.Signals) -> None:
    clone.hang.touch()
    with clone.start() as process:
        clone.wait_for("pip")
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == -number
    assert "interrupted" in err
    clone.hang.unlink()
    clone.steps()
    run = clone.ok()
    assert "making .venv anew: the last installation did not finish" in run.stderr
    assert clone.steps() == ["venv", PIP]


def test_a_killed_first_use_is_done_again_and_its_pip_is_waited_for(clone: Clone, tmp_path: Path) -> None:
    clone.hang.touch()
    process = clone.start()
    clone.wait_for("pip")
    process.kill()
    process.wait()
    clone.hang.unlink()
    with process, clone.start("next") as following:
        assert following.stderr is not None
        assert "another run is installing" in following.stderr.readline()
        assert following.poll() is None
        # pip in the killed run's name: it holds the lock until it ends. The stand-in sleeps, so it is ended by hand.
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
                cwd = Path(f"/proc/{pid}/cwd").readlink()
            except OSError:
                continue
            if cwd == clone.root and int(pid) != following.pid and b"60" in arguments.split(b"\0"):
                os.kill(int(pid), signal.SIGKILL)
        out, err = following.communicate(timeout=30)
    assert (following.returncode, out) == (0, "ran:next\n"), err


def test_two_first_uses_at_once_install_once(clone: Clone) -> None:
    runs = [clone.start(str(i)) for i in range(4)]
    for i, run in enumerate(runs):
        with run:
            out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, f"ran:{i}\n"), err
    assert clone.steps() == ["venv", PIP]


def test_a_moved_clone_gets_a_new_environment(clone: Clone) -> None:
    clone.ok()
    clone.steps()
    moved = clone.root.rename(clone.root.with_name("moved"))
    run = clone.ok(script=moved / "tools" / "packstore")
    assert "making .venv anew: it was made in" in run.stderr
    assert clone.steps() == ["venv", PIP]


def test_an_environment_whose_python_is_gone_is_made_anew(clone: Clone) -> None:
    clone.ok()
    clone.steps()
    (clone.venv / "bin" / "python").unlink()
    clone.ok()
    assert clone.steps() == ["venv", PIP]


def test_somebody_elses_environment_is_used(clone: Clone) -> None:
    executable(clone.venv / "bin" / "python", FAKE_PYTHON)
    (clone.venv / "theirs").touch()
    clone.ok()
    assert clone.steps() == [PIP]
    assert (clone.venv / "theirs").exists()


def test_somebody_elses_broken_environment_is_not_deleted(clone: Clone) -> None:
    clone.venv.mkdir()
    (clone.venv / "theirs").touch()
    run = clone.run()
    assert run.returncode == 1
    assert "packstore did not make it, so it does not delete it" in run.stderr
    assert [p.name for p in clone.venv.iterdir()] == ["theirs"]


def test_in_an_activated_environment_another_python_makes_it_anew(clone: Clone) -> None:
    clone.ok()
    shutil.copy2(clone.venv / "bin" / "python", clone.venv / "bin" / "python3")
    (clone.venv / "packstore-installing").touch()
    clone.steps()
    clone.ok(PATH=f"{clone.venv}/bin:{clone.env['PATH']}", FAKE_SELF=str(clone.bin / "python3"))
    assert clone.steps() == ["venv", PIP]


def test_no_python(clone: Clone) -> None:
    old = "#!/bin/sh\ncase $2 in *version_info*) exit 1;; *) echo 3.9.2;; esac\n"
    run = clone.run(PACKSTORE_PYTHON="no-such-python")
    assert run.returncode == 1
    assert "Python 3.11 or newer is needed and none was found (no Python that runs" in run.stderr
    executable(clone.bin / "old-python", old)
    run = clone.run(PACKSTORE_PYTHON="old-python")
    assert run.returncode == 1
    assert "old-python is 3.9.2" in run.stderr
    assert not clone.venv.exists()


def test_a_python_that_does_not_run_is_passed_over(clone: Clone) -> None:
    (clone.bin / "python3").rename(clone.bin / "python3.12")
    executable(clone.bin / "python3", "#!/bin/sh\necho 'shim: no version is set' >&2\nexit 127\n")
    run = clone.ok(FAKE_SELF=str(clone.bin / "python3.12"))
    assert "shim" not in run.stderr
    assert clone.steps() == ["venv", PIP]


def test_python_without_venv(clone: Clone) -> None:
    clone.no_venv.touch()
    run = clone.run()
    assert run.returncode == 1
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    assert "its modules venv and ensurepip are missing. On Debian or Ubuntu run this as root" in run.stderr
    assert f"apt-get install {package}" in run.stderr
    assert not clone.venv.exists()


def test_further_arguments_for_pip(clone: Clone) -> None:
    clone.ok(PACKSTORE_PIP_ARGS="--extra-index-url file:///somewhere  --prefer-binary")
    assert clone.steps()[1] == PIP.replace("-c", "--extra-index-url file:///somewhere --prefer-binary -c")


# --- the system's packages --------------------------------------------------------------------------------------------


class Debian:
    """Stand-ins for apt-get and the like; ``installed`` is what dpkg-query knows."""

    def __init__(self, clone: Clone) -> None:
        self.clone = clone
        self.log = clone.bin.parent / "apt log"
        self.log.touch()
        self.installed = clone.bin.parent / "installed"
        self.installed.mkdir()
        del clone.env["PACKSTORE_NO_SYSTEM_PACKAGES"]
        clone.env["APT_LOG"], clone.env["INSTALLED"] = str(self.log), str(self.installed)
        executable(clone.bin / "dpkg-query", '#!/bin/sh\nfor p; do :; done; [ -e "$INSTALLED/$p" ] && echo installed\n')
        executable(clone.bin / "id", "#!/bin/sh\necho ${FAKE_UID:-0}\n")
        executable(clone.bin / "sudo", '#!/bin/sh\n[ "$1" = -n ] && [ -n "$MAY_SUDO" ] && shift && exec "$@"\nexit 1\n')
        self.apt("exit 0")

    def apt(self, script: str) -> None:
        note = 'while [ "${1#-}" != "$1" ]; do shift 2; done\necho "$* $DEBIAN_FRONTEND" >>"$APT_LOG"\n'
        executable(self.clone.bin / "apt-get", f"#!/bin/sh\n{note}{script}\n")

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def debian(clone: Clone) -> Debian:
    return Debian(clone)


INSTALL = "install -y --no-install-recommends"


def test_root_installs_what_is_missing_once(clone: Clone, debian: Debian) -> None:
    (debian.installed / "libjpeg-turbo-progs").touch()
    run = clone.ok()
    assert "installing the Debian packages libturbojpeg0 ..." in run.stderr
    assert "works without" not in run.stderr
    assert debian.calls() == [f"{INSTALL} libturbojpeg0 noninteractive"]
    (clone.root / "pyproject.toml").write_text("changed")
    clone.ok()
    assert len(debian.calls()) == 1


def test_nothing_is_done_where_all_is_installed(clone: Clone, debian: Debian) -> None:
    for name in ("libturbojpeg", "libjpeg-turbo-progs"):
        (debian.installed / name).touch()
    assert "Debian" not in clone.ok().stderr
    assert debian.calls() == []


def test_package_lists_are_fetched_when_needed(clone: Clone, debian: Debian) -> None:
    debian.apt('[ "$1" = update ] && touch "$INSTALLED/lists"; [ -e "$INSTALLED/lists" ]')
    assert "works without" not in clone.ok().stderr
    both = f"{INSTALL} libturbojpeg0 libjpeg-turbo-progs noninteractive"
    assert debian.calls() == [both, "update noninteractive", both]


def test_ubuntu_has_another_name(clone: Clone, debian: Debian) -> None:
    debian.apt('case "$*" in *libturbojpeg0*) exit 100;; esac')
    assert "works without" not in clone.ok().stderr
    assert debian.calls()[-1] == f"{INSTALL} libturbojpeg libjpeg-turbo-progs noninteractive"


def test_sudo_is_used_when_it_asks_nothing(clone: Clone, debian: Debian) -> None:
    assert "works without" not in clone.ok(FAKE_UID="1000", MAY_SUDO="1").stderr
    assert len(debian.calls()) == 1


def test_who_may_not_is_told_and_goes_on(clone: Clone, debian: Debian) -> None:
    err = clone.ok(FAKE_UID="1000").stderr
    assert "libturbojpeg0 libjpeg-turbo-progs were not installed (it takes Debian or Ubuntu, and root or sudo" in err
    assert "packstore works without them, through simplejpeg and Pillow." in err
    assert debian.calls() == []


def test_a_failure_is_told_and_goes_on(clone: Clone, debian: Debian) -> None:
    debian.apt('echo "E: Unable to locate package" >&2; exit 100')
    err = clone.ok().stderr
    assert "were not installed (apt-get failed: E: Unable to locate package). packstore works without them" in err


def test_a_missing_venv_module_is_installed(clone: Clone, debian: Debian) -> None:
    clone.no_venv.touch()
    debian.apt('case "$*" in *-venv*) rm -f "$FAKE_NO_VENV";; esac')
    clone.ok()
    assert debian.calls()[0].startswith(f"{INSTALL} python3.")


# --- tools/test -------------------------------------------------------------------------------------------------------


def test_tools_test_runs_each_step_and_stops_at_the_first_failure(clone: Clone) -> None:
    script = clone.root / "tools" / "test"
    clone.ok()
    clone.steps()
    note = '#!/bin/sh\necho "${0##*/} $*" >>"$FAKE_LOG"\n[ "${0##*/}" != "$BROKEN" ]\n'
    for name in ("ruff", "mypy"):
        executable(clone.venv / "bin" / name, note)
    executable(clone.bin / "shellcheck", note)
    real = clone.bin.parent / "real"
    executable(real, '#!/bin/sh\n[ "$1" = -c ] && exec "$REAL" "$@"\necho "python $*" >>"$FAKE_LOG"\n')
    env = {"REAL_PYTHON": str(real), "REAL": sys.executable, "PACKSTORE_TEST_TURBOJPEG3": "there"}
    run = clone.run("-k", "a b", script=script, **env)
    assert run.returncode == 0, run.stderr
    steps = ["ruff check .", "ruff format --check .", "mypy ", f"shellcheck -x {' '.join(SCRIPTS)}"]
    assert clone.steps() == [PIP.replace(" .", " .[test]"), *steps, "python -m pytest -k a b"]
    assert "== ruff format --check .\n== mypy\n" in run.stderr
    assert clone.run(script=script, BROKEN="mypy", **env).returncode != 0
    assert clone.steps() == steps[:3]
    # What the test extra brought covers the plain installation too.
    clone.ok()
    assert clone.steps() == []


def test_tools_test_takes_libjpeg_turbo_3_once_or_goes_on_without(clone: Clone) -> None:
    script = clone.root / "tools" / "test"
    clone.ok()
    for name in ("ruff", "mypy"):
        executable(clone.venv / "bin" / name, "#!/bin/sh\n")
    executable(clone.bin / "shellcheck", "#!/bin/sh\n")
    real = clone.bin.parent / "real"
    note = 'echo "python $* $PACKSTORE_TEST_TURBOJPEG3" >>"$FAKE_LOG"'
    executable(real, f'#!/bin/sh\n[ "$1" = -c ] && exec "$REAL" "$@"\n[ "$2" != zipfile ] || exit 1\n{note}\n')
    env = {"REAL_PYTHON": str(real), "REAL": sys.executable}
    run = clone.run(script=script, **env)
    assert run.returncode == 0, run.stderr
    assert "libjpeg-turbo 3 was not fetched (see above): the tests that need it are skipped" in run.stderr
    steps = clone.steps()
    assert re.fullmatch(r"pip .*-c tools/constraints\.txt -d .*/\.venv/turbojpeg3 turbojpeg", steps[-2])
    assert steps[-1] == "python -m pytest "
    library = clone.venv / "turbojpeg3" / "turbojpeg.libs" / "libturbojpeg-1.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert clone.run(script=script, **env).returncode == 0
    assert clone.steps() == [f"python -m pytest {library}"]


# --- the repository ---------------------------------------------------------------------------------------------------


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    return [r for r in map(Requirement, lines) if r.name != "packstore"]


def constraints() -> dict[str, Requirement]:
    lines = (ROOT / "tools" / "constraints.txt").read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert len({canonical(r.name) for r in found}) == len(found)
    return {canonical(r.name): r for r in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned_within_its_range() -> None:
    pinned = constraints()
    for requirement in requirements():
        pin = pinned[canonical(requirement.name)]
        assert re.fullmatch(r"==[0-9.]+", str(pin.specifier)), pin
        assert requirement.specifier.contains(str(pin.specifier)[2:]), f"{pin} is not in {requirement}"


def test_what_the_dependencies_need_is_pinned_too() -> None:
    """Walks the installed packages' own requirements, those of a CUDA build of torch aside."""
    from importlib.metadata import PackageNotFoundError, requires

    pinned = constraints()
    missing, seen = set(), set()
    todo = [canonical(r.name) for r in requirements()]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        if name not in pinned:
            missing.add(name)
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(canonical(requirement.name))
    assert not {n for n in missing if not n.startswith(("nvidia-", "cuda-", "triton"))}


def tracked() -> list[str]:
    run = subprocess.run(["git", "ls-files", "-c"], cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        pytest.skip("not a git repository")
    return run.stdout.splitlines()


def test_the_top_level_is_fixed() -> None:
    top = {name.split("/")[0] for name in tracked()}
    allowed = {"pyproject.toml", "packstore", "tests", "tools", "README.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= allowed


def test_the_readme_opens_with_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for command in ("./tools/packstore", "./tools/test"):
        assert command in readme


def test_the_licence() -> None:
    assert "Copyright (c) 2026 The packstore authors" in (ROOT / "LICENSE").read_text("utf-8")
