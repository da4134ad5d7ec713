"""The command line: arguments, progress, printing, exit codes. Related commands share a file.

Modules of this room import the library inside the commands, so that ``packstore --help`` is fast.
"""

from __future__ import annotations

import gc
import io
import os
import platform
import re
import signal
import sys
import threading
import traceback
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from packstore import __version__
from packstore.cli.common import suggest_commands
from packstore.cli.rows import red
from packstore.core.errors import WITHOUT_TORCH, AmbiguousSourceError, PackstoreError, UsageError, printable

_COMMANDS = {
    "demo": "diagnose", "convert": "convert", "append": "compose", "merge": "compose", "select": "compose",
    "index": "compose", "link": "compose", "export": "convert", "verify": "check", "audit": "check", "info": "info",
    "sheet": "show", "view": "show", "repair": "check", "salvage": "check", "clean": "clean", "cache": "clean",
    "bench": "diagnose", "doctor": "diagnose", "guide": "show", "completion": "show",
}  # fmt: skip
"""All commands in the order of typical use, with their modules."""
EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class _LazyGroup(click.Group):
    """Command group that imports the module of a command when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands, in the order of typical use."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command with this name, or None; imports it on first use."""
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            self.add_command(getattr(import_module(f"{__name__}.{_COMMANDS[cmd_name]}"), cmd_name))
        return super().get_command(ctx, cmd_name)


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Prints the versions of packstore, Python and torch, and exits, if ``wanted``."""
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = f"torch {version('torch')}"
    except PackageNotFoundError:
        torch = "no torch"
    click.echo(f"packstore {__version__} (Python {platform.python_version()}, {torch})")
    context.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has examples: packstore COMMAND --help",
)
@click.option("-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Show the versions of packstore, Python and torch.")  # fmt: skip
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Pack image datasets into LMDB, HDF5 or .pth, prove that nothing was lost, and read them fast.

    \b
    Examples:
      packstore demo                              draw sample images
      packstore convert imagenet/ imagenet.lmdb   pack files, byte for byte
      packstore verify imagenet.lmdb --against imagenet/
      packstore info imagenet.lmdb
      packstore guide packing                     read more
    """
    context.obj = debug


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits. Prints errors on standard error.

    For an ambiguous source, prints commands that resolve it. ``--debug`` anywhere among the arguments prints a
    traceback.

    Exit codes:

    - 0: success.
    - 1: failure.
    - 2: wrong usage.
    - 3: success, but records are missing (skipped, lost or not salvaged).
    - 128 plus the number of a signal: the signal stopped the run.

    Changes the process: its signal handlers, its hook for exceptions in destructors, the thresholds of its garbage
    collector, and an environment variable.

    ``arguments``: None takes those of the process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # Before numpy is imported: its linear algebra, which packstore does not need, would start a thread a core, and they
    # spin for a while: a tenth of the time of packing small files.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _open_standard_streams()
    # These signals become an exception in the main thread, so that a stopped run cleans up.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        # nohup ignores a signal on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle_signal)
    sys.unraisablehook = _handle_unraisable
    # A conversion creates many small objects and hardly any cycles: collecting them took a tenth of its time.
    gc.set_threshold(100_000, 50, 100)
    debug = "--debug" in arguments
    if debug:
        # Also accepted after the command: that is quick to append to a command that has just failed.
        arguments = ["--debug", *(a for a in arguments if a != "--debug")]
    try:
        code = cli.main(arguments, prog_name="packstore", standalone_mode=False)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        text = "\n".join(map(printable, said.getvalue().split("\n")))
        click.echo(re.sub("^Error:", red("Error:", 2), text, flags=re.MULTILINE), err=True, nl=False)
        code = error.exit_code
    except _SignalError as stopped:
        click.echo(f"packstore: {stopped}{printable(_join_notes(stopped))}", err=True)
        code = 128 + stopped.signal
    except (click.Abort, KeyboardInterrupt) as stopped:
        click.echo(f"packstore: interrupted{printable(_join_notes(stopped))}", err=True)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone (`packstore info … | head`). At exit the interpreter must not write to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILURE
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error.__cause__, _SignalError):  # Python before 3.12 wraps what ends the making of a class
            click.echo(f"packstore: {error.__cause__}{printable(_join_notes(error))}", err=True)
            sys.exit(128 + error.__cause__.signal)
        click.echo(
            f"{red('packstore: error:', 2)} {printable(_describe_error(error, debug) + _join_notes(error))}", err=True
        )
        if isinstance(error, AmbiguousSourceError):
            for command, answer in zip(suggest_commands(error, arguments), error.answers, strict=False):
                if answer.note:
                    click.echo(f"  # {printable(answer.note)}", err=True)
                click.echo(f"  {command}", err=True)
        code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE
    sys.exit(code or 0)


def _join_notes(error: BaseException | None) -> str:
    """Joins the notes of an error and of its causes into a text to append to its message."""
    notes: list[str] = []
    while error is not None:
        notes += getattr(error, "__notes__", ())
        error = error.__cause__
    return "".join(f"; {note}" for note in notes)


def _describe_error(error: Exception, debug: bool) -> str:
    """Returns the text of an error on one line."""
    if isinstance(error, PackstoreError):
        return " ".join(str(error).split("\n"))
    if isinstance(error, OSError):
        name = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return f"{name}{error.strerror or error}"
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return f"this {WITHOUT_TORCH}"
    if isinstance(error, MemoryError):
        return "out of memory; fewer --workers need less memory"
    # Not an error of packstore: give advice.
    more = "" if debug else "; --debug shows the traceback"
    return f"unexpected {type(error).__name__}: {' '.join(str(error).split())}{more}"


class _SignalError(BaseException):
    """Error that a signal raises to stop the process. No handler of :class:`Exception` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted" if number == signal.SIGINT else "terminated")
        self.signal = number


def _handle_signal(number: int, frame: FrameType | None) -> None:
    """Interrupts remote requests, makes the process ignore further signals, and raises :class:`_SignalError`."""
    # A second signal must not interrupt the clean-up.
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    # While that module is being imported there is nothing to interrupt.
    interrupt = getattr(sys.modules.get("packstore.objects"), "interrupt", None)
    if interrupt is not None:
        interrupt()
    raise _SignalError(number)


def _handle_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Sends a signal again if a destructor or a callback of a weak reference has swallowed its exception."""
    stopped = unraisable.exc_value
    if not isinstance(stopped, _SignalError):
        sys.__unraisablehook__(unraisable)  # prints it, as Python does
        return
    signal.signal(stopped.signal, _handle_signal)
    # A little later, when the destructor should have ended.
    timer = threading.Timer(0.01, os.kill, (os.getpid(), stopped.signal))
    timer.daemon = True
    timer.start()


def _open_standard_streams() -> None:
    """Opens /dev/null for each of standard input, output and error that the caller has closed."""
    # Otherwise the next file to be opened would get that descriptor, and a C library would print into the file.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
