"""``packstore view`` for tests: its server in this process, stores to look at."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import numpy as np
from PIL import Image

from packstore import Manifest
from packstore.stores import StoreBuilder, open_store
from tests.internals import (
    CHECKSUM,
    FORMATS,
    KEY,
    ROW_CHECKSUM,
    Column,
    Origin,
    Shard,
    ShardTable,
    Split,
    file_digest,
    join_records_digests,
    write_manifest_and_table,
)

TOKEN = "a-token"
HOST = "http://127.0.0.1:8000"
AVAILABLE = all(find_spec(name) for name in ("starlette", "uvicorn"))
HTML = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
"""A name that would change the page's title if it were taken for HTML."""


@dataclass(frozen=True)
class Answer:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


class Client:
    """Asks an ASGI application as a browser would that keeps one cookie; addresses go out as they are."""

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._app, self._loop = app, loop
        self.cookie = ""

    def get(self, path: str, headers: Mapping[str, str] | None = None, **parameters: Any) -> Answer:
        """The answer to GET with these parameters."""
        return self.request("GET", path, headers, **parameters)

    def request(self, method: str, path: str, headers: Mapping[str, str] | None = None, **parameters: Any) -> Answer:
        """The answer to any request."""
        path, _, query = path.partition("?")
        query = "&".join(filter(None, (query, urlencode(parameters))))
        given = {"host": HOST.removeprefix("http://"), **({"cookie": self.cookie} if self.cookie else {})}
        given |= headers or {}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1234),
            "server": ("127.0.0.1", 8000),
        }
        return self._loop.run_until_complete(self._ask(scope))

    async def _ask(self, scope: dict[str, Any]) -> Answer:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        if "set-cookie" in headers:
            self.cookie = headers["set-cookie"].partition(";")[0]
        return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


@contextmanager
def client_of(
    path: Path, *, token: str | None = TOKEN, audit: Path | None = None, verified: Path | None = None
) -> Iterator[Client]:
    """A client of the server for the store at ``path``, which has shown ``token`` already."""
    from tests.internals import Site, make_app, read_findings

    with open_store(path) as reader:
        site = Site(reader, read_findings(audit, verified, reader.manifest))
        loop = asyncio.new_event_loop()
        try:
            client = Client(make_app(site, TOKEN), loop)
            if token is not None:
                client.get("/", token=token)
            yield client
        finally:
            site.close()
            loop.close()


def ask(client: Client, path: str, **parameters: Any) -> Any:
    """The JSON that the server answers, once what it does in the background is done."""
    while True:
        answer = client.get(path, **parameters)
        if answer.status != 202:
            assert answer.status == 200, answer.content
            return answer.json()


def make_large(path: Path, shards: int, records: int) -> None:
    """A store of ``shards`` links to one LMDB of ``records``, with tiny images and ten classes; takes no space."""
    kind = FORMATS["lmdb"]
    path.mkdir()
    first = path / kind.shard_name(0)
    classes = tuple(f"class {i}" for i in range(10))
    image = Column("image", "fixed", "uint8", (4, 4, 3), "HWC", type="image")
    label = Column("label", "fixed", "int64", (), None, classes, type="label")
    numbers = np.arange(records, dtype=np.int64)
    with StoreBuilder(
        first, Manifest("lmdb", "uint8", 0, (image, label, KEY, CHECKSUM, ROW_CHECKSUM), Origin("flat", "synthetic"))
    ) as b:
        b.append(
            [bytes([i * 37 % 256] * 48) for i in range(records)],
            {"key": [f"photo-{i:05}.jpg" for i in range(records)], "label": numbers % 10},
            "train",
        )
        manifest = b.commit()
    nbytes, digest = file_digest(kind.data_file(first))
    row = Shard(first.name, records, nbytes, manifest.image.nbytes, manifest.records_digest, digest, manifest.digest)
    rows = [row]
    for number in range(1, shards):
        (path / kind.shard_name(number)).mkdir()
        kind.data_file(path / kind.shard_name(number)).hardlink_to(kind.data_file(first))
        rows.append(dataclasses.replace(row, name=kind.shard_name(number)))
    total = shards * records
    head = dataclasses.replace(
        manifest,
        records=total,
        columns=tuple(dataclasses.replace(c, nbytes=c.nbytes * shards, digest=None) for c in manifest.columns),
        splits=(Split("train", 0, total - records), Split("val", total - records, total)),
        records_digest=join_records_digests((row.records_digest, row.records) for row in rows),
        shards=ShardTable.from_shards(rows, kind.suffixes[0]),
    )
    write_manifest_and_table(path, head)


def make_hostile(path: Path) -> None:
    """A store with HTML in its keys and the names of its classes and splits, and an image that is none."""
    image = Column("image", "ragged", "uint8", type="image")
    label = Column("label", "fixed", "int64", classes=(HTML, "bee"), type="label")
    caption = Column("caption", "ragged", "uint8", type="text")
    columns = (image, label, caption, KEY, CHECKSUM, ROW_CHECKSUM)
    out = io.BytesIO()
    Image.new("RGB", (9, 9), "red").save(out, "PNG")
    keys = [f"{HTML}.png", "..\\..//\x1b[31m\udcff", '"; alert(1)']
    images = [out.getvalue(), out.getvalue(), HTML.encode()]
    with StoreBuilder(path, Manifest("lmdb", "original", 0, tuple(columns), Origin("made", HTML))) as builder:
        builder.append(images, {"key": keys, "label": np.array([0, 1, 0]), "caption": [HTML] * 3}, f"a{HTML}")
        builder.commit()


@contextmanager
def served(path: Path, **reports: Path) -> Iterator[str]:
    """The address of a server for the store at ``path``, with the token, on this machine."""
    import socket
    import threading

    from tests.internals import Server, Site, make_app, read_findings

    with open_store(path) as reader, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        site = Site(reader, read_findings(reports.get("audit"), reports.get("verified"), reader.manifest))
        server = Server(make_app(site, TOKEN), lambda: None)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/?token={TOKEN}"
        finally:
            server.should_exit = True
            thread.join()
            site.close()
