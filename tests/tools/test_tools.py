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
SCRIPTS = ("tools/packstore", "tools/test", "tools/wheel", "tools/arm", "tools/lib.sh", ".ci/run")

NATIVE = "packstore/images/engine/core/base.h"
SOURCES = ("pyproject.toml", "tools/constraints.txt", "tools/build_backend.py", NATIVE)

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
    echo "WARNING: noise of pip" >&2
    [[ ! -e $FAKE_DIR/hang ]] || exec sleep 60
    [[ ! -e $FAKE_DIR/fail ]] || exit 1
    printf '#!/bin/sh\necho "ran:$*"\n' >"${0%/*}/packstore"
    chmod +x "${0%/*}/packstore"
    ;;
*ensurepip*)
    [[ ! -e $FAKE_DIR/no-venv ]]
    ;;
*)
    exec "$REAL_PYTHON" "$@"
    ;;
esac
"""

# What the scripts call. Nothing else is in PATH: no other Python, no apt-get, no sudo.
COMMANDS = (
    *("bash", "sh", "cat", "chmod", "cp", "env", "find", "grep", "id", "ls", "mkdir", "mktemp", "readlink", "rm"),
    *("sleep", "tail", "timeout", "touch", "true"),
)
NO_VENV_PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
PIP = "pip --no-input --no-compile --use-pep517 -c tools/constraints.txt -e ."


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Clone:
    """A copy of what the tools need, in a path with blanks, with stand-ins first in PATH."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = (tmp_path / "a clone").resolve()
        self.bin, self.log, self.fake = tmp_path / "bin", tmp_path / "log", tmp_path
        for file in (*SCRIPTS, *SOURCES):
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, self.root / file)
        self.venv = self.root / ".venv"
        self.log.touch()
        executable(self.bin / "python3", FAKE_PYTHON)
        system = tmp_path / "system"
        system.mkdir()
        for name in COMMANDS:
            (system / name).symlink_to(shutil.which(name) or pytest.fail(f"{name} is missing"))
        self.env = {
            "PATH": f"{self.bin}:{system}",
            "HOME": str(tmp_path),
            "PACKSTORE_NO_SYSTEM_PACKAGES": "1",
            "REAL_PYTHON": sys.executable,
            "FAKE_LOG": str(self.log),
            "FAKE_DIR": str(self.fake),
        }

    def start(self, *arguments: str, script: Path | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [script or self.root / "tools" / "packstore", *arguments],
            env={**self.env, **env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, script: Path | None = None, **env: str) -> tuple[str, str]:
        """Standard output and error of a run that exits with ``code``."""
        with self.start(*arguments, script=script, **env) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        return out, err

    def ok(self, *arguments: str, script: Path | None = None, **env: str) -> str:
        """Standard error of a run that comes to packstore itself."""
        out, err = self.run(*arguments, script=script, **env)
        assert out == f"ran:{' '.join(arguments)}\n"
        return err

    def steps(self) -> list[str]:
        """What Python was asked to do since the last call: ``venv``, ``pip …``."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return lines

    def wait_for(self, step: str) -> None:
        deadline = time.monotonic() + 120
        while not any(line.startswith(step) for line in self.log.read_text().splitlines()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.fixture
def installed(clone: Clone) -> Clone:
    clone.ok()
    clone.steps()
    return clone


# --- the scripts as text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_reads_as_bash_and_is_executable(script: str) -> None:
    subprocess.run(["bash", "-n", ROOT / script], check=True)
    if not script.endswith(".sh"):
        assert os.access(ROOT / script, os.X_OK)
        text = (ROOT / script).read_text()
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "\nset -euo pipefail\n" in text


def test_ci_runs_what_developers_run() -> None:
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    commands = [line for line in lines if "./tools/" in line or line.startswith("wait")]
    assert commands == [
        "./tools/test install",
        '{ PACKSTORE_TEST_JOBS=1 ./tools/test oldest sample && ./tools/arm sample; } >"$log" 2>&1 &',
        "./tools/test",
        'wait "$samples"',
        "PACKSTORE_TEST_SEED=$((16#$(git rev-parse --short=7 HEAD))) ./tools/test soak --cases 100",
    ]


def test_shellcheck_is_content() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    run = subprocess.run([shellcheck, "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


# --- tools/packstore --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_first_use_installs_and_the_next_only_runs(clone: Clone) -> None:
    first = clone.ok("convert", "a", "b").splitlines()
    assert re.search(r"first use: .*; this takes a few minutes \(progress: .*/packstore\.log\)", first[0])
    assert re.fullmatch(r"packstore: ready after \d+ s", first[1])
    assert len(first) == 2
    assert clone.steps() == ["venv", PIP]
    assert (clone.venv / "packstore.log").read_text() == "WARNING: noise of pip\n"
    assert clone.ok("info") == ""
    assert clone.steps() == []


def test_arguments_and_exit_code_pass_through(installed: Clone) -> None:
    executable(installed.venv / "bin" / "packstore", '#!/bin/sh\nprintf "<%s>" "$@"\ncat\nexit 3\n')
    assert installed.run("a b", "", "*", "$HOME", code=3) == ("<a b><><*><$HOME>", "")


def test_through_a_link(clone: Clone, tmp_path: Path) -> None:
    link, relative = tmp_path / "links" / "packstore", tmp_path / "links" / "again"
    link.parent.mkdir()
    link.symlink_to(clone.root / "tools" / "packstore")
    relative.symlink_to("packstore")
    clone.ok("1", script=link)
    clone.ok("2", script=relative)
    assert clone.steps() == ["venv", PIP]


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("change", SOURCES)
def test_a_change_of_what_it_depends_on_installs_again(installed: Clone, change: str) -> None:
    with (installed.root / change).open("a") as out:
        out.write("\n# changed\n")
    err = installed.ok().splitlines()
    assert "bringing .venv up to date (progress: " in err[0]
    assert len(err) == 2
    assert installed.steps() == [PIP]
    installed.ok()
    assert installed.steps() == []


@pytest.mark.slow
def test_a_failed_first_use_is_done_again(clone: Clone) -> None:
    (clone.fake / "fail").touch()
    _, err = clone.run(code=1)
    assert f"noise of pip\npackstore: pip could not install packstore; all that it said is in {clone.venv}/" in err
    assert clone.steps() == ["venv", PIP]
    (clone.fake / "fail").unlink()
    clone.ok()
    assert clone.steps() == ["venv", PIP]


@pytest.mark.slow
def test_a_failed_update_keeps_the_environment(installed: Clone) -> None:
    (installed.venv / "mark").touch()
    (installed.root / "pyproject.toml").write_text("changed")
    (installed.fake / "fail").touch()
    installed.run(code=1)
    (installed.fake / "fail").unlink()
    installed.steps()
    installed.ok()
    assert installed.steps() == [PIP]
    assert (installed.venv / "mark").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_first_use_ends_at_once_and_is_done_again(clone: Clone, number: signal.Signals) -> None:
    (clone.fake / "hang").touch()
    with clone.start() as process:
        clone.wait_for("pip")
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == -number
    assert "interrupted" in err
    (clone.fake / "hang").unlink()
    clone.steps()
    assert "making .venv anew: the last installation did not finish" in clone.ok()
    assert clone.steps() == ["venv", PIP]


@pytest.mark.slow
def test_a_killed_first_use_is_done_again_and_its_pip_is_waited_for(clone: Clone) -> None:
    (clone.fake / "hang").touch()
    process = clone.start()
    clone.wait_for("pip")
    process.kill()
    process.wait()
    (clone.fake / "hang").unlink()
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
        out, err = following.communicate(timeout=120)
    assert (following.returncode, out) == (0, "ran:next\n"), err


@pytest.mark.slow
def test_first_uses_at_once_install_once(clone: Clone) -> None:
    runs = [clone.start(str(i)) for i in range(4)]
    for i, run in enumerate(runs):
        with run:
            out, err = run.communicate(timeout=120)
        assert (run.returncode, out) == (0, f"ran:{i}\n"), err
    assert clone.steps() == ["venv", PIP]


@pytest.mark.slow
def test_a_moved_clone_gets_a_new_environment(installed: Clone) -> None:
    moved = installed.root.rename(installed.root.with_name("moved"))
    assert "making .venv anew: it was made in" in installed.ok(script=moved / "tools" / "packstore")
    assert installed.steps() == ["venv", PIP]


@pytest.mark.slow
def test_an_environment_that_another_clone_uses_is_left_alone(installed: Clone) -> None:
    other = installed.root.with_name("other")
    shutil.copytree(installed.root, other, ignore=shutil.ignore_patterns(".venv"), symlinks=True)
    (other / ".venv").symlink_to(installed.venv)
    before = sorted(installed.venv.iterdir())
    out, err = installed.run(code=1, script=other / "tools" / "packstore")
    assert f"is a link to the .venv that {installed.root} uses: remove the link" in out + err
    assert sorted(installed.venv.iterdir()) == before
    installed.ok()


@pytest.mark.slow
def test_an_environment_whose_python_is_gone_is_made_anew(installed: Clone) -> None:
    (installed.venv / "bin" / "python").unlink()
    installed.ok()
    assert installed.steps() == ["venv", PIP]


@pytest.mark.slow
def test_somebody_elses_environment_is_used_and_never_deleted(clone: Clone) -> None:
    clone.venv.mkdir()
    (clone.venv / "theirs").touch()
    assert "packstore did not make it, so it does not delete it" in clone.run(code=1)[1]
    assert [p.name for p in clone.venv.iterdir()] == ["theirs"]
    executable(clone.venv / "bin" / "python", FAKE_PYTHON)
    clone.ok()
    assert clone.steps() == [PIP]
    assert (clone.venv / "theirs").exists()


@pytest.mark.slow
def test_in_an_activated_environment_another_python_makes_it_anew(installed: Clone) -> None:
    shutil.copy2(installed.venv / "bin" / "python", installed.venv / "bin" / "python3")
    (installed.venv / "packstore-installing").touch()
    installed.ok(PATH=f"{installed.venv}/bin:{installed.env['PATH']}", FAKE_SELF=str(installed.bin / "python3"))
    assert installed.steps() == ["venv", PIP]


def test_no_python(clone: Clone) -> None:
    _, err = clone.run(PACKSTORE_PYTHON="no-such-python", code=1)
    assert "Python 3.11 or newer is needed and none was found (no Python that runs" in err
    executable(clone.bin / "old-python", "#!/bin/sh\necho 3.9.2\nexit 1\n")
    assert "old-python is 3.9.2" in clone.run(PACKSTORE_PYTHON="old-python", code=1)[1]
    assert not clone.venv.exists()


def test_a_python_that_does_not_run_is_passed_over(clone: Clone) -> None:
    (clone.bin / "python3").rename(clone.bin / "python3.12")
    executable(clone.bin / "python3", "#!/bin/sh\necho 'shim: no version is set' >&2\nexit 127\n")
    assert "shim" not in clone.ok(FAKE_SELF=str(clone.bin / "python3.12"))
    assert clone.steps() == ["venv", PIP]


def test_python_without_venv(clone: Clone) -> None:
    (clone.fake / "no-venv").touch()
    _, err = clone.run(code=1)
    assert "its modules venv and ensurepip are missing. On Debian or Ubuntu run this as root" in err
    assert f"apt-get install {NO_VENV_PACKAGE}" in err
    assert not clone.venv.exists()


def test_further_arguments_for_pip(clone: Clone) -> None:
    clone.ok(PACKSTORE_PIP_ARGS="--extra-index-url file:///somewhere  --prefer-binary")
    assert clone.steps()[1] == PIP.replace(" -c ", " --extra-index-url file:///somewhere --prefer-binary -c ")


# --- Debian packages --------------------------------------------------------------------------------------------------


class Debian:
    """Stand-ins for apt-get and the like, on a machine whose Python cannot make environments."""

    def __init__(self, clone: Clone) -> None:
        self.clone, self.log = clone, clone.fake / "apt log"
        self.log.touch()
        (clone.fake / "no-venv").touch()
        del clone.env["PACKSTORE_NO_SYSTEM_PACKAGES"]
        clone.env["APT_LOG"] = str(self.log)
        executable(clone.bin / "id", "#!/bin/sh\necho ${FAKE_UID:-0}\n")
        executable(clone.bin / "sudo", '#!/bin/sh\n[ "$1" = -n ] && [ -n "$MAY_SUDO" ] && shift && exec "$@"\nexit 1\n')
        self.apt('rm -f "$FAKE_DIR/no-venv"')

    def apt(self, script: str) -> None:
        note = 'while [ "${1#-}" != "$1" ]; do shift 2; done\necho "$* $DEBIAN_FRONTEND" >>"$APT_LOG"\n'
        executable(self.clone.bin / "apt-get", f"#!/bin/sh\n{note}{script}\n")

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def debian(clone: Clone) -> Debian:
    return Debian(clone)


INSTALL = f"install -y --no-install-recommends {NO_VENV_PACKAGE} noninteractive"


@pytest.mark.slow
def test_root_installs_what_is_missing(clone: Clone, debian: Debian) -> None:
    assert f"installing the Debian package {NO_VENV_PACKAGE} ..." in clone.ok()
    assert debian.calls() == [INSTALL]


@pytest.mark.slow
def test_a_fresh_container_has_no_package_lists(clone: Clone, debian: Debian) -> None:
    debian.apt('[ $1 = update ] && touch "$FAKE_DIR/x"; [ -e "$FAKE_DIR/x" ] && rm -f "$FAKE_DIR/no-venv"')
    clone.ok()
    assert debian.calls() == [INSTALL, "update noninteractive", INSTALL]


@pytest.mark.slow
def test_sudo_is_used_when_it_asks_nothing(clone: Clone, debian: Debian) -> None:
    clone.ok(FAKE_UID="1000", MAY_SUDO="1")
    assert debian.calls() == [INSTALL]


def test_who_may_not_is_told(clone: Clone, debian: Debian) -> None:
    assert "On Debian or Ubuntu run this as root" in clone.run(FAKE_UID="1000", code=1)[1]
    assert debian.calls() == []


@pytest.mark.slow
def test_a_failure_is_told(clone: Clone, debian: Debian) -> None:
    debian.apt('echo "E: Unable to locate package" >&2; exit 100')
    assert "apt-get failed: E: Unable to locate package" in clone.run(code=1)[1]


# --- tools/test -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tools_test_runs_each_step_and_stops_at_the_first_failure(installed: Clone) -> None:
    script = installed.root / "tools" / "test"
    note = '#!/bin/sh\necho "${0##*/} $*" >>"$FAKE_LOG"\n[ "${0##*/}" != "$BROKEN" ]\n'
    for name in ("ruff", "mypy"):
        executable(installed.venv / "bin" / name, note)
    executable(installed.bin / "shellcheck", note)
    real = installed.bin.parent / "real"
    executable(real, '#!/bin/sh\n[ "$1" = -c ] && exec "$REAL" "$@"\necho "python $*" >>"$FAKE_LOG"\n')
    env = {"REAL_PYTHON": str(real), "REAL": sys.executable, "PACKSTORE_TEST_TURBOJPEG3": "there"}
    _, err = installed.run("install", script=script, **env)
    assert installed.steps() == [PIP.replace(" .", " .[test]")]
    assert "gcc libc6-dev were not installed (it takes Debian or Ubuntu, and root or sudo" in err
    _, err = installed.run("-k", "a b", script=script, **env)
    steps = ["ruff check .", "ruff format --check .", "mypy ", f"shellcheck -x {' '.join(SCRIPTS)}"]
    ran = installed.steps()
    (tests,) = set(ran) - {*steps}  # mypy runs beside them
    assert sorted(ran) == sorted([*steps, tests])
    assert re.fullmatch(r"python -m pytest -n \d+ .* -k a b", tests)
    assert re.search(r"^== ruff format --check \.\n(== clang-format .*\n)?== mypy\n", err, re.MULTILINE)
    installed.run(script=script, BROKEN="mypy", **env, code=1)
    assert len(installed.steps()) == len(ran)
    installed.run(script=script, BROKEN="ruff", **env, code=1)
    assert installed.steps() == steps[:1]
    # What the test extra brought covers the plain installation too.
    installed.ok()
    assert installed.steps() == []


@pytest.mark.slow
def test_tools_test_takes_libjpeg_turbo_3_once_or_goes_on_without(installed: Clone) -> None:
    script = installed.root / "tools" / "test"
    for name in ("ruff", "mypy"):
        executable(installed.venv / "bin" / name, "#!/bin/sh\n")
    executable(installed.bin / "shellcheck", "#!/bin/sh\n")
    real = installed.bin.parent / "real"
    note = 'echo "python $* $PACKSTORE_TEST_TURBOJPEG3" >>"$FAKE_LOG"'
    executable(real, f'#!/bin/sh\n[ "$1" = -c ] && exec "$REAL" "$@"\n[ "$2" != zipfile ] || exit 1\n{note}\n')
    env = {"REAL_PYTHON": str(real), "REAL": sys.executable}
    _, err = installed.run(script=script, **env)
    assert "libjpeg-turbo 3 was not fetched (see " in err
    assert "noise of pip" not in err
    steps = installed.steps()
    assert re.fullmatch(r"pip .*-c tools/constraints\.txt -d .*/\.venv/turbojpeg3 turbojpeg", steps[-2])
    assert steps[-1].startswith("python -m pytest ")
    library = installed.venv / "turbojpeg3" / "turbojpeg.libs" / "libturbojpeg-1.so"
    library.parent.mkdir(parents=True)
    library.touch()
    installed.run(script=script, **env)
    (tests,) = installed.steps()
    assert tests.endswith(f" {library}")


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize(
    ("arguments", "lint", "told"),
    [
        (["fast", "-x"], True, "-m not soak and not slow -x fast 7 forever"),
        (["stores", "core"], True, "tests/test_imports.py tests/stores tests/core  7 forever"),
        (["fast", "stores"], True, "-m not soak and not slow tests/stores fast 7 forever"),
        (["soak"], False, "-m soak or hypothesis soak 7 forever"),
        (["soak", "--minutes", "2", "-x"], False, "-m soak or hypothesis -x soak 7 a while, 1200"),
        (["soak", "--cases", "30"], False, "-m soak or hypothesis soak 7 forever, 30"),
        (["fast", "--salt", "5a17", "-x"], True, "-m not soak and not slow -x fast 7 forever 5a17"),
        (["stores", "--salt", "5a17"], True, "tests/test_imports.py tests/stores  7 forever 5a17"),
    ],
)
def test_tools_test_runs_tiers_and_rooms(installed: Clone, arguments: list[str], lint: bool, told: str) -> None:
    for name in ("ruff", "mypy"):
        executable(installed.venv / "bin" / name, '#!/bin/sh\necho "${0##*/} $*" >>"$FAKE_LOG"\n')
    for room in ("stores", "core"):
        (installed.root / "tests" / room).mkdir(parents=True)
    real = installed.bin.parent / "real"
    executable(
        real,
        '#!/bin/sh\n[ "$1" = -c ] && exec "$REAL" "$@"\n'
        "until=${PACKSTORE_TEST_UNTIL:+a while}\n"
        "most=${PACKSTORE_TEST_MOST:+, $PACKSTORE_TEST_MOST}\n"
        "salt=${PACKSTORE_TEST_SALT:+ $PACKSTORE_TEST_SALT}\n"
        'echo "python $* $HYPOTHESIS_PROFILE $PACKSTORE_TEST_SEED ${until:-forever}$most$salt" >>"$FAKE_LOG"\n',
    )
    env = {"REAL_PYTHON": str(real), "REAL": sys.executable, "PACKSTORE_TEST_TURBOJPEG3": "there"}
    installed.run(*arguments, script=installed.root / "tools" / "test", PACKSTORE_TEST_SEED="7", **env)
    _, *before, tests = installed.steps()
    assert before == ["ruff check .", "ruff format --check ."] * lint
    assert tests.endswith(f" --hypothesis-seed 7 {told}")
    installed.run(*arguments, script=installed.root / "tools" / "test", PACKSTORE_TEST_SEED="", **env)
    assert ("--hypothesis-seed 0 " in installed.steps()[-1]) == ("soak" not in arguments), "all but soak are fixed"


# --- the repository ---------------------------------------------------------------------------------------------------


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    return [r for r in map(Requirement, lines) if r.name != "packstore"]


def constraints() -> dict[str, Requirement]:
    lines = (ROOT / "tools" / "constraints.txt").read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert len({to_canonical_json(r.name) for r in found}) == len(found)
    return {to_canonical_json(r.name): r for r in found}


def to_canonical_json(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned_within_its_range() -> None:
    pinned = constraints()
    for requirement in requirements():
        pin = pinned[to_canonical_json(requirement.name)]
        assert re.fullmatch(r"==[0-9.]+", str(pin.specifier)), pin
        assert requirement.specifier.contains(str(pin.specifier)[2:]), f"{pin} is not in {requirement}"


@pytest.mark.slow
def test_what_the_dependencies_need_is_pinned_too() -> None:
    """Walks the installed packages' own requirements, those of a CUDA build of torch aside."""
    from importlib.metadata import PackageNotFoundError, requires

    pinned = constraints()
    missing, seen = set(), set()
    todo = [to_canonical_json(r.name) for r in requirements()]
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
                todo.append(to_canonical_json(requirement.name))
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


def test_the_lowest_versions_are_those_that_are_allowed() -> None:
    """``./tools/test oldest`` installs each dependency in the lowest version of its requirement."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = (line.partition("#")[0].strip() for line in (ROOT / "tools" / "oldest.txt").read_text().splitlines())
    pinned = {wanted.name: wanted.specifier for wanted in map(Requirement, filter(None, lines))}
    for wanted in map(Requirement, project["dependencies"]):
        (lowest,) = (part.version for part in wanted.specifier if part.operator == ">=")
        (version,) = (part.version for part in pinned[wanted.name] if part.operator == "==")
        assert version == lowest or version.startswith(f"{lowest}."), wanted.name
        assert wanted.specifier.contains(version)
