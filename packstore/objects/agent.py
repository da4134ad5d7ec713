"""Runs a process that makes the requests of a forked one.

obstore has threads, which a fork does not copy: a forked child of a process that used obstore would wait for them for
ever. On Linux the workers of a ``DataLoader`` are such children. The first request of such a child starts an agent, a
fresh interpreter. Each pending request has a socket to the agent. The agent ends when its parent does.
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

from packstore.objects.connection import ParsedUrl, RemoteError
from packstore.objects.direct import Direct

AT_ONCE = {"stream": 1, "list": 256}
"""Values sent at once, for the methods that yield values."""

_forked = False
_agent: Agent | None = None
_lock = threading.Lock()


class Agent:
    """A process that makes the requests of this forked one, with connections to it. Creating one starts the process.

    Safe to use from several threads.

    Attributes:
        process: The process.
    """

    def __init__(self) -> None:
        self._control, other = socket.socketpair()
        self._free: list[Connection] = []
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with other:
            serve = f"from packstore.objects.agent import serve_requests; serve_requests({other.fileno()})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", serve],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C reaches only its parent, which ends it
            )

    def call(self, location: ParsedUrl, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Calls a method of :class:`Direct` in the agent. Returns its result or raises its error.

        Raises :class:`RemoteError` if the agent has ended.
        """
        (value,) = self.iterate(location, method, *arguments, **keywords)
        return value

    def iterate(self, location: ParsedUrl, method: str, *arguments: Any, **keywords: Any) -> Iterator[Any]:
        """Calls a method of :class:`Direct` in the agent and yields its values. Raises like :meth:`call`."""
        with self._borrow_connection() as connection:
            connection.send((location, method, arguments, keywords))
            while True:
                failed, value = connection.recv()
                if failed:
                    raise value
                if not value:
                    return
                yield from value

    def close_in_child(self) -> None:
        """Closes a forked child's copies of the sockets. The agent goes on working for the parent."""
        self._control.close()
        for connection in self._free:
            connection.close()
        self.process.returncode = 0  # keeps Popen from waiting for the parent's child

    def close(self) -> None:
        """Closes the sockets, which ends the agent, and waits for its end.

        Raises ``subprocess.TimeoutExpired`` after 10 s.
        """
        self._control.close()
        for connection in self._free:
            connection.close()
        self.process.wait(10)

    @contextlib.contextmanager
    def _borrow_connection(self) -> Iterator[Connection]:
        """Yields a connection to the agent, which later requests use again."""
        connection: Connection | None = None
        done = False
        try:
            with _lock:
                connection = self._free.pop() if self._free else None
            connection = connection or self._open_connection()
            yield connection
            done = True
        except RemoteError:
            done = True  # the answer was read completely
            raise
        except (EOFError, BrokenPipeError, ConnectionResetError):
            _forget_agent(self)
            raise RemoteError("the process that fetches for this forked one has ended; was it killed?") from None
        finally:
            if connection is not None and done:
                with _lock:
                    self._free.append(connection)
            elif connection is not None:
                connection.close()  # interrupted: it may hold an unread answer

    def _open_connection(self) -> Connection:
        """Opens another connection to the agent."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            return Connection(ours.detach())


def get_agent_if_forked() -> Agent | None:
    """Returns the agent of a process that was forked from one that had loaded obstore. Returns None in any other.

    Such a process cannot use obstore itself. The first call starts the agent, which ends with this process.
    """
    global _agent
    if not _forked:
        return None
    with _lock:
        if _agent is None:
            _agent = Agent()
            atexit.register(_agent.close)
        return _agent


def _forget_agent(ended: Agent) -> None:
    """Closes an agent that has ended, so that the next request starts another one."""
    global _agent
    with _lock:
        if _agent is ended:
            _agent = None
            atexit.unregister(ended.close)
            ended.close()


def _after_fork() -> None:
    """Makes a forked child forget its parent's agent."""
    global _agent, _forked, _lock
    _lock = threading.Lock()
    _forked = _forked or "obstore" in sys.modules
    if _agent is not None:
        atexit.unregister(_agent.close)
        _agent.close_in_child()
        _agent = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def serve_requests(descriptor: int) -> None:
    """Runs the agent: serves each connection that comes through the socket ``descriptor``, in a thread each.

    Returns when the other end of that socket is closed, without waiting for pending requests.
    """
    with socket.socket(fileno=descriptor) as control:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            except OSError:
                break
            if not message:
                break
            threading.Thread(target=_serve_connection, args=(Connection(descriptors[0]),), daemon=True).start()


_stores: dict[ParsedUrl, Direct] = {}


def _serve_connection(connection: Connection) -> None:
    """Runs the requests that come through one connection, and sends their results or errors, until it is closed."""
    with connection:
        while True:
            try:
                location, method, arguments, keywords = connection.recv()
            except (EOFError, OSError):
                return
            with _lock:
                store = _stores.setdefault(location, Direct(location))
            try:
                _send_result(connection, method, getattr(store, method)(*arguments, **keywords))
            except OSError:
                return  # the client is gone
            except Exception as error:
                connection.send((True, error))


def _send_result(connection: Connection, method: str, value: Any) -> None:
    """Sends the yielded values of a method in batches, or its only result; and an empty batch at the end."""
    values = iter(value if method in AT_ONCE else [value])
    if method == "stream":
        values = map(bytes, values)  # a view of obstore's memory does not pickle
    while batch := list(islice(values, AT_ONCE.get(method, 1))):
        connection.send((False, batch))
    connection.send((False, []))
