"""Folders in object stores as sources: the same as on this machine."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.sources import open_source
from tests.internals import (
    DestinationError,
    PackstoreError,
    SampleError,
    SourceError,
    UsageError,
    connection,
    location,
    remote,
)
from tests.makers.all_layouts import LAYOUTS
from tests.makers.datasets import make_folder
from tests.makers.s3 import Double, Fault, upload
from tests.makers.sources import not_packed

ALWAYS = 1 << 30


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache that is used, empty."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder_to_upload(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", per_class=7)


@pytest.fixture
def raw(s3_double: Double, folder_to_upload: Path) -> str:
    url = upload(folder_to_upload, "s3://bucket/raw/photos")
    s3_double.requests.clear()
    return url


def look(path: str | Path, root: Path) -> Any:
    """All that a source says of what lies there, or why it is none, in words without the place."""
    try:
        with closing(open_source(location(path))) as source:
            survey = source.survey()
            entries = list(source.entries())
            found = [(entry.key, entry.split, entry.labels, entry.size_bytes) for entry in entries]
            said = survey.splits, survey.columns, survey.size_bytes, survey.ledger.passed_over
            return source.kind, source.evidence, said, found, [repr(source.image(entry)) for entry in entries]
    except PackstoreError as error:
        said = str(error).partition(" Answers: ")[0].removesuffix(".")
        return type(error).__name__, said.replace(f"file://{root}", "").replace(str(root), "")


@pytest.mark.sampled(12, fast=1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_as_on_this_machine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``file://`` has all that object stores have but the network."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "source").mkdir()
    path = LAYOUTS[name][1](tmp_path / "source")
    if name == "ILSVRC for validation":  # what lies beside an object is not fetched
        path = path.parent
    assert look(f"file://{path}", tmp_path) == look(path, tmp_path)


@pytest.mark.slow
def test_the_store_is_the_same(s3: str, folder_to_upload: Path, tmp_path: Path) -> None:
    """Against moto, with every column and in every split."""
    url = upload(folder_to_upload, s3)
    here = packstore.convert(folder_to_upload, tmp_path / "here.lmdb")
    there = packstore.convert(url, tmp_path / "there.lmdb")
    assert there.manifest.dataset_digest == here.manifest.dataset_digest
    assert there.manifest.splits == here.manifest.splits
    assert there.manifest.origin.kind == here.manifest.origin.kind
    assert packstore.verify(tmp_path / "here.lmdb", against=url).ok
    assert packstore.verify(tmp_path / "there.lmdb", against=folder_to_upload).ok


@pytest.mark.slow
def test_commands(raw: str, folder_to_upload: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "packstore", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    said = run("info", raw)
    assert raw in said
    assert "imagefolder" in said
    assert f"packstore convert {raw}" in said
    out = str(tmp_path / "out.lmdb")
    said = run("convert", raw, out)
    assert f"packstore verify {out} --against {raw}" in said
    assert "compared with" in run("verify", out, "--against", raw)
    run("append", out, raw, "--on-duplicate", "skip")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [None, "processes:2"])
def test_from_one_url_to_another(
    raw: str, folder_to_upload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str | None
) -> None:
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    out = "s3://bucket/packed/photos.lmdb"
    report = packstore.convert(raw, out, cluster=cluster, shard_size=20_000)
    here = packstore.convert(folder_to_upload, tmp_path / "here.lmdb", shard_size=20_000)
    assert report.manifest.dataset_digest == here.manifest.dataset_digest
    assert packstore.verify(out, against=raw).ok


@pytest.mark.parametrize("out", ["s3://bucket/raw/photos/out.lmdb", "s3://bucket/raw"])
def test_a_destination_within_its_source(raw: str, out: str) -> None:
    not_packed(DestinationError, raw, out, "one lies in the other", format="lmdb")


@pytest.mark.slow
def test_requests(s3_double: Double, raw: str, tmp_path: Path) -> None:
    """A listing for each folder, whatever the number of kinds that ask; a request for each image, and few more for the
    headers of 16, and for eight pairs of each two folders of equal names."""
    report = packstore.convert(raw, tmp_path / "out.lmdb")
    listings = [name for method, name in s3_double.requests if method == "LIST"]
    read = [name for method, name in s3_double.requests if method == "GET" and name.startswith("raw/photos/")]
    folders = {name.rpartition("/")[0] for name in s3_double.objects}
    images = [name for name in read if not name.endswith((".json", ".txt"))]
    assert len({*images}) == report.manifest.records
    assert len(images) <= report.manifest.records + 16 + 6 * 16
    assert len(listings) <= 2 * len(folders) + 12


def test_names_of_all_sorts(s3_double: Double, tmp_path: Path, folder_to_upload: Path) -> None:
    image = next(folder_to_upload.rglob("*.jpg")).read_bytes()
    names = ["a b/ä%20+.jpg", "a b/#?&=.jpg", "c/日本.jpg", "c/x.JPG"]
    for name in names:
        s3_double.objects[f"set/{name}"] = image
    s3_double.objects["set/"] = s3_double.objects["set/c/"] = b""  # as consoles make folders
    s3_double.objects["set/c/.DS_Store"] = b"1"
    with closing(open_source(location("s3://bucket/set"))) as source:
        entries = list(source.entries())
        assert sorted(entry.key for entry in entries) == sorted(names)
        assert {source.read(entry) for entry in entries} == {image}
        assert source.survey().ledger.passed_over == {"hidden": 1}


@pytest.mark.slow
def test_a_whole_bucket(s3_double: Double, folder_to_upload: Path) -> None:
    for file in folder_to_upload.rglob("*.*"):
        s3_double.objects[file.relative_to(folder_to_upload).as_posix()] = file.read_bytes()
    with closing(open_source(location("s3://bucket"))) as source, closing(open_source(folder_to_upload)) as here:
        assert [entry.key for entry in source.entries()] == [entry.key for entry in here.entries()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "cut", "flipped", "slow"])
def test_faults_cost_time_alone(s3_double: Double, raw: str, folder_to_upload: Path, tmp_path: Path, kind: str) -> None:
    """A flipped bit shows in the MD5 that an ETag is."""
    s3_double.faults.append(Fault(kind, "GET", r"\.(jpg|png)$", times=3))
    report = packstore.convert(raw, tmp_path / "out.lmdb")
    assert s3_double.faults[0].times == 0
    expected = packstore.convert(folder_to_upload, tmp_path / "here.lmdb").manifest.dataset_digest
    assert report.manifest.dataset_digest == expected


@pytest.mark.slow
def test_etags_that_are_no_digests(s3_double: Double, raw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with encryption by keys of KMS: what reads the same twice is taken, and from then on read once."""
    monkeypatch.setattr("tests.makers.s3._etag", lambda data: f'"{len(data):032x}"')
    with closing(open_source(location(raw))) as source:
        entries = list(source.entries())
        s3_double.requests.clear()
        assert [len(source.image(entry)) for entry in entries] == [entry.size_bytes for entry in entries]
        assert len(s3_double.requests) == len(entries) + 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "403", "silent"])
def test_a_store_that_fails_is_no_bad_sample(
    s3_double: Double, raw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With ``on_error="skip"`` all samples would be skipped for it."""
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 2.0)
    s3_double.faults.append(Fault(kind, "GET", r"\.(jpg|png)$", times=ALWAYS))
    caught = not_packed(SourceError, raw, tmp_path / "out.lmdb", f"^{raw}/.* cannot be read: [^\n]*$", on_error="skip")
    assert not isinstance(caught, SampleError)


@pytest.mark.slow
def test_what_changes_meanwhile_is_a_bad_sample(s3_double: Double, raw: str) -> None:
    with closing(open_source(location(raw))) as source:
        first, second, *_ = source.entries()
        s3_double.objects[f"raw/photos/{first.key}"] += b"more"
        del s3_double.objects[f"raw/photos/{second.key}"]
        with pytest.raises(SampleError, match="has changed since it was listed"):
            source.read(first)
        with pytest.raises(SampleError, match="is not there any more"):
            source.read(second)


@pytest.mark.parametrize(
    ("url", "options", "error", "match"),
    [
        ("s3://bucket/none", {}, SourceError, "s3://bucket/none: nothing is there: no store"),
        ("s3://bucket/raw/set.tar", {}, SourceError, "s3://bucket/raw/set.tar is a file that begins .*: neither "),
        ("s3://bucket/rows", {}, SourceError, "s3://bucket/rows: byte 0: the file ends within"),
        ("s3://bucket/rows", {"kind": "tfrecord"}, SourceError, "s3://bucket/rows: byte 0: the file ends within"),
        ("s3://bucket/none", {"kind": "tfrecord"}, SourceError, "s3://bucket/none: nothing is there: no store"),
        ("s3://user:hush@bucket/x", {}, UsageError, "holds a user name or a password"),
        ("s3://", {}, UsageError, "s3:// needs a bucket"),
        ("s3:///x", {}, UsageError, "s3:///x names no bucket: write s3://bucket/path"),
        ("s3:bucket/x", {}, UsageError, "^s3: begins a URL whose slashes are missing: write s3://bucket/x, or put ./"),
        ("s3:user:hush@bucket/x", {}, UsageError, "write s3://bucket/x"),
        ("s3:///user:hush@bucket/x", {}, UsageError, "names no bucket"),
        ("File:x", {}, UsageError, "write file:///x, or put ./ before a path on this machine"),
        ("file://machine/x", {}, UsageError, "is on the machine 'machine'; write file:///path for this machine"),
        ("az://bucket/x?sp=r&sv=1&sig=hush", {}, UsageError, "^az://bucket/x is given with a query"),
        ("s3://bucket/x?versionId=3", {}, UsageError, "^s3://bucket/x is given with a query .*; give the URL without"),
        ("ftp://host/x", {}, UsageError, "URLs of ftp:// are not supported"),
        ("raw", {"labels": "s3://bucket/labels.csv"}, UsageError, "is a URL"),
    ],
)
def test_refusals(
    s3_double: Double,
    raw: str,
    cache: Path,
    url: str,
    options: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    s3_double.objects |= {"raw/set.tar": b"x" * 1000, "rows/a.tfrecord": b"1234"}
    with pytest.raises(error, match=match) as caught, closing(open_source(location(url), **options)) as source:
        source.survey()
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


def test_local_paths_that_look_like_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert location("./s3:x") == Path("s3:x")
    assert location("s4:x") == Path("s4:x")
    with pytest.raises(UsageError, match="slashes"):
        location("s3:x/y")
    Path("s3:x").mkdir()
    assert location("s3:x/y") == Path("s3:x/y")


@pytest.mark.slow
def test_a_web_server_has_archives_and_no_folders(folder_to_upload: Path, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    shutil.make_archive(str(tmp_path / "web" / "photos"), "tar", folder_to_upload)

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(tmp_path / "web"))

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            packstore.convert(f"{url}/photos.tar", tmp_path / "a.lmdb")
            with pytest.raises(UsageError, match=f"{url}/photos cannot be listed, so no folder there is a source"):
                open_source(location(f"{url}/photos"))
        finally:
            server.shutdown()
    packstore.convert(tmp_path / "web" / "photos.tar", tmp_path / "b.lmdb")
    with packstore.open(tmp_path / "a.lmdb") as far, packstore.open(tmp_path / "b.lmdb") as near:
        assert far.manifest.dataset_digest == near.manifest.dataset_digest


@pytest.mark.slow
def test_a_folder_of_which_alone_one_has_the_right(s3_double: Double, raw: str) -> None:
    """Listing the bucket may be forbidden."""
    s3_double.faults.append(Fault("403", "LIST", r"^(raw/)?$", times=ALWAYS))
    with closing(open_source(location(raw))) as source:
        assert source.survey().records
    assert s3_double.faults[0].times == ALWAYS


@pytest.mark.slow
def test_few_directories_are_known_at_a_time(s3_double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory does not grow with the source."""
    monkeypatch.setattr(remote, "_KNOWN_NAMES", 100)
    for directory in range(30):
        s3_double.objects |= {f"many/{directory:02}/{number}.jpg": b"\xff\xd8\xff" for number in range(30)}
    most = 0

    class Watched(remote.Bucket):
        def list_directory(self, name: str) -> remote.Names:
            nonlocal most
            found = super().list_directory(name)
            most = max(most, sum(map(len, self._known.values())))
            return found

    monkeypatch.setattr(remote, "Bucket", Watched)
    with closing(open_source(location("s3://bucket/many"))) as source:
        assert source.survey().records == 900
    assert 30 <= most <= 100
