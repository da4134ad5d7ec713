"""S3 on this machine: moto, for what a real server does, and a double with faults, for what goes wrong on the way."""

from __future__ import annotations

import functools
import hashlib
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "bucket"
_PIECE = 1 << 18
SECRET = "secret-of-the-tests"
KEY_ID = "AKIAEXAMPLE12345"

_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def environment(port: int) -> Mapping[str, str]:
    """The environment of a client of the server at ``port``; nothing leads to another machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        **NO_CREDENTIALS,
    }


NO_CREDENTIALS = {
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",  # nothing answers there
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_CONFIG_FILE": "/dev/null",
}
"""An environment in which this machine has no credentials."""


@contextmanager
def moto_process() -> Iterator[int]:
    """A server with an empty bucket, :data:`BUCKET`; its port."""
    command = [sys.executable, "-W", "ignore", "-c", _MOTO]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            port = int(process.stdout.readline())
            url = f"http://127.0.0.1:{port}/{BUCKET}"
            signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"}
            urllib.request.urlopen(urllib.request.Request(url, b"", signed, method="PUT")).close()
            yield port
        finally:
            process.kill()  # that its input is closed it may not see: a forked process may have it open, too


def upload(folder: Path, url: str) -> str:
    """The URL that a copy of a folder lies at."""
    from packstore.objects import open_objects

    objects = open_objects(url)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            objects.create(file.relative_to(folder).as_posix(), file.read_bytes())
    return url


@dataclass
class Fault:
    """What goes wrong with requests.

    Attributes:
        kind: ``503``, ``403``, ``expired`` (the token); ``cut`` (the body ends in its middle), ``flipped`` (a bit of
            it), ``silent`` (no answer until the double is closed), ``slow`` (the body comes in pieces, 20 ms apart),
            ``lost`` (what was asked for is done, and the connection closed without a reply).
        method: GET, HEAD, PUT, POST, DELETE or LIST; "" for all.
        key: Of objects whose names match this regular expression.
        times: How often.
    """

    kind: str
    method: str = ""
    key: str = ""
    times: int = 1


@dataclass
class Double:
    """A small S3: whole objects and ranges, conditional puts, uploads in parts, copies and listings, in memory.

    Attributes:
        objects: By name in the bucket, :data:`BUCKET`.
        faults: To come.
        requests: What was asked for: method and name.
        conditional: Whether ``If-None-Match`` is obeyed; ``refused``: answered by 501.
        latency: Seconds that each answer takes.
        rate: Bytes a second of the line to it, which all answers share; 0 for no limit.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    conditional: bool | str = True
    latency: float = 0.0
    rate: float = 0.0
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)
    closed: Any = field(default_factory=threading.Event)
    port: int = 0
    line_free: float = 0.0

    def fault(self, method: str, key: str) -> str:
        with self.lock:
            self.requests.append((method, key))
            for fault in self.faults:
                if fault.times and fault.method in ("", method) and re.search(fault.key, key):
                    fault.times -= 1
                    return fault.kind
        return ""

    def take_line(self, nbytes: int) -> None:
        """Waits until the line has carried ``nbytes`` more."""
        with self.lock:
            self.line_free = max(self.line_free, time.monotonic()) + nbytes / self.rate
            end = self.line_free
        self.closed.wait(end - time.monotonic())


@contextmanager
def double() -> Iterator[Double]:
    """A :class:`Double` at 127.0.0.1, :attr:`Double.port`."""
    state = Double()
    with _Server(("127.0.0.1", 0), type("Bound", (_Handler,), {"state": state})) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            state.closed.set()
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection, as one does that has waited long enough."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    state: Double

    def log_message(self, *arguments: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        """All methods go through :meth:`_serve`."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        url = urlsplit(self.path)
        key = unquote(url.path).lstrip("/").partition("/")[2]
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        method = "LIST" if "list-type" in query else self.command
        kind = self.state.fault(method, query.get("prefix", "") if method == "LIST" else key)
        self.state.closed.wait(self.state.latency)
        self._serve(method, key, query, body, kind)
        self.wfile.flush()

    def _serve(self, method: str, key: str, query: dict[str, str], body: bytes, kind: str) -> None:
        if kind == "silent":
            self.state.closed.wait()
            self.close_connection = True
        elif kind in ("503", "403", "expired"):
            code, name = {"503": (503, "SlowDown"), "403": (403, "AccessDenied"), "expired": (400, "ExpiredToken")}[
                kind
            ]
            self._fail(code, name)
        elif method in ("GET", "HEAD"):
            self._read(key, kind)
        elif method == "LIST":
            self._list(query)
        else:
            answer = self._write(method, key, query, body)
            if kind == "lost":
                self.close_connection = True
            elif isinstance(answer, int):
                self._fail(answer, {404: "NoSuchKey", 412: "PreconditionFailed", 501: "NotImplemented"}[answer])
            else:
                self._send(200 if method != "DELETE" else 204, *answer)

    def _send(self, code: int, body: bytes = b"", headers: Mapping[str, str] | None = None, kind: str = "") -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "cut":
            body = body[: len(body) // 2]
            self.close_connection = True
        step = max(1, len(body) // 10) if kind == "slow" else _PIECE if self.state.rate else len(body) or 1
        for place in range(0, len(body), step):
            if self.state.rate:
                self.state.take_line(min(step, len(body) - place))
            self.wfile.write(body[place : place + step])
            self.wfile.flush()
            if kind == "slow":
                self.state.closed.wait(0.02)

    def _fail(self, code: int, name: str) -> None:
        # Real servers tell who asked, and how it was signed.
        said = f"<Code>{name}</Code><Message>of {escape(self.headers.get('Authorization', ''))}</Message>"
        self._send(code, f"<Error>{said}</Error>".encode(), {"Content-Type": "application/xml"})

    def _read(self, key: str, kind: str) -> None:
        data = self.state.objects.get(key)
        if data is None:
            self._fail(404, "NoSuchKey")
            return
        headers = {"ETag": _etag(data), "Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT"}
        if self.headers.get("If-Match") not in (None, headers["ETag"]):
            self._fail(412, "PreconditionFailed")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        code, part = 200, data
        if asked is not None:
            start, stop = int(asked[1]), min(len(data), int(asked[2]) + 1) if asked[2] else len(data)
            if start >= len(data):
                self._fail(416, "InvalidRange")
                return
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            code, part = 206, data[start:stop]
        if kind == "flipped":
            place = random.randrange(len(part))
            part = part[:place] + bytes([part[place] ^ 1 << random.randrange(8)]) + part[place + 1 :]
        self._send(code, part, headers, kind)

    def _write(self, method: str, key: str, query: dict[str, str], body: bytes) -> tuple[Any, ...] | int:
        """Body and headers of the answer, or the status of a failure."""
        state = self.state
        with state.lock:
            absent = self.headers.get("If-None-Match") == "*"
            if absent and state.conditional == "refused":
                return 501
            stands = absent and state.conditional is True and key in state.objects
            match method:
                case "PUT" if "uploadId" in query:
                    source = self.headers.get("x-amz-copy-source")
                    if source is not None:
                        body = state.objects[unquote(source).lstrip("/").partition("/")[2]]
                    state.uploads[query["uploadId"]][int(query["partNumber"])] = body
                    etag = _etag(body)
                    copied = f"<CopyPartResult><ETag>{etag}</ETag></CopyPartResult>".encode()
                    return copied if source is not None else b"", {"ETag": etag}
                case "PUT":
                    if stands:
                        return 412
                    state.objects[key] = body
                    return b"", {"ETag": _etag(body)}
                case "POST" if "uploads" in query:
                    upload = uuid.uuid4().hex
                    state.uploads[upload] = {}
                    return (f"<X><Bucket>b</Bucket><Key>k</Key><UploadId>{upload}</UploadId></X>".encode(),)
                case "POST" if "uploadId" in query:
                    if stands:
                        return 412
                    parts = state.uploads.pop(query["uploadId"])
                    state.objects[key] = b"".join(parts[number] for number in sorted(parts))
                    return (f"<X><Key>k</Key><ETag>{_etag(state.objects[key])}</ETag></X>".encode(),)
                case "POST" if "delete" in query:
                    keys = [unescape(name) for name in re.findall(r"<Key>(.*?)</Key>", body.decode())]
                    for name in keys:
                        state.objects.pop(name, None)
                    said = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in keys)
                    return (f"<DeleteResult>{said}</DeleteResult>".encode(),)
                case "DELETE" if "uploadId" in query:
                    state.uploads.pop(query["uploadId"], None)
                    return (b"",)
                case _:
                    state.objects.pop(key, None)
                    return (b"",)

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        with self.state.lock:
            found = {name: data for name, data in self.state.objects.items() if name.startswith(prefix)}
        shown: dict[str, bytes | None] = {}
        for name in sorted(found):
            inside, more, _ = name[len(prefix) :].partition(delimiter or "\0")
            if delimiter and more:
                shown[prefix + inside + delimiter] = None
            else:
                shown[name] = found[name]
        names = [name for name in shown if name > after]
        page = names[: int(query.get("max-keys", "1000"))]
        text = [f"<IsTruncated>{str(len(names) > len(page)).lower()}</IsTruncated>"]
        if len(names) > len(page):
            text.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        for name in page:
            data = shown[name]
            if data is None:
                text.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                text.append(
                    f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-22T00:00:00.000Z</LastModified>"
                    f"<ETag>{_etag(data)}</ETag><Size>{len(data)}</Size></Contents>"
                )
        body = f"<ListBucketResult><KeyCount>{len(page)}</KeyCount>{''.join(text)}</ListBucketResult>"
        self._send(200, body.encode(), {"Content-Type": "application/xml"})


@functools.lru_cache(maxsize=64)  # of large objects it takes longer than to send them
def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'
