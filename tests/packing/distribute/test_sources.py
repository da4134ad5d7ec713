"""Every layout: a process that opens the source for itself packs the entries that the driver has listed."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import packstore
from tests.internals import LocalRunner, PackstoreError, SharedJob, driver, task
from tests.makers.all_layouts import LAYOUTS
from tests.makers.clusters import assert_same


class Elsewhere(LocalRunner):
    """Packs as another process does: job and entries come as bytes."""

    def __init__(self, job: SharedJob) -> None:
        super().__init__(pickle.loads(pickle.dumps(job)))

    def submit(self, number: int, entries: Any) -> None:
        super().submit(number, pickle.loads(pickle.dumps(entries)))


@pytest.fixture(autouse=True)
def close_sources() -> Iterator[None]:
    """Closes what the process that packs has opened; an array in a file warns otherwise."""
    yield
    while task._sources:
        task._sources.popitem()[1].close()


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("at_a_url", [False, True])
@pytest.mark.parametrize("layout", [layout for layout, (kind, _) in LAYOUTS.items() if kind is not None])
def test_the_same_bytes_of_any_source(
    layout: str, at_a_url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    kind, make = LAYOUTS[layout]
    (tmp_path / "source").mkdir()
    path = make(tmp_path / "source")
    if layout == "ILSVRC for validation":  # what lies beside an object is not fetched
        path = path.parent
    place = path.as_uri() if at_a_url else path
    options: dict[str, Any] = {"source_kind": kind, "shard_size": 600, "on_error": "skip"}
    monkeypatch.setattr(driver, "LocalRunner", Elsewhere)
    url = f"{tmp_path.as_uri()}/objects/x.h5"
    try:
        packstore.convert(path, tmp_path / "x.h5", **options)
    except PackstoreError as error:  # of some, keys come twice
        with pytest.raises(type(error), match=re.escape(str(error))):
            packstore.convert(place, url, **options)
    else:
        packstore.convert(place, url, **options)
        assert_same(url, tmp_path / "x.h5")
