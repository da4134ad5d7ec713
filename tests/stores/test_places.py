"""What local places and URLs have in common: a store is written, published, refused, replaced and grown alike."""

from __future__ import annotations

from pathlib import Path

import pytest

import packstore
from packstore.stores import open_store
from tests.internals import DestinationError, MissingStoreError, WorkDirectory, location, place_of
from tests.makers.datasets import make_folder


@pytest.fixture(params=[False, True], ids=["local", "url"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return location((folder / "x.h5").as_uri() if request.param else folder / "x.h5")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    packstore.convert(make_folder(tmp_path / "photos"), tmp_path / "made.h5")
    return tmp_path / "made.h5"


def test_a_store_is_published_refused_and_replaced(destination: Path, store: Path) -> None:
    place = place_of(destination)
    for overwrite in (False, True):
        with place.new_store(overwrite=overwrite) as draft:
            draft.path.write_bytes(store.read_bytes())
            with open_store(draft.path) as reader:
                draft.publish(reader.manifest, lambda _: None)
        with pytest.raises(DestinationError, match="exists already"):
            place.check_new_store(overwrite=False)
        place.check_new_store(overwrite=True)
    with open_store(destination) as reader, open_store(store) as made:
        assert reader.manifest.dataset_digest == made.manifest.dataset_digest


def test_what_is_not_published_at_a_url_is_not_there(tmp_path: Path, store: Path) -> None:
    url = location((tmp_path / "x.h5").as_uri())
    with place_of(url).new_store(overwrite=False) as draft:
        draft.path.write_bytes(store.read_bytes())
    assert not draft.path.exists()
    with pytest.raises(MissingStoreError):
        open_store(url)


def test_growth_reads_the_present_store(destination: Path, store: Path) -> None:
    packstore.convert(store, destination)
    with place_of(destination).grow() as growth:
        assert growth.find_finished(lambda: pytest.fail("nothing was interrupted")) is None
        assert growth.read_manifest().records == growth.list_shards().rows["records"].sum() == 24
    with pytest.raises(MissingStoreError), place_of(destination.with_name("y.h5")).grow() as growth:
        growth.read_manifest()


def test_a_place_says_what_is_there(tmp_path: Path) -> None:
    local, url = place_of(tmp_path / "x.h5"), place_of(location("memory://places/x.h5"))
    assert (local.remote, local.is_empty(), local.find_writer()) == (False, True, None)
    assert (url.remote, url.is_empty(), url.find_writer()) == (True, False, None)  # a URL is not asked
    work = WorkDirectory(local.path)
    assert local.find_writer() is not None
    work.remove()
