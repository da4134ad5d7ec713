"""Texts and names in encodings of two bytes a letter. XML is read as it declares, or as its bytes show; the names of a
zip have one encoding; anything else is asked about once. Nothing in XML is expanded or run."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore import convert
from packstore.sources import open_source
from tests.internals import LOCAL, AmbiguousSourceError, SourceError, load_xml, to_utf8, try_utf8
from tests.makers.annotated import fill, jpeg
from tests.makers.layouts import tar
from tests.makers.sources import look, not_packed, prove

WORDS = {
    "gb2312": ("猫", "狗狗"), "gbk": ("貓猫", "狗狗"), "gb18030": ("猫", "㐀狗"), "shift_jis": ("猫", "いぬ犬"),
    "cp932": ("①猫", "犬"), "euc_jp": ("猫猫", "いぬ"), "big5": ("貓", "狗狗"), "euc_kr": ("고양이", "개개"),
    "cp949": ("똠고양이", "개"),
}  # fmt: skip
"""Two classes in each encoding. The cat of GB 2312 is valid UTF-8, too: another letter."""


def voc_object(name: str) -> str:
    return (
        f"<object><name>{name}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object>"
    )


def voc(declared: str, encoding: str, words: tuple[str, ...]) -> dict[str, bytes]:
    """An image and an XML file for each word; ``declared`` is the head of the file."""
    files = {}
    for n, word in enumerate(words):
        files[f"train/{n}.jpg"] = jpeg(n)
        files[f"train/{n}.xml"] = f"{declared}<annotation>{voc_object(word)}</annotation>".encode(encoding)
    return files


def cvat(declared: str, encoding: str, words: tuple[str, ...]) -> dict[str, bytes]:
    shapes = "".join(f'<box label="{word}" xtl="1" ytl="1" xbr="5" ybr="6"></box>' for word in words)
    labels = "".join(f"<label><name>{word}</name></label>" for word in words)
    text = (
        f"{declared}<annotations><version>1.1</version><meta><task><labels>{labels}</labels></task></meta>"
        f'<image id="0" name="0.jpg" width="16" height="8">{shapes}</image></annotations>'
    )
    return {"images/0.jpg": jpeg(0), "annotations.xml": text.encode(encoding)}


FORMATS = {"voc": voc, "cvat": cvat}


def classes_of(root: Path, **options: Any) -> set[str]:
    with closing(open_source(root, **options)) as source:
        found = next(column.classes for column in source.survey().columns if column.name == "labels")
        assert all(source.read(entry) for entry in source.entries())
        return set(found or ())


@pytest.mark.parametrize("encoding", WORDS)
@pytest.mark.parametrize("kind", FORMATS)
def test_xml_is_in_the_encoding_that_it_declares(kind: str, encoding: str, tmp_path: Path) -> None:
    words = WORDS[encoding]
    root = fill(tmp_path / "set", FORMATS[kind](f'<?xml version="1.0" encoding="{encoding}"?>', encoding, words))
    assert classes_of(root) == set(words)
    prove(root, tmp_path / "x.lmdb")


@pytest.mark.parametrize(
    ("declared", "encoding", "words"),
    [
        ("gb2312", "gb18030", ("貓猫", "狗")),  # a narrower one, as is common
        ("GB2312", "gbk", ("喆", "狗")),
        ("Shift_JIS", "cp932", ("①猫", "犬")),
        ("ks_c_5601-1987", "cp949", ("똠", "개")),
        ("gb2312", "utf-8", ("猫猫", "狗")),  # which is UTF-8 indeed
        ("UTF-16", "utf-8", ("猫", "狗")),
        ("windows-31j-of-nobody", "utf-8", ("猫", "狗")),
        ("base64", "utf-8", ("猫", "狗")),
        ("utf-8", "utf-16", ("猫", "狗")),  # with its mark
        ("gbk", "utf-8-sig", ("猫", "狗")),
        ("iso-8859-1", "latin-1", ("é", "dog")),
    ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_bytes_decide_if_the_declaration_is_wrong(
    kind: str, declared: str, encoding: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    head = f"<?xml version='1.0' encoding='{declared}' ?>\n"
    assert classes_of(fill(tmp_path / "set", FORMATS[kind](head, encoding, words))) == set(words)


@pytest.mark.parametrize("declared", ["", '<?xml version="1.0"?>', '<?xml version="1.0" encoding="utf-8"?>'])
@pytest.mark.parametrize("encoding", ["gb2312", "gb18030", "shift_jis", "big5", "euc_kr"])
@pytest.mark.parametrize("kind", FORMATS)
def test_other_xml_is_a_question_and_the_answer_holds_for_all_files(
    kind: str, encoding: str, declared: str, tmp_path: Path
) -> None:
    words = WORDS[encoding]
    root = fill(tmp_path / "set", FORMATS[kind](declared, encoding, words))
    with pytest.raises(AmbiguousSourceError, match=r"\.xml: not UTF-8: .*--column encoding=NAME") as asked:
        classes_of(root)
    assert any(word in str(asked.value) for word in words)
    offered = [answer.options[1].partition("=")[2] for answer in asked.value.answers]
    answer = {"gb2312": "gb18030", "euc_kr": "cp949"}.get(encoding, encoding)
    assert answer in offered
    assert classes_of(root, columns=f"encoding={answer}") == set(words)
    prove(root, tmp_path / "x.lmdb", columns=f"encoding={answer}")


def test_the_answer_leaves_utf8_alone(tmp_path: Path) -> None:
    files = voc("", "gb18030", ("狗狗",)) | {
        "train/b.jpg": jpeg(5),
        "train/b.xml": f"<annotation>{voc_object('猫')}</annotation>".encode(),
    }
    assert classes_of(fill(tmp_path / "set", files), columns="encoding=gb18030") == {"狗狗", "猫"}


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE a [<!ENTITY x "y">]><annotation><object>&x;</object></annotation>',
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>',
        '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/x"><annotation/>',
        "<annotation>&x;</annotation>",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16", "utf-7", "shift_jis"])
def test_nothing_is_expanded_in_any_encoding(encoding: str, text: str, tmp_path: Path) -> None:
    head = f'<?xml version="1.0" encoding="{encoding}"?>'
    with pytest.raises(ValueError, match=r"has a document type|is not XML"):
        load_xml(to_utf8((head + text).encode(encoding), None, "a.xml"))


@given(st.binary(max_size=200), st.sampled_from(["gb2312", "utf-16", "rot13", "punycode", "idna", "zlib", "x"]))
def test_any_bytes_are_read_or_refused(data: bytes, declared: str) -> None:
    text, fault = try_utf8(f'<?xml version="1.0" encoding="{declared}"?>'.encode() + data, None, "a.xml")
    text.decode()
    assert fault is None or "a.xml" in str(fault)


TEXTS: dict[str, tuple[str, str]] = {
    "classes of yolo": ("classes.txt", "{0}\n{1}\n"),
    "yaml": ("data.yaml", "names: [{0}, {1}]\ntrain: train\n"),
    "json": ("train/0.json", json.dumps({"shapes": [{"label": "{0}", "points": [[1, 1], [5, 5]],
             "shape_type": "rectangle"}], "imagePath": "0.jpg", "imageData": None}, ensure_ascii=False)
             .replace("{", "{{").replace("}", "}}").replace("{{0}}", "{0}")),
    "table": ("train.csv", "image,label\n0.jpg,{0}\n1.jpg,{1}\n2.jpg,{0}\n3.jpg,{1}\n"),
    "lines": ("train.txt", "train/0.jpg {0}\ntrain/1.jpg {1}\ntrain/2.jpg {0}\ntrain/3.jpg {1}\n"),
    "captions": ("train/0.txt", "{1}{0}{1}"),
    "json lines": (
        "train/metadata.jsonl",
        "".join(f'{{{{"file_name": "{n}.jpg", "text": "{{0}}{{1}}"}}}}\n' for n in range(4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("encoding", ["gb18030", "shift_jis", "big5", "cp949"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_text_of_annotations_is_asked_about_and_read(name: str, encoding: str, tmp_path: Path) -> None:
    word = {"gb18030": "狗", "shift_jis": "犬", "big5": "狗", "cp949": "개개"}[encoding]
    file, text = TEXTS[name]
    files: dict[str, bytes] = {f"train/{n}.jpg": jpeg(n) for n in range(4)}
    if name in ("classes of yolo", "yaml"):
        files = {f"images/{path}": data for path, data in files.items()}
        files |= {f"labels/train/{n}.txt": b"0 0.5 0.5 0.2 0.2\n" for n in range(4)}
        text = text.replace("train: train", "train: images/train")
    if name == "captions":
        files |= {f"train/{n}.txt": b"a photo" for n in range(1, 4)}
    files[file] = text.format(word * 2, word).encode(encoding)
    root = fill(tmp_path / "set", files)

    def said(**options: Any) -> str:
        with closing(open_source(root, **options)) as source:
            found = [repr(column.classes) for column in source.survey().columns]
            return " ".join([*found, *(repr(source.read(entry).values) for entry in source.entries())])

    with pytest.raises(AmbiguousSourceError, match="not UTF-8") as asked:
        said()
    assert word in str(asked.value)
    assert word in said(columns=f"encoding={encoding}")


@pytest.mark.parametrize("encoding", ["gb18030", "shift_jis", "big5", "cp949"])
@pytest.mark.parametrize("extension", ["txt", "json"])
def test_texts_of_webdataset_are_asked_about(extension: str, encoding: str, tmp_path: Path) -> None:
    word = WORDS[encoding][1]
    text = word if extension == "txt" else f'{{"caption": "{word}"}}'
    files = {
        f"{n}.{end}": jpeg(n) if end == "jpg" else text.encode(encoding) for n in range(3) for end in ("jpg", extension)
    }
    (tmp_path / "000.tar").write_bytes(tar(files))
    with pytest.raises(AmbiguousSourceError, match=rf"\.{extension}: not UTF-8") as asked:
        convert(tmp_path / "000.tar", tmp_path / "x.lmdb", source_kind="webdataset")
    assert word in str(asked.value)
    options = {"columns": f"encoding={encoding}", "source_kind": "webdataset"}
    prove(tmp_path / "000.tar", tmp_path / "x.lmdb", **options)


def zipped(names: Mapping[bytes, bytes], *, flag: bool = False, extra: bytes = b"") -> bytes:
    """A zip with names of any bytes. ``zipfile`` would choose their encoding."""
    out = io.BytesIO()
    stand_ins = {f"{n:03}".ljust(len(name), "x"): name for n, name in enumerate(names)}
    with zipfile.ZipFile(out, "w") as archive:
        for stand_in, name in stand_ins.items():
            info = zipfile.ZipInfo(stand_in)
            info.extra = extra
            archive.writestr(info, names[name])
    data = out.getvalue()
    for stand_in, name in stand_ins.items():
        assert len(stand_in) == len(name)
        data = data.replace(stand_in.encode(), name)
    if flag:  # bit 11 of the flags, in the headers of both kinds
        for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = data.find(magic)
            while at >= 0:
                (flags,) = struct.unpack_from("<H", data, at + place)
                data = data[: at + place] + struct.pack("<H", flags | 1 << 11) + data[at + place + 2 :]
                at = data.find(magic, at + 4)
    assert LOCAL.size == 30
    return data


def folder_names(words: tuple[str, ...], encoding: str) -> dict[bytes, bytes]:
    return {f"ds/{word}/{n}.jpg".encode(encoding): jpeg(n) for n, word in enumerate(words * 2)}


def labels_of(path: Path, **options: Any) -> set[str]:
    with closing(open_source(path, **options)) as source:
        classes = set(source.survey().columns[0].classes or ())
        keys = {entry.key.rpartition("/")[0] for entry in source.entries()}
        assert all(source.read(entry) for entry in source.entries())
        assert keys == classes
        return classes


@pytest.mark.parametrize("encoding", WORDS)
def test_names_of_a_zip_are_asked_about_once_and_decoded_as_one(encoding: str, tmp_path: Path) -> None:
    words = (*WORDS[encoding], "plain")
    path = tmp_path / "x.zip"
    path.write_bytes(zipped(folder_names(words, encoding)))
    with pytest.raises(AmbiguousSourceError, match=r"x\.zip: .*not UTF-8.*--column encoding=NAME") as asked:
        labels_of(path)
    offered = [answer.options[1].partition("=")[2] for answer in asked.value.answers]
    answer = {"gb2312": "gb18030", "gbk": "gb18030", "cp932": "cp932", "euc_kr": "cp949"}.get(encoding, encoding)
    assert answer in offered or encoding in ("cp932", "euc_jp", "gb18030")
    assert labels_of(path, columns=f"encoding={answer}") == set(words)
    prove(path, tmp_path / "x.lmdb", columns=f"encoding={answer}")


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("given", [{}, {"columns": "encoding=gb18030"}, {"columns": "encoding=cp1252"}])
def test_names_in_utf8_raise_no_question(given: dict[str, str], flag: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(zipped(folder_names(("猫猫", "狗", "café"), "utf-8"), flag=flag))
    assert labels_of(path, **given) == {"猫猫", "狗", "café"}


def test_an_answer_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(zipped(folder_names(("猫猫", "狗狗"), "gbk")))
    with pytest.raises(SourceError, match=r"x\.zip: its names of files are neither UTF-8 nor ascii"):
        labels_of(path, columns="encoding=ascii")


def test_backslashes_are_told_from_halves_of_letters(tmp_path: Path) -> None:
    """The second byte of some letters of Shift JIS is a backslash's."""
    path = tmp_path / "x.zip"
    path.write_bytes(zipped(folder_names(("表示", "ソ"), "shift_jis")))
    assert labels_of(path, columns="encoding=shift_jis") == {"表示", "ソ"}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("encoding", ["gbk", "shift_jis", "euc_kr"])
def test_names_of_a_tar_are_decoded_as_one(encoding: str, format: int, tmp_path: Path) -> None:
    words = WORDS[encoding]
    path = tmp_path / "x.tar"
    files = {f"ds/{word}/{n}.jpg": jpeg(n) for n, word in enumerate(words * 2)}
    path.write_bytes(tar(files, format=format, encoding=encoding))
    assert labels_of(path, columns=f"encoding={encoding}") == set(words)
    if format == tarfile.PAX_FORMAT:  # which is UTF-8 always
        assert labels_of(path) == set(words)
        return
    with pytest.raises(AmbiguousSourceError, match=r"x\.tar: .*not UTF-8.*--column encoding=NAME"):
        labels_of(path)


def add_files(archive: tarfile.TarFile, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["gbk", "shift_jis", "big5", "euc_kr", "cp1252", "cp1251"])
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_names_of_any_tar_are_asked_about_once(mode: str, encoding: str, tmp_path: Path) -> None:
    words = {"cp1252": ("chat_é", "chien_ü"), "cp1251": ("кот", "пёс")}.get(encoding) or WORDS[encoding]
    path = tmp_path / "set/x.tar"
    path.parent.mkdir()
    with tarfile.open(path, mode, format=tarfile.GNU_FORMAT, encoding=encoding) as archive:  # type: ignore[call-overload]
        add_files(archive, {f"ds/{word}/{n}.jpg": jpeg(n) for n in range(30) for word in (*words, "plain")})
    asked = not_packed(AmbiguousSourceError, path, tmp_path / "x.lmdb", r"x\.tar: its names of files are not UTF-8")
    assert any(word in str(asked) for word in words)
    assert labels_of(path, columns=f"encoding={encoding}") == {*words, "plain"}
    not_packed(AmbiguousSourceError, path.parent, tmp_path / "y.lmdb", r"x\.tar: its names of files are not UTF-8")
    with pytest.raises(AmbiguousSourceError, match=r"to hold x\.tar \(an image folder\)"):
        convert(path.parent, tmp_path / "y.lmdb", columns=f"encoding={encoding}")


@pytest.mark.parametrize("encoding", ["gbk", "shift_jis", "big5", "cp1252"])
def test_keys_of_webdataset_are_asked_about(encoding: str, tmp_path: Path) -> None:
    word = "café" if encoding == "cp1252" else WORDS[encoding][1]
    with tarfile.open(tmp_path / "000.tar", "w", format=tarfile.GNU_FORMAT, encoding=encoding) as archive:
        for n in range(3):
            add_files(archive, {f"{word}_{n}.jpg": jpeg(n), f"{word}_{n}.cls": b"1"})
    not_packed(AmbiguousSourceError, tmp_path / "000.tar", tmp_path / "x.lmdb", "its names of files are not UTF-8")
    seen = look(tmp_path / "000.tar", columns=f"encoding={encoding}")
    assert seen.kind == "webdataset"
    assert sorted(entry.key for entry in seen.entries) == [f"{word}_{n}" for n in range(3)]


@pytest.mark.parametrize("fill", [0, 40])
def test_pax_headers_are_utf8_beside_other_names(fill: int, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="gbk") as archive:
        add_files(archive, {"ds/狗狗/1.jpg": jpeg(1)} | {f"ds/plain/{n}.jpg": jpeg(n) for n in range(fill)})
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as archive:
        add_files(archive, {"ds/café/2.jpg": jpeg(2), "ds/猫/3.jpg": jpeg(3)})
    assert labels_of(path, columns="encoding=gbk") == {"狗狗", "café", "猫"} | ({"plain"} if fill else set())


def test_letters_of_pax_headers_are_utf8_whatever_the_option(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        add_files(archive, {"ds/éé/2.jpg": jpeg(2), "ds/üü/3.jpg": jpeg(3)})
    assert labels_of(tmp_path / "x.tar", columns="encoding=gbk") == {"éé", "üü"}
