"""Conversations about images: LLaVA's and others, one or several images a sample."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore import PackedDataset, convert, export
from packstore.sources import ask_about_left, open_source
from tests.internals import Role, SampleError, SourceError
from tests.makers.annotated import fill, jpeg
from tests.makers.sources import FileSuite, look, prove, question, refused

TURNS = [{"from": "human", "value": "<image>\nWhat is this?"}, {"from": "gpt", "value": "A dog."}]
MESSAGES = [{"role": "user", "content": "<image>What is this?"}, {"role": "assistant", "content": "A dog."}]


def llava(samples: int, several: bool = False) -> dict[str, str | bytes]:
    """Each image in a conversation; with ``several`` every third one is about two images."""
    files: dict[str, str | bytes] = {f"images/coco/train2017/{n:012}.jpg": jpeg(n) for n in range(samples)}
    entries = []
    for n in range(samples):
        names = [f"coco/train2017/{(n + k) % samples:012}.jpg" for k in range(2 if several and n % 3 == 2 else 1)]
        image = names if several and n % 2 == 0 else names[0] if len(names) == 1 else names
        entries.append({"id": f"{n:09}", "image": image, "conversations": TURNS})
    return files | {"llava_train.json": json.dumps(entries)}


class TestConversations(FileSuite):
    kind = "conversations"
    bytes_per_sample = 700
    damages = 10

    def make(self, folder: Path, samples: int) -> Path:
        return fill(folder, llava(samples))

    def change(self, path: Path) -> None:
        file = path / "llava_train.json"
        file.write_text(file.read_text() + "\n")


@pytest.mark.parametrize("samples", [3, 300, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["folder", "zip", "tar"])
def test_several_images_a_sample_are_a_list(samples: int, way: str, tmp_path: Path) -> None:
    path = fill(tmp_path / "set", llava(samples, several=True))
    place = path if way == "folder" else Path(shutil.make_archive(str(tmp_path / "packed"), way, path))
    with closing(open_source(place)) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert (source.kind, survey.records, survey.ledger.count(Role.LEFT)) == ("conversations", samples, 0)
        assert dict(survey.splits) == {"train": samples}
        names = [column.name for column in survey.columns if not column.name.endswith("_valid")]
        assert names == ["further_images", "id", "conversations", "json"]
        entries = list(source.entries())
        first, third = source.read(entries[0]).values, source.read(entries[2]).values
    assert first["further_images"] == []
    assert third["further_images"] == [jpeg(3 % samples)]
    assert third["json"] == {"image": [f"coco/train2017/{(2 + k) % samples:012}.jpg" for k in range(2)]}
    assert (third["id"], third["conversations"]) == ("000000002", TURNS)


def test_a_store_has_all_images_and_turns(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", llava(6, several=True))
    prove(root, tmp_path / "x.lmdb", decode=True)
    items = PackedDataset(tmp_path / "x.lmdb", "train", columns=("further_images", "conversations"))
    assert [len(item[0]) for item in items] == [0, 0, 1] * 2
    assert items[5][1] == TURNS


def test_a_conversation_is_about_any_number_of_images(tmp_path: Path) -> None:
    """Without one of several images there are no lists, and beside a folder that is not here no image of its name."""
    files = llava(40)
    entries: list[Any] = [{"images": [f"coco/train2017/{n:012}.jpg" for n in range(40)], "conversations": TURNS}]
    entries += [{"image": ["gqa/000000000003.jpg"], "conversations": TURNS}]
    files["llava_train.json"] = json.dumps(entries)
    survey = look(fill(tmp_path, files))
    assert survey.records == 1
    assert survey.ledger.passed_over == {"conversations whose images are not here": 1}
    assert survey.values[0]["further_images"] == [jpeg(n) for n in range(1, 40)]


def test_further_conversations_about_an_image_are_samples_of_their_own(tmp_path: Path) -> None:
    files = llava(2)
    entries: list[Any] = json.loads(files["llava_train.json"])
    more = [{"id": 7, "conversations": TURNS}, {"image": "coco/train2017/gone.jpg", "conversations": TURNS},
            {"image": "https://example.org/a.jpg", "conversations": TURNS}]  # fmt: skip
    files["llava_train.json"] = json.dumps([*entries, {**entries[0], "id": "again"}, *more])
    survey = look(fill(tmp_path, files))
    first = "images/coco/train2017/000000000000.jpg"
    assert survey.keys == [first, first.replace("0.jpg", "1.jpg"), f"{first}#1"]
    assert survey.ledger.passed_over == {
        "conversations without images": 1,
        "conversations whose images are not here": 2,
    }


def test_a_bad_further_image_is_named(tmp_path: Path) -> None:
    """Its sample has the key of the first image, which is good."""
    root = fill(tmp_path / "source", llava(6, several=True))
    bad = "images/coco/train2017/000000000003.jpg"
    (root / bad).write_bytes(b"garbage that is long enough to have a header")
    with closing(open_source(root)) as source:
        entry = next(each for each in source.entries() if each.key.endswith("2.jpg"))
        with pytest.raises(SampleError) as caught:
            source.read(entry)
    assert caught.value.key == entry.key
    assert caught.value.reason.startswith(f"further_images: its {bad}: is not an image")
    skipped = convert(root, tmp_path / "x.lmdb", on_error="skip").skipped
    assert {each.key for each in skipped} == {entry.key, bad}


@pytest.mark.slow
def test_sizes_count_further_images(tmp_path: Path) -> None:
    """In the source, the report, the store, and in exports and stores that are sources themselves."""
    root = fill(tmp_path / "source", llava(6, several=True))
    survey = look(root).survey
    several = sum(len(jpeg(n)) for n in (*range(6), 3, 0))
    assert survey.image_bytes == several
    store = tmp_path / "x.lmdb"
    report = convert(root, store)
    assert report.source_bytes == several
    assert several <= report.manifest.image_bytes < 1.1 * several
    for to in ("webdataset", "parquet"):
        export(store, tmp_path / to, to=to)
    for place in (store, tmp_path / "webdataset", tmp_path / "parquet"):
        assert several <= look(place).image_bytes < 1.1 * several
        assert several <= convert(place, tmp_path / "again.h5", overwrite=True).source_bytes < 1.1 * several


def test_messages_of_several_files_in_lines(tmp_path: Path) -> None:
    """ShareGPT's ``images`` beside messages; images in the parts of messages; a split a file."""
    files: dict[str, str | bytes] = {f"images/{n}.jpg": jpeg(n) for n in range(6)}
    lines = [{"messages": MESSAGES, "images": [f"images/{n}.jpg", f"images/{n + 1}.jpg"]} for n in range(3)]
    parts = [{"type": "image", "image": "file:///images/5.jpg"}, {"type": "text", "text": "What is this?"}]
    files["train.jsonl"] = "\n".join(json.dumps(line) for line in lines)
    files["val.jsonl"] = json.dumps({"messages": [{"role": "user", "content": parts}, MESSAGES[1]], "level": 2}) + "\n"
    with closing(open_source(fill(tmp_path, files))) as source:
        survey = source.survey()
        ask_about_left(source, survey)
        assert dict(survey.splits) == {"train": 3, "val": 1}
        train, val = (next(source.entries(split)) for split in ("train", "val"))
        assert source.read(train).values["further_images"] == [jpeg(1)]
        assert val.key == "images/5.jpg"
        assert source.read(val).values["json"] == {"level": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"conversations": [{"from": "human", "value": "x"}]}, 5]', "conversation 2 has no list of"),
        ('[{"conversations": [{"from": "human"}]}]', "has no list of"),
        ('[{"conversations": [{"from": "human", "value": "x"}], "image": 5}]', "has the images 5"),
        ('[{"conversations": [{"from": "human", "value": "x"}], "image": "../x.jpg"}]', "not a path within the source"),
        ('[{"conversations": [{"from": "human", "value": "x"}], "image": ["images/0.jpg", ""]}]', "not a path within"),
        ('[{"conversations": [{"from": "human", "value": "x"}]', "is no JSON"),
        ('[{"conversations": [{"from": "human", "value": ' + "[" * 100_000, "nested too deeply"),
        ('[{"conversations": [{"from": "human", "value": "x"}]}]', "holds no samples"),
    ],
)
def test_a_file_that_is_wrong_is_said(text: str, said: str, tmp_path: Path) -> None:
    root = fill(tmp_path, {"images/0.jpg": jpeg(0), "llava.json": text})
    refused(SourceError, root, said)


def test_other_annotations_beside_them_are_asked_about(tmp_path: Path) -> None:
    files = llava(30)
    boxes = "".join(f"{n:012}.jpg 1 2 3 4\n" for n in range(30))
    root = fill(tmp_path, files | {"boxes.txt": boxes})
    question(root, r"boxes\.txt")


def test_one_file_is_read_alone_if_it_is_named(tmp_path: Path) -> None:
    """Not what lies in JSON Lines beside it; images in parts are ``value``, as LLaMA-Factory writes them."""
    parts = [{"type": "image_url", "value": "images/1.jpg"}, {"type": "text", "value": "What is this?"}]
    turn = {"role": "user", "content": parts}
    files: dict[str, str | bytes] = {f"images/{n}.jpg": jpeg(n) for n in range(2)}
    files["demo.json"] = json.dumps([{"messages": [turn, MESSAGES[1]]}])
    files["other.jsonl"] = json.dumps({"messages": MESSAGES, "images": ["images/0.jpg"]})
    assert look(fill(tmp_path, files) / "demo.json").keys == ["images/1.jpg"]
