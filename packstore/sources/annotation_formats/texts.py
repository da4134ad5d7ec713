"""Formats of text in images: scenes, receipts and forms.

- ICDAR (https://rrc.cvc.uab.es): ``gt_img_1.txt`` for ``img_1.jpg``, a line for each word: four corners (2015, 2019) or
  left, top, right, bottom (2013), and then the word, which may contain commas; in 2019, a language precedes the word.
- MLT 2017 and 2019 (https://rrc.cvc.uab.es/?ch=15): the same with the language. Files are ``tr_img_00001.txt`` in
  ``train_gt_t13``, or ``gt_img_1.txt`` in ``ch8_training_localization_transcription_gt_v2``.
- SROIE (https://rrc.cvc.uab.es/?ch=13): ``img``, words in ``box``, ``entities`` or ``key``; or entities alone.
- CORD (https://github.com/clovaai/cord): ``image/receipt_00000.png`` with ``json/receipt_00000.json``.
- FUNSD (https://guillaumejaume.github.io/FUNSD): ``images`` of forms, and ``annotations`` of their fields.
- TextOCR (https://textvqa.org/textocr), COCO-Text (https://bgshih.github.io/cocotext): ``imgs``, ``anns`` by id.
- ArT, LSVT (https://rrc.cvc.uab.es/?ch=14, ?ch=16): a list of words by image, ``gt_0`` for ``gt_0.jpg``.
- WildReceipt: a line of JSON for each image, ``box`` of four corners, ``text``, ``label``; ``class_list.txt``.

The column ``texts`` has the text in each box, null for ``###``, a word to ignore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from packstore.core.fields import Json
from packstore.sources.annotation_formats import beside, parsing, shapes
from packstore.sources.annotation_formats.documents import document
from packstore.sources.annotation_formats.shapes import Document, Listed, Parts, Picture, Value
from packstore.sources.annotation_formats.source import FurtherFile
from packstore.sources.beside import join

_NUMBER = r"-?\d+(?:\.\d+)?"
_WORD = re.compile(rf"(?:({_NUMBER}(?:,\s*{_NUMBER}){{7}}),|({_NUMBER}(?:(?:,\s*|\s+){_NUMBER}){{3}})(?:,\s*|\s+))(.*)")
_MLT_WORD = re.compile(rf"({_NUMBER}(?:,{_NUMBER}){{7}}),([A-Za-z]+),(.*)")


def _match_lines(pattern: re.Pattern[str], expected: str) -> Callable[[bytes], list[str]]:
    """Returns a parser of a file to its lines, which all have to match."""

    def check(line: str) -> str:
        if pattern.fullmatch(line.strip()) is None:
            raise ValueError(f"found {line[:60]!r}, expected {expected}")
        return line

    return parsing.parse_each_line(check)


def _read_words(lines: Any, _: Picture) -> Parts:
    """Each line is an object with its word, without quotes around it and without a class."""
    for line in lines:
        [(corners, box, text)] = _WORD.findall(line.strip())
        places, word = parsing.to_floats(re.split(r",\s*|\s+", corners or box)), text.strip()
        word = word[1:-1] if len(word) > 1 and word[0] == word[-1] == '"' else word
        texts: dict[str, Any] = {"texts": None if word == "###" else word}
        yield shapes.polygon(None, places, **texts) if corners else shapes.box(None, places, **texts)


icdar = beside(
    "ICDAR: gt_img_1.txt with words beside images, or in a folder above them",
    kind="icdar",
    folders=[
        *(("", ""), ("images", ""), ("images", "gt"), ("imgs", "annotations"), ("train_images", "train_gts")),
        *(("test_images", "test_gts"), ("imgs", "gt")),
        *(("ch4_training_images", "ch4_training_localization_transcription_gt"), ("ch4_test_images", "ch4_test_gt")),
        *(("ch4_test_images", "Challenge4_Test_Task1_GT"), ("ch4_test_images", "Challenge4_Test_Task4_GT")),
        *((f"Challenge2_{name}_Task12_Images", f"Challenge2_{name}_Task1_GT") for name in ("Training", "Test")),
    ],
    patterns=("gt_{stem}.txt", "res_{stem}.txt"),
    signature=rb"\A(\xef\xbb\xbf)?\s*-?\d+(\.\d+)?([,\s]\s*-?\d+(\.\d+)?){3}",
    parse=_match_lines(_WORD, "corners and a word"),
)(_read_words)

_CH8 = "ch8_{}_localization_transcription_gt_v2"


@beside(
    "ICDAR MLT: ImagesPart1 with words and languages in train_gt_t13",
    folders=[
        *(("ImagesPart1", "train_gt_t13"), ("ImagesPart2", "train_gt_t13"), ("ImagesPart1", "gt")),
        *(("images", "train_gt_t13"), ("ImagesPart2", "gt")),
        *((f"ch8_training_images_{n}", _CH8.format("training")) for n in range(1, 9)),
        *((f"ch8_{name}_images", _CH8.format(name)) for name in ("training", "validation")),
    ],
    patterns=("{stem}.txt", "gt_{stem}.txt"),
    signature=rb"\A(\xef\xbb\xbf)?\s*-?\d+(\.\d+)?(,-?\d+(\.\d+)?){7},[A-Za-z]+,",
    parse=_match_lines(_MLT_WORD, "corners, a language and a word"),
)
def mlt(lines: Any, _: Picture) -> Parts:
    """Each line is an object with its word; the class is its language."""
    for line in lines:
        [(corners, language, text)] = _MLT_WORD.findall(line.strip())
        yield shapes.polygon(language, parsing.to_floats(corners.split(",")), texts=None if text == "###" else text)


def _parse_receipt(data: bytes) -> Any:
    """Parses the words of a receipt to lines, or its entities to an object."""
    is_entities = data.lstrip().startswith(b"{")
    return _parse_entities(data) if is_entities else _match_lines(_WORD, "corners and a word")(data)


def _parse_entities(data: bytes) -> dict[str, Any]:
    """Parses a JSON object of texts, numbers and the like."""
    entities = parsing.parse_json(data)
    if not isinstance(entities, dict) or any(isinstance(value, dict | list) for value in entities.values()):
        raise ValueError("its entities are no JSON object of texts")
    return entities


_ENTITIES = ("../entities/{stem}.txt", "../key/{stem}.json")


@beside(
    "SROIE: img with words in box, or entities alone",
    folders=[(images, texts) for texts in ("box", "entities", "key", "truth") for images in ("img", "images")],
    patterns=("{stem}.txt", "{stem}.csv", "{stem}.json"),
    signature=rb"\A(\xef\xbb\xbf)?\s*-?\d+(\.\d+)?([,\s]\s*-?\d+(\.\d+)?){3}|"
    rb'\A\s*\{\s*"(company|date|address|total)"\s*:',
    parse=_parse_receipt,
    files=[FurtherFile("entities", _ENTITIES, Json(optional=True), _parse_entities)],
)
def sroie(content: Any, picture: Picture) -> Parts:
    """Words are as in ICDAR. Entities are the value of a column, with company, date, address and total."""
    if isinstance(content, list):
        yield from _read_words(content, picture)
    else:
        yield from (Value("entities", content), Value("json", None))


@beside(
    "CORD: image with words of receipts in json",
    folders=[("image", "json"), ("images", "json")],
    signature=rb'"valid_line"\s*:\s*\[',
)
def cord(content: Any, _: Picture) -> Parts:
    """Each word is an object with its corners and text; the class is the category of its line."""
    for line in content["valid_line"]:
        for word in line["words"]:
            corners = parsing.get_floats(word["quad"], *(f"{axis}{n}" for n in (1, 2, 3, 4) for axis in "xy"))
            yield shapes.polygon(parsing.nonempty_text(line["category"]), corners, texts=word["text"])


@beside(
    "FUNSD: images with annotations of forms",
    folders=[("images", "annotations")],
    signature=rb'\A\s*\{\s*"form"\s*:\s*\[',
)
def funsd(content: Any, _: Picture) -> Parts:
    """Each field is an object with its class, box and text. Words and links are in ``json`` alone."""
    for each in content["form"]:
        yield shapes.box(parsing.nonempty_text(each["label"]), parsing.to_floats(each["box"], 4), texts=each["text"])


def _list_textocr(file: Document) -> Iterator[Listed]:
    """Lists the images with their words; the split is the image's ``set``, if it has one."""
    images = file.content["imgs"]
    words: dict[int | str | None, list[Any]] = {parsing.parse_id(number): [] for number in images}
    for each in file.content["anns"].values():
        words[parsing.parse_id(each["image_id"])].append(each)
    for number, image in images.items():
        yield Listed(image["file_name"], {"image": image, "words": words[parsing.parse_id(number)]}, image.get("set"))


@document(
    "TextOCR and COCO-Text: a JSON file of imgs and anns",
    _list_textocr,
    signature=rb'(?s)\A\s*\{.{0,2000}?"(imgs|anns)"\s*:\s*\{\s*"[^"]*"\s*:\s*\{[^{}]*"(image_id|file_name)"\s*:',
)
def textocr(item: Any, _: Picture) -> Parts:
    """Each word is an object with its text, without a class. It has the word's polygon, or else the word's box if the
    polygon is missing or invalid."""
    for each in item["words"]:
        flat, text = parsing.to_floats(each.get("points") or each.get("mask") or ()), each.get("utf8_string")
        corners = shapes.box_from_corner(*parsing.to_floats(each["bbox"], 4))
        is_polygon = len(flat) >= 6 and len(flat) % 2 == 0
        yield shapes.polygon(None, flat, texts=text) if is_polygon else shapes.box(None, corners, texts=text)


@document(
    "ICDAR 2019 ArT and LSVT: a JSON file of words by image",
    lambda file: (Listed(_add_suffix(name), words) for name, words in file.content.items()),
    signature=rb'\A\s*\{\s*"[^"]+"\s*:\s*\[\s*\{(?=[^}]*"transcription"\s*:)(?=[^}]*"points"\s*:)',
)
def art(words: Any, _: Picture) -> Parts:
    """Each word is an object with its polygon and its text, without a class."""
    for each in words:
        text = None if each["transcription"] == "###" else each["transcription"]
        yield shapes.polygon(None, parsing.flatten_points(each["points"]), texts=text)


def _add_suffix(name: str) -> str:
    """Adds ``.jpg`` to a name without ``.jpg`` or ``.png``."""
    return name if name.lower().endswith((".jpg", ".png")) else f"{name}.jpg"


def _list_wildreceipt(file: Document) -> Iterator[Listed]:
    """Lists the image of each line."""
    # Such as ``1 Store_name_value``.
    lines = [line.split(None, 1) for line in file.read_lines(join(file.folder, "class_list.txt"))]
    file.classes = {parsing.parse_id(words[0]): words[-1] for words in lines}
    return file.list_items(file.content, "file_name")


@document(
    "WildReceipt: lines of JSON with boxes and texts",
    _list_wildreceipt,
    suffixes=(".txt", ".json", ".jsonl"),
    parse=parsing.parse_json_lines,
    signature=rb'\A\s*\{(?=[^\n]*"file_name"\s*:)[^\n]*"annotations"\s*:\s*\[\s*\{[^}\n]*"box"\s*:\s*\[',
)
def wildreceipt(image: Any, picture: Picture) -> Parts:
    """Each annotation is an object with its corners, class and text. A class without a name has its number as name."""
    for each in image["annotations"]:
        corners = parsing.to_floats(each["box"])
        yield shapes.polygon(picture.name_class(each.get("label")), corners, texts=each.get("text"))
