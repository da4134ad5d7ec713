"""Captions: a table of them, or a text beside each image."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore import PackedDataset
from packstore.sources import ask_about_left, open_source
from tests.internals import Role, SourceError, is_words
from tests.makers.annotated import fill, jpeg
from tests.makers.images import tiny
from tests.makers.sources import FileSuite, look, prove, question, refused


def captioned(root: Path, samples: int = 6) -> Path:
    """images/ with captions.csv: two captions of each image, not side by side."""
    files: dict[str, str | bytes] = {f"images/{n:05}.jpg": jpeg(n) for n in range(samples)}
    lines = [f'{n:05}.jpg,"a cat, {"first" if k else "again"} {n} ä"' for k in (1, 0) for n in range(samples)]
    return fill(root, {**files, "captions.csv": "\n".join(["image,caption", *lines])})


class TestCaptions(FileSuite):
    kind = "captions"
    bytes_per_sample = 400

    def make(self, folder: Path, samples: int) -> Path:
        return captioned(folder, samples)

    def change(self, path: Path) -> None:
        text = (path / "captions.csv").read_text()
        (path / "captions.csv").write_text(text.replace("first 3", "other 3"))


def test_what_is_kept(tmp_path: Path) -> None:
    root = captioned(tmp_path / "set")
    fill(root, {"images/extra.jpg": jpeg(9)})
    prove(root, tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", columns=("key", "captions", "image"), output="bytes")
    assert [tuple(ds[n]) for n in (0, 5)] == [
        (f"images/{n:05}.jpg", [f"a cat, first {n} ä", f"a cat, again {n} ä"], jpeg(n)) for n in (0, 5)
    ]
    assert dict(look(root).ledger.passed_over) == {"images without a caption": 1}


FLICKR30K = """image_name| comment_number| comment
0.jpg| 0| Two men , one tall .
0.jpg| 1| A | in a caption .
1.jpg| 0| A dog .
1.jpg| 1   A dog runs .
"""
FLICKR8K = "0.jpg#0\tTwo men , one tall .\n0.jpg#1\tA | in a caption .\n1.jpg#0\tA dog .\n1.jpg#1\tA dog runs .\n"
TABLE = 'file_name,text\n0.jpg,"Two men , one tall ."\n0.jpg,A | in a caption .\n1.jpg,A dog .\n1.jpg,A dog runs .\n'
LINES = "".join(
    json.dumps({"image": name, "captions": captions}) + "\n"
    for name, captions in (
        ("./0.jpg", ["Two men , one tall .", "A | in a caption ."]),
        ("1.jpg", ["A dog .", "A dog runs ."]),
    )
)


@pytest.mark.parametrize(
    ("file", "text", "folder"),
    [
        ("results.csv", FLICKR30K, "flickr30k_images/"),
        ("results_20130124.token", FLICKR8K, "flickr30k-images/"),
        ("Flickr8k_text/Flickr8k.token.txt", FLICKR8K, "Flicker8k_Dataset/"),
        ("captions.txt", TABLE, "Images/"),
        ("captions.csv", "\ufeff" + TABLE, ""),
        ("captions.tsv", TABLE.replace(",", "\t").replace(" \t", " ,"), "images/"),
        ("captions.jsonl", LINES, "images/"),
        ("images/captions.csv", TABLE, "images/"),
        ("captions.txt", TABLE.partition("\n")[2], "images/"),
        ("captions.txt", TABLE.partition("\n")[2].replace("jpg,", "jpg, ").replace('"', ""), "images/"),
        ("captions.tsv", TABLE.partition("\n")[2].replace("jpg,", "jpg\t"), ""),
    ],
)
def test_the_forms_of_captions(file: str, text: str, folder: str, tmp_path: Path) -> None:
    fill(tmp_path, {f"{folder}0.jpg": jpeg(0), f"{folder}1.jpg": jpeg(1), file: text})
    with closing(open_source(tmp_path)) as source:
        assert source.kind == "captions"
        found = {entry.key: source.read(entry).values["captions"] for entry in source.entries()}
    assert found == {
        f"{folder}0.jpg": ["Two men , one tall .", "A | in a caption ."],
        f"{folder}1.jpg": ["A dog .", "A dog runs ."],
    }


def test_one_caption_each_is_text(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jpg": jpeg(0), "b.jpg": jpeg(1), "captions.csv": "file,caption\nb.jpg,a dog\na.jpg,\n"})
    seen = look(tmp_path)
    assert [column.type for column in seen.columns] == ["text"]
    assert seen.values == [{"caption": "a dog"}, {"caption": ""}]


def test_splits_of_a_column_and_of_flickr8k(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"{n}.jpg": jpeg(n) for n in range(4)}
    fill(tmp_path / "a", {**files, "captions.csv": "file,caption,split\n0.jpg,x,test\n1.jpg,y,train\n0.jpg,z,test\n"})
    with closing(open_source(tmp_path / "a")) as source:
        assert dict(source.survey().splits) == {"train": 1, "test": 1}
        assert [source.read(entry).values["captions"] for entry in source.entries("test")] == [["x", "z"]]
    tokens = "".join(f"{n}.jpg#0\tcaption {n}\n" for n in range(4))
    sets = {f"Flickr_8k.{split}Images.txt": f"{n}.jpg\n" for n, split in enumerate(("train", "dev", "test"))}
    fill(tmp_path / "b", {**files, "Flickr8k.token.txt": tokens, "Flickr8k.lemma.token.txt": tokens, **sets})
    with closing(open_source(tmp_path / "b")) as source:
        survey = source.survey()
        assert dict(survey.splits) == {"train": 1, "dev": 1, "test": 1, "unassigned": 1}
        assert survey.ledger.left == {"not images (.txt)": 1}
        assert source.read(next(source.entries("dev"))).values == {"caption": "caption 1"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("captions.csv", "file,caption\n../x.jpg,a\n", "line 2: names '../x.jpg', which is not a path"),
        ("captions.csv", 'file,caption\n0.jpg,"a\n', "line 2: not CSV: a quote is not closed"),
        ("captions.csv", "file,caption,split\n0.jpg,a\n", "line 2: 2 fields, the first line has 3"),
        ("captions.csv", "file,caption,split\n0.jpg,a,x\n0.jpg,b,y\n", "0.jpg is in two splits"),
        ("captions.csv", "file,caption\n0.jpg," + "a" * 200_000, "field larger than field limit"),
        ("captions.jsonl", '{"file": "0.jpg", "caption": 5}\n', "line 1: expected texts"),
        ("captions.jsonl", '{"file": "0.jpg", "caption": "a"}\n{"file"', "line 2: not JSON"),
        ("captions.jsonl", '{"file": "0.jpg", "caption": "a"}\n' + "[" * 100_000, "nested too deeply"),
        ("a.token", "0.jpg#0\ta\nnothing\n", "'nothing' has no image and caption"),
        ("captions.csv", "file,caption\nnone.jpg,a\n", "it names no image that is there"),
        ("captions.csv", "file,caption,split\n0.jpg,a, b,train\n", "line 2: 4 fields, the first line has 3"),
        ("captions.txt", "0.jpg,a\nnothing\n", "line 2: 'nothing' has no image and caption"),
        ("captions.txt", "nothing\n", "with a header such as file,caption"),
    ],
)
def test_files_that_cannot_be(name: str, text: str, said: str, tmp_path: Path) -> None:
    fill(tmp_path, {"0.jpg": jpeg(0), name: text})
    refused(SourceError, tmp_path, said, kind="captions")


@pytest.mark.parametrize(
    "files",
    [
        {"captions.csv": "file,caption\n0.jpg,a\n1.jpg,b\n", "others.csv": "file,caption\n0.jpg,c\n1.jpg,d\n"},
        {"captions.csv": "file,caption\n0.jpg,a\n", "captions.jsonl": '{"file": "0.jpg", "caption": "a"}\n'},
    ],
    ids=["further files", "two files"],
)
def test_what_would_be_lost_is_a_question(files: dict[str, str | bytes], tmp_path: Path) -> None:
    question(fill(tmp_path, {"0.jpg": jpeg(0), "1.jpg": jpeg(1), **files}))


@pytest.mark.slow
def test_the_folder_of_images_is_that_of_most_names(tmp_path: Path) -> None:
    """However many folders there are, and whichever names come first."""
    files: dict[str, str | bytes] = {f"{n:03}/other.jpg": jpeg(n) for n in range(40)}
    files |= {f"old/{n:03}.jpg": jpeg(n) for n in range(20)} | {f"photos/{n:03}.jpg": jpeg(n) for n in range(100)}
    lines = "".join(f"{n:03}.jpg,caption {n}\n" for n in range(100))
    seen = look(fill(tmp_path, {**files, "zzz/captions.txt": lines}), kind="captions")
    assert seen.keys == [f"photos/{n:03}.jpg" for n in range(100)]


def test_images_in_several_folders(tmp_path: Path) -> None:
    """No folder has all images that the file names, but two together have each once."""
    for number in range(6):
        place = tmp_path / ("pics/one" if number < 4 else "pics/two")
        fill(place, {f"im{number}.png": jpeg(number)})
    (tmp_path / "captions.csv").write_text("file,caption\n" + "".join(f"im{n}.png,number {n}\n" for n in range(6)))
    seen = look(tmp_path)
    assert seen.kind == "captions"
    assert seen.ledger.count(Role.LEFT) == 0
    assert seen.keys == [f"pics/{'one' if n < 4 else 'two'}/im{n}.png" for n in range(6)]


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


class TestCaptionFiles(FileSuite):
    kind = "caption_files"
    bytes_per_sample = 400
    many = 1000

    def make(self, folder: Path, samples: int) -> Path:
        return make(folder, samples)

    def change(self, path: Path) -> None:
        (path / "a00000.png").write_bytes(tiny(99_999))


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
    assert dict(look(tmp_path / "two").splits) == {"train": 4, "test": 2}


def test_an_image_without_a_text_has_none(tmp_path: Path) -> None:
    path = make(tmp_path, 4)
    (path / "a00001.txt").unlink()
    (path / "a00002.txt").write_text("")
    assert [each["caption"] for each in read(path).values()] == [
        "a photo of 0 cats, red", None, "", "a photo of 3 cats, red",
    ]  # fmt: skip


def test_folders_that_may_be_classes_are_a_question(tmp_path: Path) -> None:
    make(make(tmp_path, 4, place="cats/a{n}"), 4, place="dogs/b{n}")
    caught = question(tmp_path)
    assert ("--source", "caption_files") in [answer.options for answer in caught.answers]
    values = look(tmp_path, kind="caption_files").values[-1]
    assert dict(values) == {"caption": "a photo of 3 cats, red", "folder": "dogs"}


@pytest.mark.slow
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
    question(path)


def test_other_annotations_beside_them_are_a_question(tmp_path: Path) -> None:
    path = make(tmp_path, 30)
    (path / "metadata.json").write_text("{" + ",".join(f'"a{n:05}": {n}' for n in range(30)) + "}")
    question(path)


def test_texts_of_two_suffixes_are_a_question(tmp_path: Path) -> None:
    path = make(make(tmp_path, 4), 4, end="caption")
    question(path)


@pytest.mark.parametrize("text", ["[trigger]. A cat, red", "<lora:owl:0.8> a cat", "{red|blue} cat"])
def test_marks_of_prompts_are_words(text: str, tmp_path: Path) -> None:
    path = make(tmp_path, 3)
    (path / "a00002.txt").write_text(text)
    seen = look(path)
    values = seen.values[-1]
    assert (seen.kind, dict(values)) == ("caption_files", {"caption": text})


@given(st.lists(st.sampled_from(["cat", "1girl", "(red:1.2)", "4k", "no1", "solo"]), min_size=1))
def test_words_are_captions(words: list[str]) -> None:
    assert is_words(", ".join(words).encode())


@given(st.binary())
def test_any_bytes_are_one_or_none(raw: bytes) -> None:
    assert is_words(raw) in (True, False)
