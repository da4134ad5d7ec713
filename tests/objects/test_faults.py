"""What goes wrong on the way to an object store: the right bytes, or one line within a stated time."""

from __future__ import annotations

import logging
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from packstore.objects import ConflictError, ObjectStore, RemoteError, open_objects
from tests.internals import UsageError, connection
from tests.internals import direct as direct_module
from tests.makers.s3 import KEY_ID, NO_CREDENTIALS, SECRET, Double, Fault

DATA = bytes(range(256)) * 100
ALWAYS = 1 << 30


@pytest.fixture(autouse=True)
def _a_second_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 1.0)


@pytest.fixture
def _impatient(_a_second_is_silence: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no patience helps."""
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.6)


@pytest.fixture
def _patient(_a_second_is_silence: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what has to succeed: on a busy machine the server is silent for longer now and then."""
    monkeypatch.setattr(connection, "RETRY_SECONDS", 20.0)


@pytest.fixture
def store(s3_double: Double) -> ObjectStore:
    s3_double.objects["x/a"] = DATA
    return open_objects("s3://bucket/x")


@contextmanager
def one_line(match: str, seconds: float = 20) -> Iterator[None]:
    """Raises in one line with ``match``, without secrets even in its traceback. The time leaves room for a busy
    machine; obstore's own bounds are minutes."""
    before = time.monotonic()
    with pytest.raises((RemoteError, UsageError), match=match) as caught:
        yield
    assert time.monotonic() - before < seconds
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    for secret in (KEY_ID, SECRET, "Signature", "Debug source"):
        assert secret not in shown


READS: dict[str, Callable[[ObjectStore], bytes]] = {
    "get": lambda store: store.get("a"),
    "range": lambda store: store.get("a", 10, 20_000),
    "rest": lambda store: store.get("a", 10),
    "stream": lambda store: b"".join(store.stream("a")),
}
EXPECTED = {"get": DATA, "range": DATA[10:20_000], "rest": DATA[10:], "stream": DATA}


@pytest.mark.slow
@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("way", list(READS))
@pytest.mark.parametrize("kind", ["503", "cut", "silent", "slow"])
def test_reads_outlast_faults(s3_double: Double, store: ObjectStore, kind: str, way: str) -> None:
    s3_double.faults.append(Fault(kind, "GET"))
    assert READS[way](store) == EXPECTED[way]
    assert s3_double.faults[0].times == 0


REQUESTS: dict[str, tuple[str, str, Callable[[ObjectStore], object]]] = {
    **{way: ("GET", "/a cannot be read", read) for way, read in READS.items()},
    "create": ("PUT", "/new cannot be written", lambda store: store.create("new", DATA)),
    "list": ("LIST", " cannot be listed", lambda store: list(store.list())),
}
REASONS = {
    "503": r"the server answers SlowDown \(tried \d+ times\)",
    "silent": r"no answer within 0\.3 s",
    "403": r"access is denied \(AccessDenied\)",
    "expired": r"the credentials have expired \(ExpiredToken\); renew them",
    "lost": "",
}


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("kind", "way"), [*((kind, way) for kind in REASONS if kind != "lost" for way in REQUESTS), ("lost", "create")]
)
def test_requests_end_in_one_line(s3_double: Double, store: ObjectStore, kind: str, way: str) -> None:
    method, said, request = REQUESTS[way]
    s3_double.faults.append(Fault(kind, method, times=ALWAYS))
    with one_line(f"s3://bucket/x{said}: {REASONS[kind]}"):
        request(store)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_a_body_that_breaks_off_for_ever(s3_double: Double, store: ObjectStore) -> None:
    """Halves of halves of it come, until none is left but the last byte."""
    s3_double.faults.append(Fault("cut", "GET", times=ALWAYS))
    with one_line("the connection keeps breaking off"):
        store.get("a")


def test_a_long_stream_goes_on_where_it_broke_off(
    s3_double: Double, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than requests are made again for: obstore gives up, and we ask for the rest."""
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(direct_module, "STEP_BYTES", 1000)
    s3_double.faults.append(Fault("cut", "GET", times=3))
    assert b"".join(store.stream("a")) == DATA
    assert s3_double.faults[0].times == 0


def test_an_object_replaced_meanwhile_is_not_mixed(
    s3_double: Double, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(direct_module, "STEP_BYTES", 1000)
    s3_double.faults.append(Fault("cut", "GET"))
    stream = store.stream("a")
    next(stream)
    s3_double.objects["x/a"] = DATA[::-1]
    with one_line("s3://bucket/x/a (was replaced while it was read|cannot be read)"):
        list(stream)


@pytest.mark.usefixtures("_patient")
def test_a_flipped_bit_passes(s3_double: Double, store: ObjectStore) -> None:
    """So whoever reads proves what it reads."""
    s3_double.faults.append(Fault("flipped", "GET"))
    assert store.get("a") != DATA
    assert store.get("a") == DATA


@pytest.mark.slow
@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("kind", ["503", "silent", "lost"])
def test_creating_outlasts_faults(s3_double: Double, store: ObjectStore, kind: str) -> None:
    store.create("probed", b"")
    s3_double.faults.append(Fault(kind, "PUT", "new$"))
    assert store.create("new", DATA) is True
    assert s3_double.objects["x/new"] == DATA
    assert s3_double.faults[0].times == 0


@pytest.mark.slow
@pytest.mark.usefixtures("_patient")
def test_a_lost_reply_is_not_taken_for_another_content(s3_double: Double, store: ObjectStore) -> None:
    store.create("probed", b"")
    s3_double.faults.append(Fault("lost", "PUT", "a$"))
    s3_double.conditional = True
    with pytest.raises(ConflictError, match="s3://bucket/x/a exists already, with other content"):
        store.create("a", DATA + b"1")
    assert s3_double.objects["x/a"] == DATA


@pytest.mark.slow
@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("kind", ["503", "silent", "lost"])
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_uploads_in_parts_outlast_faults(
    s3_double: Double, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, kind: str
) -> None:
    """Or end in one line, with nothing under the name: a part may be sent twice, the end of an upload may not."""
    monkeypatch.setattr(direct_module, "_SINGLE_BYTES", 100)
    (tmp_path / "file").write_bytes(data := os.urandom(1000))
    store.create("probed", b"")
    s3_double.faults.append(Fault(kind, method))
    said = ""
    try:
        store.create("new", tmp_path / "file")
    except RemoteError as error:
        said = str(error)
    assert re.fullmatch("" if kind == "503" else "|s3://bucket/x/new cannot be written: .*", said)
    assert s3_double.objects.get("x/new", data) == data
    assert store.create("new", tmp_path / "file") in (True, False)
    assert s3_double.objects["x/new"] == data


@pytest.mark.slow
@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("kind", ["503", "silent"])
def test_listings_outlast_faults(s3_double: Double, store: ObjectStore, kind: str) -> None:
    s3_double.objects |= {f"x/many/{number:04}": b"" for number in range(2500)}
    s3_double.faults.append(Fault(kind, "LIST", times=1))
    assert sorted(info.name for info in store.list("many/")) == [f"many/{number:04}" for number in range(2500)]


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("conditional", [False, "refused"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_server_without_conditional_puts_is_refused(
    s3_double: Double, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, conditional: bool | str, in_parts: bool
) -> None:
    if in_parts:
        monkeypatch.setattr(direct_module, "_SINGLE_BYTES", 100)
    s3_double.conditional = conditional
    with one_line(
        r"s3://bucket/x cannot be written: its server .* \(If-None-Match.*\), so two writers could overwrite"
    ):
        store.create("new", DATA)
    assert list(s3_double.objects) == ["x/a"]


def test_a_server_without_conditional_copies_is_refused(
    s3_double: Double, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("probed", b"")
    monkeypatch.setattr(direct_module, "_SINGLE_BYTES", 100)
    s3_double.conditional = False
    with one_line("If-None-Match of an upload in parts"):
        store.create("new", DATA)
    assert sorted(s3_double.objects) == ["x/a", "x/probed"]


@pytest.mark.usefixtures("_patient")
def test_probing_once(s3_double: Double, store: ObjectStore) -> None:
    for number in range(5):
        store.create(f"n/{number}", b"")
    assert [method for method, name in s3_double.requests if "probe" in name] == ["PUT", "PUT"]


@pytest.mark.slow
@pytest.mark.parametrize("contents", ["same", "different"])
@pytest.mark.parametrize("kind", ["single", "parts"])
def test_one_of_sixteen_writers_wins(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contents: str, kind: str
) -> None:
    """Against moto."""
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 15.0)
    if kind == "parts":
        monkeypatch.setattr(direct_module, "_SINGLE_BYTES", 10)
    stores = [open_objects(s3) for _ in range(16)]

    def write(number: int) -> str:
        data = b"the same content" if contents == "same" else f"the content of {number}".encode()
        try:
            return "created" if stores[number].create("versions/1", data) else "was there"
        except ConflictError:
            return "conflict"

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(write, range(16)))
    assert results.count("created") == 1
    assert set(results) - {"created"} == {"was there" if contents == "same" else "conflict"}
    winner = results.index("created")
    expected = b"the same content" if contents == "same" else f"the content of {winner}".encode()
    assert stores[0].get("versions/1") == expected
    assert [info.name for info in stores[0].list()] == ["versions/1"]


@pytest.mark.parametrize(
    ("url", "variable", "wanted"),
    [
        ("s3://bucket/x", "AWS_METADATA_ENDPOINT", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/x", "GCE_METADATA_HOST", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://bucket/x", "AZURE_MSI_ENDPOINT", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
@pytest.mark.parametrize("call", [lambda store: store.get("a"), lambda store: store.create("a", b"")])
def test_no_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, variable: str, wanted: str, call: Callable[..., object]
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name, value in {**NO_CREDENTIALS, variable: "http://127.0.0.1:9", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    with one_line(f"{url}: no credentials; set {wanted}", seconds=5):
        call(open_objects(url))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["403", "silent"])
def test_a_metadata_service_that_has_none(s3_double: Double, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A firewall, or a proxy, that accepts all connections."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{s3_double.port}")
    s3_double.faults.append(Fault(kind, times=ALWAYS))
    with one_line("s3://bucket/x: no credentials; set AWS_ACCESS_KEY_ID", seconds=5):
        open_objects("s3://bucket/x").get("a")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9", "ftp://127.0.0.1", "http://", "http://me:secret@127.0.0.1:9"])
def test_an_endpoint_that_is_no_url(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """obstore panics at one."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with one_line("AWS_ENDPOINT_URL should be the URL of a server, such as http://"):
        open_objects("s3://bucket/x").get("a")


def test_az_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with one_line("set AZURE_STORAGE_ACCOUNT_NAME"):
        open_objects("az://container/x").get("a")


def test_keys_of_a_profile(
    s3_double: Double, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys, config = tmp_path / "credentials", tmp_path / "config"
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    keys.write_text(
        f"[default]\naws_access_key_id = no\n[mine]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"
    )
    config.write_text(f"[profile mine]\nregion = eu-central-1\nendpoint_url = {endpoint}\n")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert store.get("a") == DATA
    monkeypatch.setenv("AWS_PROFILE", "other")
    with one_line("there is no AWS profile 'other', which AWS_PROFILE names"):
        open_objects("s3://bucket/x").get("a")


def test_no_credentials_in_logs_and_representations(
    s3_double: Double, store: ObjectStore, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        store.get("a")
        store.create("new", b"")
        s3_double.faults.append(Fault("403", "GET"))
        with pytest.raises(RemoteError):
            store.get("a")
    out, err = capfd.readouterr()
    shown = caplog.text + out + err + repr(store) + repr(vars(store)) + repr(store._direct.__dict__)
    assert SECRET not in shown
    assert KEY_ID not in shown


@pytest.mark.parametrize("call", [lambda store: store.create("a", b""), lambda store: store.put("a", b"")])
def test_http_is_read_only(s3_double: Double, call: Callable[[ObjectStore], object]) -> None:
    s3_double.objects["x/a b"] = DATA
    store = open_objects(f"http://127.0.0.1:{s3_double.port}/bucket/x")
    assert (store.can_list, store.can_write) == (False, False)
    assert store.get("a b") == DATA
    assert store.get("a b", 5, 9) == DATA[5:9]
    with pytest.raises(UsageError, match="is read only"):
        call(store)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_no_server(monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with one_line(r"no connection to the server \(tried \d+ times\); check the endpoint"):
        store.get("a")
