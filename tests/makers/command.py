"""The command, and programs, as processes of their own: forks of a process that has loaded what they import."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from packstore.cli import cli

COMMAND = [sys.executable, "-m", "packstore"]


def commands() -> dict[str, click.Command]:
    """All commands by name, those of groups too: ``cache list``."""
    found: dict[str, click.Command] = {}
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {below}": each for below, each in command.commands.items()}
    return found


seconds = 0.0
"""Processor time of all commands so far."""

_SERVER = """
import ctypes, gc, json, os, resource, subprocess, sys
from contextlib import contextmanager
# What commands load at their start, and nothing that starts a thread: a fork has but one.
import h5py, lmdb, PIL.Image
import packstore.checking.verification, packstore.cli, packstore.packing.conversion
import packstore.stores.hdf5, packstore.stores.lmdb, packstore.stores.pth
from packstore.__main__ import main

def stop_at(number, stage, count):
    import packstore.core.progress, packstore.exports.run
    from packstore.packing import batches
    batches.PASS_RECORDS = batches.DECODE_RECORDS = 2
    packstore.exports.run._REPORT_EVERY = 1
    def stop(progress):
        if progress.stage == stage and progress.done >= count:
            os.kill(os.getpid(), number)
    @contextmanager
    def told(*_, **__):
        yield stop
    packstore.core.progress.progress_callback = told

used = resource.getrusage(resource.RUSAGE_CHILDREN)
gc.freeze()  # a collection in a fork would copy all that was loaded
for line in sys.stdin:
    arguments, folder, environment, stop, trace, *outputs = json.loads(line)
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY), number)
        if stop:
            stop_at(*stop)
        if trace:
            sys.dont_write_bytecode = True
            ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER: strace is no ancestor
            os.read(ready, 1)
        if arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
            sys.exit()
        sys.argv = ["packstore", *arguments]
        main()
    if trace:
        strace = subprocess.Popen(["strace", "-f", *trace, "-p", str(child)], stderr=subprocess.PIPE)
        strace.stderr.readline()  # it is attached
        os.write(go, b"x")
    _, status = os.waitpid(child, 0)
    if trace:
        strace.communicate()
    os.close(ready)
    os.close(go)
    before, used = used, resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(os.waitstatus_to_exitcode(status), seconds, flush=True)
"""


def run(
    *arguments: object,
    cwd: Path | None = None,
    stop: tuple[int, str, int] | None = None,
    trace: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs the command in a fork of a process that has loaded the libraries, which takes a fifth of the time.

    With ``stop`` the process gets a signal as soon as its progress says that so many records of a stage are done:
    ``(signal.SIGTERM, "pack", 8)``. With ``trace`` it runs under strace with these arguments.
    """
    global seconds
    words = [str(argument) for argument in arguments]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        environment = dict(os.environ)
        request = [words, os.fspath(cwd or Path.cwd()), environment, stop, trace, out.name, err.name]
        server = _server(words[0] in ("bench", "sheet") or (words[0] == "-c" and "torch" in words[1]))
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(request), file=server.stdin, flush=True)
        answers = select.poll()  # select refuses descriptors from 1,024 on
        answers.register(server.stdout, select.POLLIN)
        if not answers.poll(120_000):
            _stop(server)
            raise subprocess.TimeoutExpired(words, 120)
        code, used = server.stdout.readline().split()
        seconds += float(used)
        return subprocess.CompletedProcess(words, int(code), Path(out.name).read_text(), Path(err.name).read_text())


def run_program(code: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a Python program as ``python -c`` does, in a fork of a process that has loaded the libraries; torch, too, if
    the program names it.

    Not for a program that looks at what is loaded, at its memory or at what the interpreter reads at its start.
    """
    return run("-c", code, *arguments, cwd=cwd)


@functools.cache
def _server(torch: bool) -> subprocess.Popen[str]:
    """The process that forks. A fork of one that has loaded torch as well takes longer to end."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", "import torch\n" * torch + _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    atexit.register(_stop, server)
    return server


def _stop(server: subprocess.Popen[str]) -> None:
    """Ends the server and what it runs."""
    _server.cache_clear()
    if server.poll() is None:
        os.killpg(server.pid, 9)
    server.communicate()
