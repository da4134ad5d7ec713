"""Published sets that are told by their folders and names: each row is read whole, at any size, and never taken for
another layout."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore.sources import Entry, ask_about_left, open_source
from packstore.testing import SourceSuite
from tests.internals import MASKS, PAIRS, AmbiguousSourceError, Role, SampleError
from tests.internals import PUBLISHED_CLASSES as CLASSES
from tests.makers.annotated import jpeg
from tests.makers.published import SETS, make_set


def columns_of(path: Path) -> list[str]:
    with closing(open_source(path)) as source:
        return [column.name for column in source.survey().columns if not column.name.endswith("_valid")]


class TestPublished(SourceSuite):
    """Office-31."""

    kind = "published"
    undecodable_keys = False
    bytes_per_sample = 400
    many = 300
    damages = 10

    def make(self, folder: Path, samples: int) -> Path:
        for n in range(samples):
            place = folder / f"{'amazon' if n % 2 else 'dslr'}/images/{'ab'[n % 3 > 0]}/frame_{n:04}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(jpeg(n))
        (folder / "webcam/images").mkdir(parents=True)
        return folder

    def change(self, path: Path) -> None:
        next(file for file in path.rglob("*.jpg")).write_bytes(jpeg(9999))

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).unlink()
        (path / entry.key).symlink_to("nowhere")
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.key).open("r+b") as file:
            file.truncate((64 << 20) + 100)
        return True


def test_every_row_is_made() -> None:
    assert len(SETS) == len([*CLASSES, *MASKS, *PAIRS]) + 1  # one row for ImageNet-A and -Sketch


@pytest.mark.parametrize("samples", [3, 300, pytest.param(3000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", SETS)
def test_each_is_read_whole(name: str, samples: int, tmp_path: Path) -> None:
    samples = min(samples, 90) if "{m:" in str(SETS[name]) else samples
    path = make_set(name, tmp_path / "set", samples)
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert source.kind == "published"
        assert [column.name for column in survey.columns if not column.name.endswith("_valid")] == [*SETS[name].columns]
        assert {*SETS[name].splits} <= {*survey.splits}
        assert survey.ledger.count(Role.PACKED) + survey.ledger.count(Role.ANNOTATION) == survey.ledger.total - len(
            SETS[name].once
        )
        assert survey.records >= samples
        for entry in list(source.entries())[:: max(1, survey.records // 30)]:
            source.read(entry)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_archives_are_read_as_folders(name: str, suffix: str, tmp_path: Path) -> None:
    path = make_set(name, tmp_path / "set", 3)
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), suffix, path))
    with closing(open_source(path)) as folder, closing(open_source(archive)) as packed:
        # The only folder at the top of an archive is its root: then nothing but a name tells it from an image folder.
        assert packed.kind == "published" or (
            packed.kind in ("imagefolder", "companions") and len([*path.iterdir()]) == 1
        )
        pairs = list(zip(folder.entries(), packed.entries(), strict=True))
        assert all(one.key.endswith(other.key) and one.split == other.split for one, other in pairs)
        for one, other in pairs if len([*path.iterdir()]) > 1 else ():
            assert repr(folder.read(one)) == repr(packed.read(other))


@pytest.mark.parametrize("name", SETS)
def test_a_strange_image_is_asked_about(name: str, tmp_path: Path) -> None:
    """One image that is named otherwise, the last of all, in a set whose names are not free: another layout may be
    meant."""
    path = make_set(name, tmp_path / "set", 30)
    first = SETS[name].parts[0].pattern.format(n=0, m=0, c=0, s="a", p=SETS[name].splits[0])
    strange = (path / first).with_name("zz strange" + Path(first).suffix)
    strange.write_bytes((path / first).read_bytes())
    try:
        with closing(open_source(path)) as source:
            assert strange.relative_to(path).as_posix() in {entry.key for entry in source.entries()}
    except AmbiguousSourceError as error:
        assert "strange" in str(error) or "holds" in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", SETS)
def test_other_annotations_are_asked_about(name: str, tmp_path: Path) -> None:
    path = make_set(name, tmp_path / "set", 30)
    with closing(open_source(path)) as source:
        names = [entry.key for entry in source.entries()]
    lines = "".join(f"{key}: {n}\n" for n, key in enumerate(names))
    (path / "further.txt").write_text(lines)
    with pytest.raises(AmbiguousSourceError), closing(open_source(path)) as source:
        ask_about_left(source, source.survey())


def test_a_pair_without_its_second_image_is_no_pair(tmp_path: Path) -> None:
    path = make_set("change detection", tmp_path / "set", 30)
    (path / "test/B/29.png").unlink()
    with pytest.raises(AmbiguousSourceError):
        open_source(path)


def test_masks_and_json_have_the_bytes_of_their_files(tmp_path: Path) -> None:
    path = make_set("Mapillary Vistas", tmp_path / "set", 3)
    (path / "training/v2.0/polygons/training1.json").write_text(json.dumps({"objects": [{"label": "car"}]}))
    with closing(open_source(path)) as source:
        entry = next(entry for entry in source.entries() if entry.key.endswith("training1.jpg"))
        values: Any = source.read(entry).values  # type: ignore[union-attr]
        assert values["polygons"] == {"objects": [{"label": "car"}]}
        assert bytes(values["mask_v2"]) == (path / "training/v2.0/labels/training1.png").read_bytes()


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"\xff\xfe"])
def test_a_hostile_annotation_is_a_bad_sample(text: bytes, tmp_path: Path) -> None:
    path = make_set("ADE20K, full", tmp_path / "set", 3)
    (path / "images/ADE/training/urban/ADE_training_00000001.json").write_bytes(text)
    bad = []
    with closing(open_source(path)) as source:
        for entry in source.entries():
            try:
                source.read(entry)
            except SampleError as error:
                bad.append(str(error))
    (said,) = bad
    assert "ADE_training_00000001.jpg: its annotation is" in said


def test_classes_that_are_numbers_are_in_their_order(tmp_path: Path) -> None:
    names = [f"imagenetv2-top-images-format-val/{n}/{n:x}.jpeg" for n in range(12)]
    for n, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(jpeg(n))
    with closing(open_source(tmp_path)) as source:
        (label,) = source.survey().columns
        assert label.classes == tuple(map(str, range(12)))
