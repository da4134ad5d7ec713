"""Images with captions: tables, lines of JSON, and the files of Flickr8k and Flickr30k."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from packstore import AmbiguousSourceError, PackedDataset, convert, verify
from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import Role, SampleError, SourceError
from tests.makers.annotated import fill, jpeg


def captioned(root: Path, samples: int = 6) -> Path:
    """images/ with captions.csv: two captions of each image, not side by side."""
    files: dict[str, str | bytes] = {f"images/{n:05}.jpg": jpeg(n) for n in range(samples)}
    lines = [f'{n:05}.jpg,"a cat, {"first" if k else "again"} {n} ä"' for k in (1, 0) for n in range(samples)]
    return fill(root, {**files, "captions.csv": "\n".join(["image,caption", *lines])})


class TestCaptions(SourceSuite):
    kind = "captions"
    undecodable_keys = False
    bytes_per_sample = 400
    many = 500

    def make(self, folder: Path, samples: int) -> Path:
        return captioned(folder, samples)

    def change(self, path: Path) -> None:
        text = (path / "captions.csv").read_text()
        (path / "captions.csv").write_text(text.replace("first 3", "other 3"))

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).unlink()
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        with (path / entry.key).open("r+b") as file:
            file.truncate((64 << 20) + 100)
        return True


def test_what_is_kept(tmp_path: Path) -> None:
    root = captioned(tmp_path / "set")
    fill(root, {"images/extra.jpg": jpeg(9)})
    convert(root, tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", columns=("key", "captions", "image"), output="bytes")
    assert [tuple(ds[n]) for n in (0, 5)] == [
        (f"images/{n:05}.jpg", [f"a cat, first {n} ä", f"a cat, again {n} ä"], jpeg(n)) for n in (0, 5)
    ]
    assert verify(tmp_path / "x.h5", against=root).problems == ()
    with closing(open_source(root)) as source:
        assert dict(source.survey().ledger.passed_over) == {"images without a caption": 1}


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
    with closing(open_source(tmp_path)) as source:
        assert [column.type for column in source.survey().columns] == ["text"]
        assert [source.read(entry).values for entry in source.entries()] == [{"caption": "a dog"}, {"caption": ""}]


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


def test_an_archive(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "set"), "tar", captioned(tmp_path / "set"))
    with closing(open_source(Path(archive))) as source, closing(open_source(tmp_path / "set")) as folder:
        pairs = zip(source.entries(), folder.entries(), strict=True)
        assert all(source.read(one) == folder.read(other) for one, other in pairs)


def test_an_image_that_is_missing_is_a_bad_sample(tmp_path: Path) -> None:
    captioned(tmp_path)
    (tmp_path / "images/00002.jpg").unlink()
    with closing(open_source(tmp_path)) as source, pytest.raises(SampleError, match="No such file"):
        source.read(list(source.entries())[2])


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
    with pytest.raises(SourceError, match=said) as caught:
        open_source(tmp_path, kind="captions")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "files",
    [
        {"captions.csv": "file,caption\n0.jpg,a\n1.jpg,b\n", "others.csv": "file,caption\n0.jpg,c\n1.jpg,d\n"},
        {"captions.csv": "file,caption\n0.jpg,a\n", "captions.jsonl": '{"file": "0.jpg", "caption": "a"}\n'},
    ],
    ids=["further files", "two files"],
)
def test_what_would_be_lost_is_a_question(files: dict[str, str | bytes], tmp_path: Path) -> None:
    with pytest.raises(AmbiguousSourceError):
        open_source(fill(tmp_path, {"0.jpg": jpeg(0), "1.jpg": jpeg(1), **files}))


def test_the_folder_of_images_is_that_of_most_names(tmp_path: Path) -> None:
    """However many folders there are, and whichever names come first."""
    files: dict[str, str | bytes] = {f"{n:03}/other.jpg": jpeg(n) for n in range(40)}
    files |= {f"old/{n:03}.jpg": jpeg(n) for n in range(20)} | {f"photos/{n:03}.jpg": jpeg(n) for n in range(100)}
    lines = "".join(f"{n:03}.jpg,caption {n}\n" for n in range(100))
    with closing(open_source(fill(tmp_path, {**files, "zzz/captions.txt": lines}), kind="captions")) as source:
        assert [entry.key for entry in source.entries()] == [f"photos/{n:03}.jpg" for n in range(100)]


def test_images_in_several_folders(tmp_path: Path) -> None:
    """No folder has all images that the file names, but two together have each once."""
    for number in range(6):
        place = tmp_path / ("pics/one" if number < 4 else "pics/two")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"im{number}.png").write_bytes(jpeg(number))
    (tmp_path / "captions.csv").write_text("file,caption\n" + "".join(f"im{n}.png,number {n}\n" for n in range(6)))
    with closing(open_source(tmp_path)) as source:
        assert source.kind == "captions"
        assert source.survey().ledger.count(Role.LEFT) == 0
        assert [entry.key for entry in source.entries()] == [
            f"pics/{'one' if n < 4 else 'two'}/im{n}.png" for n in range(6)
        ]
