"""Encodings of texts, YAML as text, and numbers that no column holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore import PackedDataset, convert
from packstore.sources import open_source
from tests.internals import (
    AmbiguousSourceError,
    SourceError,
    UsageError,
    is_yaml_bool,
    is_yaml_null,
    load_yaml,
    parse_yaml_int,
)
from tests.makers import layouts
from tests.makers.annotated import fill, jpeg
from tests.makers.images import encode, picture
from tests.makers.layouts import tar
from tests.makers.sources import look, prove, question, refused

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
    prove(root, tmp_path / "x.h5", columns=f"encoding={encoding}")


@pytest.mark.slow
def test_bytes_at_the_end_of_a_long_table_count(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    rows = b"".join(b"a.png,cat,%d%s\n" % (n, b"x" * 240) for n in range(10_000))
    (tmp_path / "train.csv").write_bytes(b"image,label,n\n" + rows + "a.png,Zürich,1\n".encode("cp1252"))
    question(tmp_path, "line 10002: not UTF-8: 'Zürich' in cp1252")


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
    fill(tmp_path, {"README.txt": "Zürich, café".encode("cp1252"), "notes.csv": "Zürich,café\n".encode("cp1252")})
    assert "cat" in texts_of(tmp_path)


def test_an_answer_that_cannot_be(tmp_path: Path) -> None:
    fill(tmp_path, {"a.png": PNG, "train.csv": "image,label\na.png,Zürich\na.png,dog\n".encode("cp1252")})
    refused(UsageError, tmp_path, "unknown encoding", columns="encoding=klingon")
    refused(SourceError, tmp_path, r"train\.csv, line 2: neither UTF-8 nor ascii", columns="encoding=ascii")


def labelled(tmp_path: Path, encoding: str, label: str = WORD) -> dict[str, Path]:
    """A folder of images and a labels file in an encoding, as arguments of :func:`open_source`."""
    root = tmp_path / "set"
    root.mkdir(exist_ok=True)
    for name in ("a", "b"):
        (root / f"{name}.png").write_bytes(PNG)
    (tmp_path / "labels.csv").write_bytes(f"file,label\nb.png,dog\na.png,{label}\n".encode(encoding))
    return {"path": root, "labels": tmp_path / "labels.csv"}


def classes_of(given: dict[str, Path], **options: Any) -> tuple[str, ...] | None:
    return look(**given, **options).columns[0].classes


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


WORDS = (
    "no", "Yes", "on", "OFF", "y", "true", "null", "Null", "~", "007", "010", "0x1F", "1_000", "1e3", "1.50", ".inf",
    ".nan", "12:30", "190:20:30", "2020-01-02", "2001-99-99", "-0", "+1", "=", "<<", "9" * 5000,
)  # fmt: skip
"""Texts that YAML 1.1 or 1.2 reads as other types."""


def test_plain_values() -> None:
    text = b"path: ../set # where\nnames:\n  0: cat\n  '1': 'a: b'\ntrain: [a, b]\nnc: 2\ntest:\nval: ''\n"
    names = {"0": "cat", "1": "a: b"}
    assert load_yaml(text) == {
        "path": "../set",
        "names": names,
        "train": ["a", "b"],
        "nc": "2",
        "test": None,
        "val": "",
    }


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "form", ["a: {}", "a: '{}'", 'a: "{}"', "a: &x {}", "a: !!str {}", "a: {} # or not", "a:\n  {}"]
)
def test_scalars_are_texts_as_written(word: str, form: str) -> None:
    assert load_yaml(form.format(word).encode()) == {"a": word}


@pytest.mark.parametrize("word", WORDS)
def test_keys_and_items_are_texts_as_written(word: str) -> None:
    assert load_yaml(f"{word[:99]}: [a, {word}]\nb:\n- {word}\n- [{{c: {word}}}]".encode()) == {
        word[:99]: ["a", word],
        "b": [word, [{"c": word}]],
    }


def test_whole_numbers_and_words_for_nothing_true_and_false() -> None:
    assert [parse_yaml_int(each) for each in ("3", "007", "-1", "3.0", "1_0", "", "\u0663", "9" * 19, None, ["3"])] == [
        3, 7,
        *[None] * 8,
    ]  # fmt: skip
    assert [is_yaml_null(each) for each in (None, "~", "null", "NULL", "", "nil", [])] == [True] * 4 + [False] * 3
    assert [is_yaml_bool(each, True) for each in ("true", "Yes", "ON", "false", "1", None, [])] == [True] * 3 + [
        False
    ] * 4
    assert [is_yaml_bool(each, False) for each in ("false", "No", "OFF", "true", "0", None)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: [1, 2", "is not YAML"),
        (b"a: !!python/object/apply:os.system ['touch ran']", "has the tag 'tag:yaml.org,2002:python/object"),
        (b"a: !own b", "has the tag '!own'"),
        (b"a: 1\nb: 2\na: 3", "has the key 'a' twice, again on line 3"),
        (b"a: {0: b, '0': c}", "has the key '0' twice"),
        (b"a: &x [1]\nb: [*x, *x]", "has an alias"),
        (b"[" * 40 + b"]" * 40, "more than 32 levels"),
        (b"[" * 100_000, "more than 32 levels"),
        (b"a" * (1 << 20) + b"b", "has 1048577 bytes"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"a: \x00", "is not YAML"),
        (b"? [a]\n: b", "has a key that is no text, on line 1"),
    ],
)
def test_what_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        load_yaml(text)
    assert str(caught.value).isprintable()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"packstore\[yaml\]"):
        load_yaml(b"a: 1")


HUGE = ["9" * 5000, "-" + "9" * 400, "1e999", "-1.5E+400"]
LARGE = ["1e308", "9" * 308, "1.7976931348623157e308", "inf", "-INF"]


def values_of(root: Path, tmp_path: Path) -> list[Any]:
    prove(root, tmp_path / "x.lmdb")
    data = PackedDataset(tmp_path / "x.lmdb", columns=("key", "z"))
    return [value for _, value in sorted((data[n] for n in range(len(data))), key=lambda item: str(item[0]))]


def csv_set(root: Path, table: str, number: str) -> Path:
    head = "image" if table == "train.csv" else "file_name"
    text = f"{head},label,z\na.jpg,1,1\nb.jpg,2,{number}\nc.jpg,1,2.5\n"
    return fill(root, {**{f"{name}.jpg": jpeg(n) for n, name in enumerate("abc")}, table: text.encode()})


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("table", ["metadata.csv", "train.csv"])
def test_a_column_of_csv_is_text(table: str, number: str, tmp_path: Path) -> None:
    assert values_of(csv_set(tmp_path / "set", table, number), tmp_path) == ["1", number, "2.5"]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("table", ["metadata.csv", "train.csv"])
def test_numbers_that_fit_stay_numbers(table: str, number: str, tmp_path: Path) -> None:
    found = values_of(csv_set(tmp_path / "set", table, number), tmp_path)
    assert [float(value) for value in found] == [1.0, float(number), 2.5]


@pytest.mark.parametrize("number", ["1e999", "-1.5E+400", "9" * 400 + ".5"])
@pytest.mark.parametrize("table", ["metadata.jsonl", "train.jsonl"])
def test_json_is_refused_with_the_number(table: str, number: str, tmp_path: Path) -> None:
    head = "file_name" if table == "metadata.jsonl" else "image"
    rows = [f'{{"{head}": "{name}.jpg", "label": 1, "z": {{"q": [{number if name == "b" else 1}]}}}}' for name in "abc"]
    files = {**{f"{name}.jpg": jpeg(1) for name in "abc"}, table: "\n".join(rows).encode()}
    with pytest.raises(SourceError, match=rf"{table}, line 2: has the number .*too large for float64"):
        convert(fill(tmp_path / "set", files), tmp_path / "x.lmdb")


def test_json_of_webdataset(tmp_path: Path) -> None:
    values = {f"{n}.json": b'{"a": 1e999}' if n == 1 else b"{}" for n in range(3)}
    files = {f"{n}.jpg": jpeg(n) for n in range(3)} | values
    (tmp_path / "0.tar").write_bytes(tar(dict(sorted(files.items()))))
    with closing(open_source(tmp_path / "0.tar")) as source:
        entries = [*source.entries()]
        assert source.read(entries[0]).values["json"] == {}
        with pytest.raises(Exception, match=r"\.json: has the number 1e999, which is too large"):
            source.read(entries[1])
