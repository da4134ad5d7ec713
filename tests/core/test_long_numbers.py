"""Numbers of thousands of digits, which Python does not convert: packstore's own words, with file and line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from packstore.sources import open_source
from packstore.testing.exports import picture
from tests.internals import (
    Manifest,
    ManifestError,
    PackstoreError,
    StoreError,
    Writer,
    convert,
    encode_with_digest,
    load_json,
    load_yaml,
    parse_with_digest,
    printable,
)
from tests.makers import annotation_formats
from tests.makers.annotated import coco, fill, jpeg, voc, yolo

LONG = "9" * 5000


@pytest.mark.slow
@pytest.mark.parametrize("head", ["", "\n\n", '{"a": 1,\n "b": '])
@pytest.mark.parametrize("form", [str, str.encode])
def test_json(head: str, form: Callable[[str], str | bytes]) -> None:
    tail = "}" if head.endswith(" ") else ""
    with pytest.raises(ValueError, match=r"5,000 digits.*too long; at most 4,300") as caught:
        load_json(form(f"{head}-{LONG}{tail}"))
    assert "JSON" not in str(caught.value)
    assert ("in line 2" in str(caught.value)) == bool(tail)
    assert load_json(form(f'{{"a": {"9" * 4300}, "b": "{LONG}"}}'))["b"] == LONG
    with pytest.raises(ValueError, match="is no list: nested too deeply"):
        load_json(form("[" * 100_000), "is no list")
    with pytest.raises(ValueError, match="is no list: Expecting"):
        load_json(form("[1,"), "is no list")


def test_the_limit_is_python_s() -> None:
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        assert load_json(LONG) == int(LONG)
        sys.set_int_max_str_digits(700)
        with pytest.raises(ValueError, match=r"5,000 digits.*at most 700"):
            load_json(LONG)
    finally:
        sys.set_int_max_str_digits(before)


def test_yaml_and_manifests() -> None:
    assert load_yaml(f"a: 1\nb: {LONG}\n".encode()) == {"a": "1", "b": LONG}  # a text, as all scalars
    with pytest.raises(ManifestError, match="the manifest has a number of 5,000 digits"):
        Manifest.from_json('{"records": ' + LONG + "}")
    with pytest.raises(ManifestError, match="number of 5,000 digits"):
        parse_with_digest(encode_with_digest({"a": 1}).replace(b"1", LONG.encode(), 1))


def test_any_message_of_python(tmp_path: Path) -> None:
    for make in (lambda: int(LONG), lambda: str(10**5000), lambda: json.dumps(10**5000)):
        with pytest.raises(ValueError, match="Exceeds the limit") as caught:
            make()
        for text in (printable(str(caught.value)), str(PackstoreError(f"a.csv: {caught.value}"))):
            assert "too long; at most 4,300 digits" in text
            assert "set_int_max_str_digits" not in text
    with (
        pytest.raises(PackstoreError) as refused,
        Writer(tmp_path / "x.lmdb", fields={"image": "image", "n": "int64", "j": "json"}) as writer,
    ):
        writer.add(image=picture(0), n=0, j=10**5000)
    assert "set_int_max_str_digits" not in str(refused.value)
    assert "too long" in str(refused.value)


def test_a_column_of_json(tmp_path: Path) -> None:
    from tests.internals import Column, from_stored

    column = Column("j", "ragged", "uint8", type="json")
    with pytest.raises(StoreError, match="column 'j' has a number of 5,000 digits"):
        from_stored(column, np.frombuffer(LONG.encode(), np.uint8))


def table(rows: str, file: str) -> Callable[[Path], Path]:
    return lambda root: fill(root, {**{f"{n}.jpg": jpeg(n) for n in range(4)}, file: rows})


CASES: dict[str, tuple[Callable[[Path], Path], str, tuple[str, str], str]] = {
    "metadata.jsonl": (
        table('{"file_name":"0.jpg","z":1}\n{"file_name":"1.jpg","z":777}\n', "metadata.jsonl"),
        "metadata.jsonl", ("777", "N"), r"metadata\.jsonl, line 2.*5,000 digits",
    ),
    "captions": (
        table("".join(f'{{"file":"{n}.jpg","caption":"a","index":{n + 1}77}}\n' for n in range(4)), "captions.jsonl"),
        "captions.jsonl", ("277", "N"), "5,000 digits",
    ),
    "coco": (coco, "annotations/instances_train2017.json", ('"id":', '"x": N, "id":'), r"\.json has a number of 5,000"),
    "voc": (voc, "*.xml", ("<difficult>0", "<difficult>N"), "5,000 digits"),
    "kitti": (lambda root: fill(root, annotation_formats.kitti(3)), "*.txt", ("Car 0", "Car N"), "expected a number"),
    "dota": (lambda root: fill(root, annotation_formats.dota(6)), "*.txt", ("plane 0", "plane N"), "5,000 digits"),
    "mots": (lambda root: fill(root, annotation_formats.mots(6)), "*.txt", (" 2000", " N"), "5,000 digits"),
    "widerface": (
        lambda root: fill(root, annotation_formats.widerface(6)), "*.txt", ("\n1\n", "\nN\n"), "5,000 digits"
    ),
    "cvat": (lambda root: fill(root, annotation_formats.cvat(6)), "*.xml", ('xtl="', 'xtl="N'), "expected a number"),
    "yolo": (yolo, "data.yaml", ("names:", "nc: N\nnames:"), r"data\.yaml: nc is 9{40}; expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sources_say_it_in_their_own_words(name: str, tmp_path: Path) -> None:
    make, pattern, (mark, changed), said = CASES[name]
    root = make(tmp_path / "set")
    path = next(path for path in sorted(root.rglob(pattern)) if mark in path.read_text())
    path.write_text(path.read_text().replace(mark, changed.replace("N", LONG), 1))
    with pytest.raises(PackstoreError, match=said) as caught:
        convert(root, tmp_path / "x.lmdb", source_kind="captions" if name == "captions" else None)
    assert "set_int_max_str_digits" not in str(caught.value)
    assert "JSON" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def problem(root: Path) -> str:
    """What opening and reading a source says, if anything."""
    try:
        with closing(open_source(root)) as source:
            for entry in source.entries():
                source.read(entry)
    except PackstoreError as error:
        return str(error)
    return ""


SETS = {name: annotation_formats.MAKERS[name] for name in sorted(annotation_formats.MAKERS)}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SETS)
def test_no_number_of_any_format_ends_in_python_s_words(name: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", SETS[name](3))
    texts = [
        path for path in sorted(root.rglob("*")) if path.suffix.lower() in (".json", ".txt", ".xml", ".csv", ".odgt")
    ]
    for path in texts[:2]:
        text = path.read_text("utf-8")
        spans = [found.span() for found in re.finditer(r"(?<![\w./\\#-])\d+(?![\w/]|\.(?:jpg|png))", text)]
        for begin, end in spans[:: max(1, len(spans) // 12)]:
            path.write_text(text[:begin] + LONG + text[end:], "utf-8")
            assert "set_int_max_str_digits" not in problem(root)
        path.write_text(text, "utf-8")
