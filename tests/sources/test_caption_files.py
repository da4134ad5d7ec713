"""Images with a text each: all texts are looked at, and other annotations are never taken for captions."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore import AmbiguousSourceError
from packstore.sources import Entry, ask_about_left, open_source
from packstore.testing import SourceSuite
from tests.internals import is_words
from tests.makers.annotated import fill
from tests.makers.images import tiny


def make(
    folder: Path, samples: int, text: str = "a photo of {n} cats, red", place: str = "a{n:05}", end: str = "txt"
) -> Path:
    names = [place.format(n=n) for n in range(samples)]
    images = {f"{name}.png": tiny(n) for n, name in enumerate(names)}
    return fill(folder, {**images, **{f"{name}.{end}": text.format(n=n) for n, name in enumerate(names)}})


def read(path: Path) -> dict[str, dict[str, Any]]:
    with closing(open_source(path)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert (source.kind, survey.ledger.left) == ("caption_files", {})
        return {entry.key: dict(source.read(entry).values) for entry in source.entries()}  # type: ignore[union-attr]


class TestCaptionFiles(SourceSuite):
    kind = "caption_files"
    undecodable_keys = False
    bytes_per_sample = 400
    many = 1000

    def make(self, folder: Path, samples: int) -> Path:
        return make(folder, samples)

    def change(self, path: Path) -> None:
        (path / "a00000.png").write_bytes(tiny(99_999))

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).unlink()
        (path / entry.key).symlink_to("nowhere")
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.key).open("r+b") as file:
            file.truncate((64 << 20) + 100)
        return True


@pytest.mark.parametrize("samples", [3, 300, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("end", ["txt", "caption", "cap"])
def test_each_text_goes_with_its_image(end: str, samples: int, tmp_path: Path) -> None:
    path = make(tmp_path / "set", samples, end=end)
    expected = {f"a{n:05}.png": {"caption": f"a photo of {n} cats, red"} for n in range(samples)}
    archives = [Path(shutil.make_archive(str(tmp_path / "a"), suffix, path)) for suffix in ("zip", "tar")]
    for place in (path, *archives[: 2 - (end == "txt")]):  # a tar of images and texts is a shard of WebDataset
        assert read(place) == expected


def test_folders_and_splits(tmp_path: Path) -> None:
    make(tmp_path / "one", 4, place="{n}_cat/b{n}")
    assert [each["folder"] for each in read(tmp_path / "one").values()] == [f"{n}_cat" for n in range(4)]
    make(tmp_path / "two", 4, place="train/b{n}")
    make(tmp_path / "two", 2, place="test/c{n}")
    with closing(open_source(tmp_path / "two")) as source:
        assert dict(source.survey().splits) == {"train": 4, "test": 2}


def test_an_image_without_a_text_has_none(tmp_path: Path) -> None:
    path = make(tmp_path, 4)
    (path / "a00001.txt").unlink()
    (path / "a00002.txt").write_text("")
    assert [each["caption"] for each in read(path).values()] == [
        "a photo of 0 cats, red", None, "", "a photo of 3 cats, red",
    ]  # fmt: skip


def test_folders_that_may_be_classes_are_a_question(tmp_path: Path) -> None:
    make(make(tmp_path, 4, place="cats/a{n}"), 4, place="dogs/b{n}")
    with pytest.raises(AmbiguousSourceError) as caught:
        open_source(tmp_path)
    assert ("--source", "caption_files") in [answer.options for answer in caught.value.answers]
    with closing(open_source(tmp_path, kind="caption_files")) as source:
        values = source.read(list(source.entries())[-1]).values  # type: ignore[union-attr]
    assert dict(values) == {"caption": "a photo of 3 cats, red", "folder": "dogs"}


@pytest.mark.parametrize(
    "line",
    [
        "cat 0.5 0.5 0.1 0.1",
        "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59",
        "1,2,9,2,9,7,1,7,word",
        "10.0 20.0 30.0 20.0 30.0 40.0 10.0 40.0 plane 0",
        '{"label": "cat"}',
        '[{"label": "cat"}]',
        "<annotation></annotation>",
        "0 1 2",
        "a\0b",
        "x" * 70_000,
    ],
)
@pytest.mark.parametrize("samples", [3, 300])
def test_one_other_text_is_a_question(line: str, samples: int, tmp_path: Path) -> None:
    """Of all texts, the last is an annotation."""
    path = make(tmp_path, samples)
    (path / f"a{samples - 1:05}.txt").write_text(line)
    with pytest.raises(AmbiguousSourceError):
        open_source(path)


def test_other_annotations_beside_them_are_a_question(tmp_path: Path) -> None:
    path = make(tmp_path, 30)
    (path / "metadata.json").write_text("{" + ",".join(f'"a{n:05}": {n}' for n in range(30)) + "}")
    with pytest.raises(AmbiguousSourceError), closing(open_source(path)) as source:
        ask_about_left(source, source.survey())


def test_texts_of_two_suffixes_are_a_question(tmp_path: Path) -> None:
    path = make(make(tmp_path, 4), 4, end="caption")
    with pytest.raises(AmbiguousSourceError):
        open_source(path)


@pytest.mark.parametrize("text", ["[trigger]. A cat, red", "<lora:owl:0.8> a cat", "{red|blue} cat"])
def test_marks_of_prompts_are_words(text: str, tmp_path: Path) -> None:
    path = make(tmp_path, 3)
    (path / "a00002.txt").write_text(text)
    with closing(open_source(path)) as source:
        values = source.read(list(source.entries())[-1]).values  # type: ignore[union-attr]
        assert (source.kind, dict(values)) == ("caption_files", {"caption": text})


@given(st.lists(st.sampled_from(["cat", "1girl", "(red:1.2)", "4k", "no1", "solo"]), min_size=1))
def test_words_are_captions(words: list[str]) -> None:
    assert is_words(", ".join(words).encode())


@given(st.binary())
def test_any_bytes_are_one_or_none(raw: bytes) -> None:
    assert is_words(raw) in (True, False)
