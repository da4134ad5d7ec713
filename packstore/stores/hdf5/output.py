"""Hides failed writes from the HDF5 library."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any


class FailureHidingFile:
    """Wraps an unbuffered file for the HDF5 library, and hides failed writes from it. :meth:`raise_failure` raises the
    first.

    After a failed write, the library would fail to close the file. When its objects are freed, it would crash the
    process.

    The file may be closed before the library closes it: further calls do nothing, and return 0. If a signal interrupts
    h5py, the library closes its file only when Python collects the exception.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: 0) if self._file.closed else getattr(self._file, name)

    def raise_failure(self) -> None:
        """Raises the :class:`OSError` of the first failed write. Does nothing if no write has failed."""
        if self._failure is not None:
            raise self._failure

    def write(self, data: memoryview) -> int:
        """Writes ``data``, unless a write has failed. Always returns the size of ``data``."""
        self._call_unless_failed(self._write_all, data)
        return data.nbytes

    def truncate(self, nbytes: int) -> None:
        """Makes the file ``nbytes`` long, unless a write has failed."""
        self._call_unless_failed(self._file.truncate, nbytes)

    def flush(self) -> None:
        """Does nothing: the file has no buffer."""

    def _write_all(self, data: memoryview) -> None:
        """Writes ``data``, with several system calls if needed."""
        while data.nbytes:
            data = data[self._file.write(data) :]

    def _call_unless_failed(self, call: Callable[[Any], object], argument: Any) -> None:
        """Calls a method of the file unless it is closed, or an earlier call has failed. Stores an :class:`OSError`
        instead of raising it."""
        if self._failure is None and not self._file.closed:
            try:
                call(argument)
            except OSError as error:
                self._failure = error
