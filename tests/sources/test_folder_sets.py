"""Published sets whose folders and file names say all."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import AmbiguousSourceError
from tests.makers.annotated import fill, jpeg
from tests.makers.annotation_formats import PATHS
from tests.makers.annotation_formats import make_folder_set as make

LAST: dict[str, dict[str, Any]] = {
    "market1501": {"identity": -1, "camera": 2, "sequence": 1, "frame": 7, "number": 1},
    "dukemtmc": {"identity": 7, "camera": 2, "frame": 7},
    "mars": {"identity": -1, "camera": 2, "track": 7, "frame": 201},
    "omniglot": {"label": "Oriya/character02", "drawer": 20},
}


class FolderSetSuite(SourceSuite):
    undecodable_keys = False
    bytes_per_sample = 400
    many = 500
    damages = 10

    def make(self, folder: Path, samples: int) -> Path:
        return make(self.kind, folder, samples)

    def change(self, path: Path) -> None:
        file = next(file for file in path.rglob("*") if file.is_file())
        file.write_bytes(jpeg(99))

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).unlink()
        (path / entry.key).symlink_to("nowhere")
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.key).open("r+b") as file:
            file.truncate((64 << 20) + 100)
        return True


class TestMarket1501(FolderSetSuite):
    kind = "market1501"


class TestDukemtmc(FolderSetSuite):
    kind = "dukemtmc"


class TestMars(FolderSetSuite):
    kind = "mars"


class TestOmniglot(FolderSetSuite):
    kind = "omniglot"


@pytest.mark.parametrize("kind", PATHS)
def test_what_names_say_is_kept(kind: str, tmp_path: Path) -> None:
    with closing(open_source(make(kind, tmp_path, 9))) as source:
        survey = source.survey()
        assert (source.kind, dict(survey.splits)) == (kind, {"train": 5, "test": 4})
        key = PATHS[kind][1].format(n=7, c=2)
        values = dict(next(source.read(entry) for entry in source.entries() if entry.key == key).values)
        if "label" in values:
            values["label"] = next(column.classes or () for column in survey.columns)[values["label"]]
        assert values == LAST[kind]


@pytest.mark.parametrize("kind", PATHS)
def test_a_name_of_another_form_is_asked_about_or_left(kind: str, tmp_path: Path) -> None:
    root = make(kind, tmp_path, 9)
    folder = next(file.parent for file in sorted(root.rglob("*")) if file.is_file())
    (folder / "zz strange.jpg").write_bytes(jpeg(50))
    with pytest.raises(AmbiguousSourceError, match=r"1 of its images have other names, .*zz strange"):
        open_source(root)
    with closing(open_source(root, kind=kind)) as source:
        survey = source.survey()
        assert survey.records == 9
        assert survey.ledger.left == {"images whose names do not follow the set's pattern": 1}


@pytest.mark.parametrize(
    ("folder", "split"),
    [("images_background", "train"), ("images_evaluation", "test"), ("images_background_small1",) * 2],
)
@pytest.mark.parametrize("archive", [False, True])
def test_one_archive_of_omniglot(folder: str, split: str, archive: bool, tmp_path: Path) -> None:
    """As published, ``images_background.zip``; unpacked, its folder is the split."""
    names = [f"{folder}/{alphabet}/character{c:02}/{n:04}_01.png" for alphabet in "AB" for c in (1, 2) for n in (3, 4)]
    root = fill(tmp_path / "set", {name: jpeg(n) for n, name in enumerate(names)})
    with closing(
        open_source(Path(shutil.make_archive(str(tmp_path / folder), "zip", root)) if archive else root)
    ) as source:
        survey = source.survey()
        assert (source.kind, dict(survey.splits)) == ("omniglot", {"" if archive else split: 8})
        label = next(column for column in survey.columns if column.name == "label")
        assert label.classes == ("A/character01", "A/character02", "B/character01", "B/character02")
