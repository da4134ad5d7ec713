"""Stores that earlier versions of packstore wrote are read, verified and converted; see the guide's page on formats.

``tests/makers/released.py`` wrote ``tests/corpus/released``: ``layout-1`` at 84fbf63, ``0.1`` at a248c4e, ``0.2`` with
the release, ``0.3.dev`` when modes were new. Nothing there is written again: a new version adds an archive.
"""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import packstore
from packstore.cli import cli
from packstore.stores import open_store
from tests.internals import ENCODINGS, FORMAT_VERSION, FORMATS, ManifestError
from tests.makers.fuzz_targets import CORPUS
from tests.makers.released import digests

RELEASED = CORPUS / "released"
READ = ("0.1", "0.2", "0.3.dev")
REFUSED = "layout-1"


@cache
def expected(version: str) -> dict[str, dict[str, Any]]:
    """What the writer of the stores read from each."""
    with tarfile.open(RELEASED / f"{version}.tar.xz") as archive:
        file = archive.extractfile("expected.json")
        assert file is not None
        content: dict[str, dict[str, Any]] = json.load(file)
    return content


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The unpacked archives by version."""
    folders = {}
    for version in (*READ, REFUSED):
        folders[version] = tmp_path_factory.mktemp(version)
        with tarfile.open(RELEASED / f"{version}.tar.xz") as archive:
            archive.extractall(folders[version], filter="data")
    return folders


STORES = [(version, name) for version in READ for name in expected(version)]
stores = pytest.mark.parametrize(("version", "name"), STORES, ids=["-".join(each) for each in STORES])


@pytest.mark.slow
@stores
def test_it_is_read_as_its_writer_read_it(released: dict[str, Path], version: str, name: str) -> None:
    wanted = expected(version)[name]
    found = digests(released[version] / name)
    if wanted["encoding"] == "seekable":  # went with 0.2: its images are files like others
        assert found["encoding"] == "original"
        for field in ("encoding", "dataset_digest"):
            wanted = wanted | {field: found[field]}
    assert found == wanted


@pytest.mark.slow
@stores
def test_it_is_verified(released: dict[str, Path], version: str, name: str) -> None:
    assert packstore.verify(released[version] / name, decode=True).problems == ()
    said = CliRunner().invoke(cli, ["info", str(released[version] / name)])
    assert said.exit_code == 0, said.output


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@stores
def test_it_is_converted(released: dict[str, Path], tmp_path: Path, version: str, name: str, suffix: str) -> None:
    store, out = released[version] / name, tmp_path / f"out.{suffix}"
    manifest = open_store(store).manifest
    made = packstore.convert(store, out, encoding=manifest.encoding).manifest
    assert (made.format_version, made.dataset_digest) == (FORMAT_VERSION, manifest.dataset_digest)
    wanted, found = digests(store), digests(out)
    assert {**wanted, "format": found["format"]} == found
    assert packstore.verify(out, decode=True, against=store).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", expected(REFUSED))
def test_layout_1_is_refused_with_what_to_do(released: dict[str, Path], name: str) -> None:
    with pytest.raises(ManifestError, match="layout 1, written by an older packstore; pack it again"):
        open_store(released[REFUSED] / name)


def test_the_corpus_has_each_format_and_encoding_of_this_version() -> None:
    version = ".".join(packstore.__version__.split(".")[:2])
    assert version in READ, "write the stores of this version: tests/makers/released.py"
    found = {(store["format"], store["encoding"]) for store in expected(READ[-1]).values()}
    assert found == {(form, encoding) for form in FORMATS.built_in for encoding in ENCODINGS.built_in}
