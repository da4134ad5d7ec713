"""Texts in other encodings than UTF-8: told by all of their bytes, else asked; never other letters than were meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore import convert, verify
from packstore.sources import open_source
from tests.internals import AmbiguousSourceError, SourceError, UsageError
from tests.makers import layouts
from tests.makers.annotated import fill
from tests.makers.images import encode, picture

WORD = "Zürich café"
PNG = encode(picture("RGB", 16, 8), "PNG")
BOX = {"label": WORD, "points": [[1, 1], [5, 5]], "shape_type": "rectangle"}


def texts_of(path: Path, **options: Any) -> str:
    """Everything that a source says of its samples, and its classes."""
    with closing(open_source(path, **options)) as source:
        survey = source.survey()
        found = [repr(column.classes) for column in survey.columns]
        for entry in source.entries():
            sample = source.read(entry)
            found += [repr(value) for name, value in sample.values.items() if name != "image"]
    return " ".join(found)


def table(rows: str) -> str:
    return f"image,label\na.png,{rows}\nb.png,dog\nc.png,{rows}\nd.png,dog\n"


LAYOUTS: dict[str, tuple[str, str]] = {
    "table": ("train.csv", table(WORD)),
    "lines": ("list.txt", f"a.png {WORD.split()[0]}\nb.png dog\nc.png {WORD.split()[0]}\nd.png dog\n"),
    "json": ("train.json", json.dumps([{"image": f"{n}.png", "label": WORD} for n in "abcd"], ensure_ascii=False)),
    "metadata": ("metadata.csv", f"file_name,text\na.png,{WORD}\nb.png,dog\nc.png,x\nd.png,y\n"),
    "captions": ("captions.csv", f"file,caption\na.png,{WORD}\nb.png,dog\nc.png,x\nd.png,y\n"),
    "labelme": ("a.json", json.dumps({"shapes": [BOX], "imagePath": "a.png", "imageData": None}, ensure_ascii=False)),
    "createml": (
        "_annotations.createml.json",
        json.dumps(
            [{"image": f"{n}.png", "annotations": [{"label": WORD, "coordinates": dict.fromkeys(("x", "y", "width",
              "height"), 4)}]} for n in "abcd"], ensure_ascii=False
        ),
    ),
    "keras": ("_classes.txt", f"{WORD}\ndog\n"),
}  # fmt: skip


@pytest.fixture(params=LAYOUTS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    def write(encoding: str) -> Path:
        root = tmp_path / "set"
        root.mkdir()
        for name in "abcd":
            (root / f"{name}.png").write_bytes(PNG)
        file, text = LAYOUTS[request.param]
        (root / file).write_bytes(text.encode(encoding))
        if request.param == "keras":
            (root / "_annotations.txt").write_text("".join(f"{n}.png 1,1,5,5,0\n" for n in "abcd"))
        return root

    return write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_text_that_says_its_encoding_is_read(make: Callable[[str], Path], encoding: str) -> None:
    root = make(encoding)
    assert "Zürich" in texts_of(root)
    assert "\ufeff" not in texts_of(root)


@pytest.mark.parametrize("encoding", ["cp1252", "cp1251"])
def test_another_is_a_question_and_the_answer_is_right(
    make: Callable[[str], Path], encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = {"cp1252": WORD, "cp1251": "Мир"}[encoding]
    for name, (file, text) in LAYOUTS.items():
        monkeypatch.setitem(LAYOUTS, name, (file, text.replace(WORD, word).replace(WORD.split()[0], word.split()[0])))
    root = make(encoding)
    with pytest.raises(AmbiguousSourceError, match=r"(line [12]|\.json): not UTF-8") as caught:
        texts_of(root)
    assert word.split()[0] in str(caught.value)
    answers = [answer.options for answer in caught.value.answers]
    assert ("--column", f"encoding={encoding}") in answers
    assert word.split()[0] in texts_of(root, columns=f"encoding={encoding}")
    convert(root, tmp_path / "x.h5", columns=f"encoding={encoding}")
    assert verify(tmp_path / "x.h5", against=root).problems == ()


@pytest.mark.slow
def test_bytes_at_the_end_of_a_long_table_count(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    rows = b"".join(b"a.png,cat,%d%s\n" % (n, b"x" * 240) for n in range(10_000))
    (tmp_path / "train.csv").write_bytes(b"image,label,n\n" + rows + "a.png,Zürich,1\n".encode("cp1252"))
    with pytest.raises(AmbiguousSourceError, match="line 10002: not UTF-8: 'Zürich' in cp1252"):
        open_source(tmp_path)


@pytest.mark.slow
def test_a_letter_cut_by_the_reader_is_a_letter(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    for shift in range(3):
        rows = "a.png,Zürich\n" + "a.png,dog\n" + "".join(f"a.png,{'x' * shift}{'ü' * 1000}\n" * 1100)
        (tmp_path / "train.csv").write_text(f"image,label\n{rows}", "utf-8")
        assert "Zürich" in texts_of(tmp_path)


def test_notes_in_another_encoding_are_no_question(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(PNG)
    (tmp_path / "train.csv").write_text("image,label\na.png,cat\nb.png,dog\n")
    (tmp_path / "README.txt").write_bytes("Zürich, café".encode("cp1252"))
    (tmp_path / "notes.csv").write_bytes("Zürich,café\n".encode("cp1252"))
    assert "cat" in texts_of(tmp_path)


def test_an_answer_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "train.csv").write_bytes("image,label\na.png,Zürich\na.png,dog\n".encode("cp1252"))
    with pytest.raises(UsageError, match="unknown encoding"):
        open_source(tmp_path, columns="encoding=klingon")
    with pytest.raises(SourceError, match=r"train\.csv, line 2: neither UTF-8 nor ascii"):
        open_source(tmp_path, columns="encoding=ascii")


def labelled(tmp_path: Path, encoding: str, label: str = WORD) -> dict[str, Path]:
    """A folder of images and a labels file in an encoding, as arguments of :func:`open_source`."""
    root = tmp_path / "set"
    root.mkdir(exist_ok=True)
    for name in ("a", "b"):
        (root / f"{name}.png").write_bytes(PNG)
    (tmp_path / "labels.csv").write_bytes(f"file,label\nb.png,dog\na.png,{label}\n".encode(encoding))
    return {"path": root, "labels": tmp_path / "labels.csv"}


def classes_of(given: dict[str, Path], **options: Any) -> tuple[str, ...] | None:
    with closing(open_source(**given, **options)) as source:
        return source.survey().columns[0].classes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "cp1251"])
def test_labels_in_other_encodings(encoding: str, tmp_path: Path) -> None:
    label = "кот" if encoding == "cp1251" else WORD
    given = labelled(tmp_path, encoding, label)
    if encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert classes_of(given) == ("dog", label) if label > "dog" else (label, "dog")
        return
    with pytest.raises(
        AmbiguousSourceError, match=r"labels\.csv, line 3: not UTF-8: .* --column encoding=NAME"
    ) as asked:
        classes_of(given)
    assert ("--column", f"encoding={encoding}") in [answer.options for answer in asked.value.answers]
    assert classes_of(given, columns=(f"encoding={encoding}",)) == tuple(sorted([label, "dog"]))


def test_labels_in_neither_encoding(tmp_path: Path) -> None:
    given = labelled(tmp_path, "cp1251", "кот")
    with pytest.raises(SourceError, match=r"labels\.csv, line 3: neither UTF-8 nor ascii"):
        classes_of(given, columns=("encoding=ascii",))


def test_class_names_of_published_sets_in_other_encodings(tmp_path: Path) -> None:
    name, files = layouts.cub200(9)
    files["classes.txt"] = str(files["classes.txt"]).replace("Sooty", "Zürich").encode("cp1252")
    root = fill(tmp_path / name, files)
    with pytest.raises(
        AmbiguousSourceError, match=r"classes\.txt, line 3: not UTF-8: '003\.Zürich_Albatross' in cp1252"
    ):
        classes_of({"path": root})
    classes = classes_of({"path": root}, columns=("encoding=cp1252",))
    assert classes == ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Zürich_Albatross")
