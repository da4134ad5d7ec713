"""A process that makes the requests of a forked one.

obstore has threads, which a fork does not copy: a child of a process that used it waits for them for ever. The workers
of a ``DataLoader`` are such children on Linux. The first request in one starts an agent, a fresh interpreter, and hands
it one end of a socket for each request under way. The agent ends when its parent does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from packstore.objects.direct import Direct
from packstore.objects.location import Location
from packstore.objects.values import RemoteError

AT_ONCE = {"stream": 1, "list": 256}
"""How many of the values that a method yields come at once."""

_forked = False
_agent: Agent | None = None
_lock = threading.Lock()


class Agent:
    """The client's side: an agent process, and the connections to it that no request uses."""

    def __init__(self) -> None:
        self._control, other = socket.socketpair()
        self._free: list[Connection] = []
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from packstore.objects.agent import serve; serve({other.fileno()})"],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for its parent, which ends it
            )

    @property
    def process_id(self) -> int:
        """Of the agent process."""
        return self._process.pid

    def call(self, location: Location, method: str, *arguments: Any) -> Any:
        """What the method of :class:`Direct` returns or raises."""
        with self._connection() as connection:
            connection.send((location, method, arguments))
            return self._answer(connection)

    def iterate(self, location: Location, method: str, *arguments: Any) -> Iterator[Any]:
        """What the method of :class:`Direct` yields."""
        with self._connection() as connection:
            connection.send((location, method, arguments))
            while batch := self._answer(connection):
                yield from batch

    def forget(self) -> None:
        """Closes what a fork has copied; the process stays its parent's."""
        self._control.close()
        for connection in self._free:
            connection.close()
        self._process.returncode = 0  # not ours to wait for

    def close(self) -> None:
        self._control.close()
        for connection in self._free:
            connection.close()
        self._process.wait(10)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        with _lock:
            connection = self._free.pop() if self._free else None
        if connection is None:
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            connection = Connection(ours.detach())
        done = False
        try:
            yield connection
            done = True
        except RemoteError:
            done = True  # the answer was read to its end
            raise
        except (EOFError, BrokenPipeError, ConnectionResetError):
            _replace(self)
            raise RemoteError("the process that fetches for this forked one has ended; was it killed?") from None
        finally:
            if done:
                with _lock:
                    self._free.append(connection)
            else:
                connection.close()  # an answer may lie in it, unread

    @staticmethod
    def _answer(connection: Connection) -> Any:
        failed, value = connection.recv()
        if failed:
            raise value
        return value


def agent() -> Agent | None:
    """This process's agent, started at the first call, where obstore cannot be used in it: after a fork."""
    global _agent
    if not _forked:
        return None
    with _lock:
        if _agent is None:
            _agent = Agent()
            atexit.register(_agent.close)
        return _agent


def _replace(ended: Agent) -> None:
    """The next request starts another one."""
    global _agent
    with _lock:
        if _agent is ended:
            _agent = None
            atexit.unregister(ended.close)
            ended.close()


def _after_fork() -> None:
    global _agent, _forked, _lock
    _lock = threading.Lock()
    _forked = _forked or "obstore" in sys.modules
    if _agent is not None:
        atexit.unregister(_agent.close)
        _agent.forget()
        _agent = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def serve(descriptor: int) -> None:
    """The agent's side: serves each connection that comes through the socket ``descriptor``, until it is closed.

    Does not wait for requests under way: their threads are daemons."""
    with socket.socket(fileno=descriptor) as control:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            except OSError:
                break
            if not message:
                break
            threading.Thread(target=_serve, args=(Connection(descriptors[0]),), daemon=True).start()


_stores: dict[Location, Direct] = {}


def _serve(connection: Connection) -> None:
    with connection:
        while True:
            try:
                location, method, arguments = connection.recv()
            except (EOFError, OSError):
                return
            with _lock:
                store = _stores.setdefault(location, Direct(location))
            try:
                _answer(connection, method, getattr(store, method)(*arguments))
            except OSError:
                return  # nobody reads any more
            except Exception as error:
                connection.send((True, error))


def _answer(connection: Connection, method: str, value: Any) -> None:
    if method not in AT_ONCE:
        connection.send((False, value))
        return
    if method == "stream":
        value = map(bytes, value)  # a view of obstore's memory does not pickle
    while batch := list(islice(value, AT_ONCE[method])):
        connection.send((False, batch))
    connection.send((False, []))
