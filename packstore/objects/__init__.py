"""Object stores: S3, Google Cloud Storage, Azure, HTTP (read only), a local directory and memory, behind one interface.

An object store has named sequences of bytes under a URL. Only this room uses obstore, which
``pip install 'packstore[remote]'`` installs. A signal interrupts requests: obstore itself ignores signals until the
server answers, for up to a minute.

obstore has threads, which a fork does not copy: a forked child of a process that used obstore would wait for them for
ever. On Linux the workers of a ``DataLoader`` are such children. The first request of such a child starts an agent, a
fresh interpreter. Each pending request has a socket to the agent. The agent ends when its parent does.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

from packstore.core.errors import UsageError
from packstore.objects.connection import ConflictError as ConflictError
from packstore.objects.connection import MissingObjectError as MissingObjectError
from packstore.objects.connection import ObjectInfo as ObjectInfo
from packstore.objects.connection import ParsedUrl, parse_url
from packstore.objects.connection import RemoteError as RemoteError
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
            serve = f"from packstore.objects import serve_requests; serve_requests({other.fileno()})"
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

    @contextmanager
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


P = ParamSpec("P")
Result = TypeVar("Result")

_LAST_SECONDS = 3.0
"""Seconds that a request may take after an interrupt: enough for cleaning up, if the server answers."""

_idle: list[_RequestThread] = []
_pending: set[Future[Any]] = set()
_interrupted = threading.Event()
_refusals = 0


def open_objects(url: str | os.PathLike[str]) -> ObjectStore:
    """Returns the object store at a URL. Connects at the first request.

    URLs: s3://bucket/path, gs://bucket/path, az://container/path, https://host/path (read only), file:///path or
    memory://name/path.

    Credentials come from these environment variables, or from the metadata service of the machine's cloud:

    - S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, or AWS_PROFILE and
      the files in ~/.aws
    - Google: GOOGLE_APPLICATION_CREDENTIALS
    - Azure: AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY

    Raises:
        UsageError: Not a URL of these, or one with credentials or a query; see :func:`parse_url`.
    """
    return ObjectStore(parse_url(url))


def _make_request(method: Callable[Concatenate[Direct, P], Result]) -> Callable[Concatenate[ObjectStore, P], Result]:
    """Returns a method that calls one of :class:`Direct` in a thread or in the agent."""

    @functools.wraps(method)
    def request(self: ObjectStore, /, *arguments: P.args, **keywords: P.kwargs) -> Result:
        agent = self.find_agent()
        # Another thread calls the method; in a forked process, the agent does.
        if agent is None:
            result: Result = call_interruptibly(method, self._direct, *arguments, **keywords)
        else:
            result = agent.call(self._location, method.__name__, *arguments, **keywords)
        return result

    return request


def _make_iteration(
    method: Callable[Concatenate[Direct, P], Iterator[Result]],
) -> Callable[Concatenate[ObjectStore, P], Iterator[Result]]:
    """Returns a method that yields the values of one of :class:`Direct`, run as by :func:`_make_request`."""

    @functools.wraps(method)
    def iterate(self: ObjectStore, /, *arguments: P.args, **keywords: P.kwargs) -> Iterator[Result]:
        agent, name = self.find_agent(), method.__name__
        if agent is None:
            values = method(self._direct, *arguments, **keywords)
            yield from iterate_interruptibly(values, AT_ONCE[name], ahead=name == "stream")
        else:
            yield from agent.iterate(self._location, name, *arguments, **keywords)

    return iterate


class ObjectStore:
    """Objects under a URL. Names of objects are relative to the URL, with ``/`` between their parts. Its requests are
    those of :class:`Direct`.

    Works from any thread. Pickles as its URL. In forked processes, an agent process makes the requests. A forked
    process cannot read ``memory://``.

    Every method raises :class:`RemoteError` with a message of one line if its request fails. Requests are retried for
    :data:`~packstore.objects.connection.RETRY_SECONDS` before. Every method raises
    :class:`packstore.core.errors.UsageError` if obstore is not installed. Writes and deletions raise it also for HTTP.

    Does not verify the bytes that it reads.

    Attributes:
        url: The URL, without a slash at its end.
        can_list: Whether :meth:`list` works: False for ``http`` and ``https``.
        can_write: Whether :meth:`create` may work: False for ``http`` and ``https``. Only the first write shows whether
            the server can create an object only if it is absent.
    """

    def __init__(self, location: ParsedUrl) -> None:
        self._location = location
        self._direct = Direct(location)
        self.url = location.url
        self.can_list = self.can_write = location.scheme not in ("http", "https")

    get = _make_request(Direct.get)
    stream = _make_iteration(Direct.stream)
    read = _make_request(Direct.read)
    head = _make_request(Direct.head)
    list = _make_iteration(Direct.list)
    list_directory = _make_request(Direct.list_directory)
    create = _make_request(Direct.create)
    put = _make_request(Direct.put)
    delete = _make_request(Direct.delete)

    def __repr__(self) -> str:
        return f"open_objects({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_objects, (self.url,)

    def find_agent(self) -> Agent | None:
        """Returns the agent that makes the requests of a forked process; None in any other process.

        Raises :class:`UsageError` without obstore, and :class:`RemoteError` for ``memory://`` in a forked process.
        """
        if sys.modules.get("obstore") is None and find_spec("obstore") is None:
            raise UsageError(f"{self._location.scheme}:// URLs need obstore: pip install 'packstore[remote]'")
        agent = get_agent_if_forked()
        if agent is not None and self._location.scheme == "memory":
            raise RemoteError(f"{self.url} is the memory of one process; a forked one cannot read it")
        return agent


def interrupt() -> None:
    """Aborts all pending requests of this process with a :class:`RemoteError`, because the program is about to end.

    From then on, every request is aborted after three seconds. Safe to call from a signal handler.
    """
    _interrupted.set()
    _abort_pending()


@contextmanager
def refuse_requests() -> Iterator[None]:
    """Aborts all pending requests of this process, and refuses new ones until the context ends.

    Aborted and refused requests raise :class:`RemoteError`.
    """
    global _refusals
    _refusals += 1
    try:
        _abort_pending()
        yield
    finally:
        _refusals -= 1


def call_interruptibly(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Calls ``function`` in another thread, while this thread handles signals. Returns its result or raises its error.

    Raises :class:`RemoteError` if the request is aborted, see :func:`interrupt` and :func:`refuse_requests`.
    """
    return next(iterate_interruptibly((function(*arguments, **keywords) for _ in range(1)), 1))


def iterate_interruptibly(values: Iterator[Any], count: int, *, ahead: bool = False) -> Iterator[Any]:
    """Yields ``values``, which another thread computes in batches of up to ``count``.

    Handles signals and raises like :func:`call_interruptibly`. With ``ahead``, the other thread computes the next batch
    while the caller uses this one.
    """

    def take() -> list[Any]:
        return list(islice(values, count))

    future: Future[Any] = Future()
    try:
        _submit_request(future, take)
        while batch := _wait_for_result(future):
            _pending.discard(future)
            future = Future()
            if ahead:
                _submit_request(future, take)
                yield from batch
            else:
                yield from batch
                _submit_request(future, take)
            del batch  # else the bytes would stay in memory while waiting
    finally:
        _pending.discard(future)


def _submit_request(future: Future[Any], function: Callable[[], Any]) -> None:
    """Lets an idle or new worker thread compute ``future``."""
    _pending.add(future)
    if _refusals:  # checked after adding to _pending: refuse_requests aborts what it finds there
        raise RemoteError("interrupted")
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _RequestThread()
        worker.start()
    worker.tasks.put((future, function))


def _wait_for_result(future: Future[Any]) -> Any:
    """Returns the result of a request or raises its error."""
    try:
        return future.result(_LAST_SECONDS if _interrupted.is_set() else None)
    except TimeoutError:  # the program is about to end
        _abort_request(future)
        return future.result()


def _abort_pending() -> None:
    """Aborts all pending requests of this process."""
    for future in tuple(_pending):
        _abort_request(future)


def _abort_request(future: Future[Any]) -> None:
    """Raises :class:`RemoteError` in the thread that waits for a request."""
    with suppress(InvalidStateError):  # it has just been answered
        future.set_exception(RemoteError("interrupted"))


class _RequestThread(threading.Thread):
    """Runs one call after another, and does not keep the process from ending."""

    def __init__(self) -> None:
        super().__init__(name="packstore-request", daemon=True)
        self.tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def run(self) -> None:
        """Runs one call after another for ever, and sets each future's result or error."""
        while True:
            future, function = self.tasks.get()
            try:
                answer, error = function(), None
            except BaseException as raised:  # raised again in the calling thread
                answer, error = None, raised
            _idle.append(self)
            with suppress(InvalidStateError):  # the caller was interrupted
                if error is None:
                    future.set_result(answer)
                else:
                    future.set_exception(error)
            del future, function, answer, error  # else the bytes would stay in memory while waiting


def _after_fork() -> None:
    """Forgets the threads, the requests and the agent of the parent, which a fork does not copy."""
    global _agent, _forked, _lock
    _lock = threading.Lock()
    _forked = _forked or "obstore" in sys.modules
    if _agent is not None:
        atexit.unregister(_agent.close)
        _agent.close_in_child()
        _agent = None
    _idle.clear()
    _pending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
