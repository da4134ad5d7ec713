"""The server of ``packstore view``: broken requests print nothing, and memory is bounded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pytest

import packstore
from tests.conftest import Need, Stores
from tests.internals import Guard, StoreError, sort_by_key
from tests.makers.datasets import write_image
from tests.makers.typed import make_typed
from tests.makers.viewing import AVAILABLE, TOKEN, Client, ask, client_of, make_hostile, served


@pytest.fixture(autouse=True)
def _installed(need: Need) -> None:
    need("starlette", AVAILABLE)


# Broken requests ------------------------------------------------------------------------------------------------


CHUNKED = "GET {path} HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n"
BROKEN: dict[str, tuple[str, ...]] = {
    "chunk size": (CHUNKED + "zz\r\n",),
    "chunk size, later": (CHUNKED, "zz\r\n"),
    "second chunk, later": (CHUNKED + "3\r\nabc\r\n", "zz\r\n"),
    "chunk without an end": (CHUNKED + "3\r\nabcdef", "0\r\n\r\n"),
    "huge chunk": (CHUNKED + "f" * 24 + "\r\nabc",),
    "trailer": (CHUNKED + "0\r\nno trailer\r\n\r\n",),
    "chunks and a length": (
        "GET {path} HTTP/1.1\r\n{head}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ),
    "chunks of POST": ("POST {path} HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n",),
    "unknown encoding": ("GET {path} HTTP/1.1\r\n{head}Transfer-Encoding: gzip\r\n\r\n",),
    "cut in the body": ("GET {path} HTTP/1.1\r\n{head}Content-Length: 100\r\n\r\nabc",),
    "cut in a chunk": (CHUNKED + "10\r\nabc",),
    "cut in the header": ("GET {path} HTTP/1.1\r\n{head}",),
    "longer than its length": ("GET {path} HTTP/1.1\r\n{head}Content-Length: 1\r\n\r\nabcdef",),
    "negative length": ("GET {path} HTTP/1.1\r\n{head}Content-Length: -1\r\n\r\n",),
    "two lengths": ("GET {path} HTTP/1.1\r\n{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n",),
    "header without a colon": ("GET {path} HTTP/1.1\r\n{head}no colon\r\n\r\n",),
    "NUL in a header": ("GET {path} HTTP/1.1\r\n{head}a: \0\r\n\r\n",),
    "huge header": ("GET {path} HTTP/1.1\r\n{head}a: " + "a" * 200_000 + "\r\n\r\n",),
    "huge address": ("GET {path}" + "a" * 200_000 + " HTTP/1.1\r\n{head}\r\n",),
    "bytes in the address": ("GET {path}\xff\xfe HTTP/1.1\r\n{head}\r\n",),
    "no host": ("GET {path} HTTP/1.1\r\n\r\n",),
    "two hosts": ("GET {path} HTTP/1.1\r\n{head}Host: x\r\n\r\n",),
    "unknown version": ("GET {path} HTTP/9.9\r\n{head}\r\n",),
    "HTTP/2": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",),
    "TLS": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "\0" * 100,),
    "garbage": ("\0\1\2\3\r\n\r\n",),
    "a second, broken one": ("GET {path} HTTP/1.1\r\n{head}\r\nGET\r\n\r\n",),
    "upgrade": ("GET {path} HTTP/1.1\r\n{head}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",),
    "chunks and an upgrade": (
        "GET {path} HTTP/1.1\r\n{head}Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ),
}


def converse(port: int, parts: tuple[str, ...], **words: str) -> bytes:
    """Sends the parts of a request, each after the answer to the one before it, and returns the whole answer."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            for number, part in enumerate(parts):
                if number:
                    answer += connection.recv(1 << 20)
                for name, word in words.items():
                    part = part.replace(f"{{{name}}}", word)
                connection.sendall(part.encode("latin-1"))
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 20):
                answer += more
        except OSError:  # the server has closed the connection already
            assert answer or len(parts) == 1
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/api/store", "/thumbnail/96/0", "/nowhere"])
@pytest.mark.parametrize("allowed", [False, True], ids=["stranger", "browser"])
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.sampled(3)
def test_a_broken_request_prints_nothing(
    name: str, allowed: bool, path: str, stores: Stores, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(stores("files.lmdb")) as address:
        port = urlparse(address).port
        assert port is not None
        host = "Host: 127.0.0.1\r\n"
        greeting = converse(port, ("GET /?token={token} HTTP/1.1\r\n{head}\r\n",), token=TOKEN, head=host).decode()
        cookie = next(line for line in greeting.split("\r\n") if line.lower().startswith("set-cookie"))
        cookie = f"Cookie: {cookie.partition(': ')[2].partition(';')[0]}\r\n"
        answer = converse(port, BROKEN[name], path=path, head=host + cookie * allowed)
        assert answer[:9] in (b"HTTP/1.1 ", b"")
        assert answer[9:10] in (b"2", b"3", b"4", b"")
        good = converse(port, ("GET /api/store HTTP/1.1\r\n{head}Connection: close\r\n\r\n",), head=host + cookie)
        assert good.startswith(b"HTTP/1.1 200 ")
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_runs_when_the_server_stops_is_answered(begun: bool) -> None:
    """uvicorn cancels it, and would log a traceback."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def wait_forever(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def stop() -> None:
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
        guard = Guard(wait_forever, TOKEN)
        scope["headers"] = [*headers, (b"cookie", f"{guard._cookie}={TOKEN}".encode())]
        request = asyncio.ensure_future(guard(scope, lambda: asyncio.Event().wait(), send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        request.cancel()
        await request

    asyncio.run(stop())
    assert [message.get("status") for message in sent] == ([200] if begun else [503, None])


# Memory ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(stores: Stores) -> Iterator[Client]:
    with client_of(stores("files.lmdb")) as client:
        yield client


@pytest.mark.parametrize(
    "augment",
    [
        "Pad(4096)", "Pad((4090, 4096), padding_mode='edge')", "RandomHorizontalFlip(), Pad(4096)",
        "Pad(4096), CenterCrop(8)", "Resize((4096, 4096)), Pad(4096)", "Pad(2048), Pad(2048), Pad(2048)",
        "RandomResizedCrop(4096), Pad(4096)", "RandomZoomOut(side_range=(100, 100), p=1.0), Pad(4096)",
        "RandomZoomOut(side_range=(99, 100), p=1.0)," * 12 + "CenterCrop(8)",
        "RandomResize(4095, 4096), Pad(4096)", "RandomApply([Pad(4096)], p=1.0)",
        "RandomApply([RandomZoomOut(side_range=(99, 100), p=1.0)] , p=1.0)," * 9 + "Pad(4096)",
        "RandomChoice([Pad(4096), Pad(4095)])", "CenterCrop((1, 40)), Resize(4096)",
        "RandomCrop((40, 1)), Resize(4096)", "RandomApply([Pad(" * 3 + "4096)]" + ")" * 2 + ")",
    ],
)  # fmt: skip
@pytest.mark.parametrize("what", ["/api/loaded", "/loaded"])
def test_an_image_that_operations_make_huge_is_refused(client: Client, augment: str, what: str) -> None:
    answer = client.get(f"{what}/1", augment=augment)
    assert answer.status == 400, answer.content[:300]
    assert len(answer.content) < 1000
    assert "pixels" in answer.json()["error"] or "calls of" in answer.json()["error"]


@pytest.mark.parametrize("augment", ["Pad(1000)", "Resize(1500)", "RandomApply([Pad(600)], p=1.0)", "dino", ""])
def test_a_large_image_is_shown(client: Client, augment: str) -> None:
    assert client.get("/api/loaded/1", augment=augment).status == 200


def test_a_stored_image_beyond_the_limit_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.internals import loaded

    monkeypatch.setattr(loaded, "_MOST_BYTES", 10_000)
    write_image(tmp_path / "in" / "a.png", 100, 100, 1)
    packstore.convert(tmp_path / "in", tmp_path / "x.lmdb")
    with client_of(tmp_path / "x.lmdb") as client:
        for augment in ("", "RandomHorizontalFlip()", "CenterCrop(100)", "Resize(20)"):
            assert ask(client, "/api/loaded/0", augment=augment)["shown"]
        for augment in ("Resize(101)", "Pad(1)"):
            assert client.get("/api/loaded/0", augment=augment).status == 400


@pytest.mark.parametrize("name", ["cifar.h5", "floats.pth", "bfloats.lmdb", "floats.h5"])
def test_the_limit_counts_bytes(name: str, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floating point is float32 on its way to the page."""
    from tests.internals import loaded

    monkeypatch.setattr(loaded, "_MOST_BYTES", 3 * 40 * 40 * (1 if name.startswith("cifar") else 4))
    with client_of(stores(name)) as client:
        assert client.get("/api/loaded/1", augment="Resize(40)").status == 200
        assert client.get("/api/loaded/1", augment="Resize(41)").status == 400


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "masks", "floats"])
@pytest.mark.parametrize("most", [300_000, 1_000_000])
def test_loaded_records_are_kept_in_bounded_memory(
    kind: str, most: int, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.internals import LoadRequest, SampleLoader, loaded

    monkeypatch.setattr(loaded, "_MOST_BYTES", most)
    if kind == "masks":
        make_typed(path := tmp_path / "x.lmdb", ["mask", "deep", "boxes", "labels", "points"])
    else:
        path = stores(f"{kind}.lmdb")
    with packstore.open(path) as reader:
        loader = SampleLoader(reader)
        for seed in range(30):
            side = 20 + seed * 2
            request = LoadRequest(seed % len(reader), f"RandomResizedCrop({side}), Pad({side // 4})", seed, 0)
            found = loader.load(request)
            assert found.nbytes <= loader.cached_bytes <= most
            assert loader.load(request) is found


# Sorting --------------------------------------------------------------------------------------------------------


KEYS = [b"\xff\xff", b"a", None, b"\xff", b"", None, b"\xfe", b"\xff\x00", b"\xff\xff\xff"]


@pytest.mark.parametrize("turn", range(len(KEYS)))
def test_unreadable_keys_come_last(turn: int) -> None:
    """After keys that begin with the highest byte, too."""
    keys = KEYS[turn:] + KEYS[:turn]

    def value(column: str, record: int) -> bytes:
        key = keys[record]
        if key is None:
            raise StoreError(f"record {record}: its {column} is damaged")
        return key

    reader: Any = SimpleNamespace(value=value)
    found = sort_by_key(reader, np.arange(len(keys)), lambda done: None).tolist()
    readable = sorted((key, record) for record, key in enumerate(keys) if key is not None)
    unreadable = [record for record, key in enumerate(keys) if key is None]
    assert found == [record for _, record in readable] + unreadable


def test_keys_that_are_no_text_are_sorted_by_their_bytes(tmp_path: Path) -> None:
    make_hostile(tmp_path / "x.lmdb")
    with client_of(tmp_path / "x.lmdb") as client, packstore.open(tmp_path / "x.lmdb") as reader:
        expected = sorted(range(3), key=lambda record: bytes(reader.value("key", record)))
        assert [row["record"] for row in ask(client, "/api/rows", stop=9, sort="key")["rows"]] == expected
