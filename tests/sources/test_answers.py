"""Each line that a question prints: it packs, asks nothing again, and leaves out what its note says."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from packstore.cli import cli
from packstore.sources import SourceOptions, add_source_to_questions, open_source
from tests.internals import AmbiguousSourceError, suggest_commands
from tests.internals import answers as module
from tests.makers.annotated import fill, jpeg, mask, voc_xml
from tests.makers.command import run
from tests.makers.images import encode
from tests.makers.sources import look, question

Files = dict[str, str | bytes]


def classes(prefix: str, names: Sequence[str] = "ab", count: int = 5, form: str = "{}.jpg") -> Files:
    return {f"{prefix}{name}/{form.format(n)}": jpeg(n) for name in names for n in range(count)}


def named(*names: str) -> Files:
    """Four images in each of some folders."""
    return {f"{name}/{n}.jpg": jpeg(n) for name in names for n in range(4)}


def originals_and_copies(names: tuple[str, str], copies: str, further: str) -> Files:
    own = {f"{name}/{n}.jpg": jpeg(n) for name in names for n in range(5)}
    augmented = {f"{copies}/{name}/aug_{n}.jpg": jpeg(n) for name in names for n in range(3)}
    return {**own, **augmented, further: "x"}


def splits_and_others(splits: tuple[str, ...], other: str) -> Files:
    files: Files = {}
    for split in (*splits, other):
        files |= classes(f"{split}/x/", count=2 if split == other else 4, form=f"{split}{{}}.jpg")
    return files


def photo(number: int, side: int = 48) -> bytes:
    """A picture of its own at any size."""
    pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    return encode(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC), "PNG")


SPLITS, CUP = ("train", "val", "test"), ("cup", (3, 2, 9, 7), 0)
LAYOUTS: dict[str, Callable[[], Files]] = {
    "copies": lambda: originals_and_copies(("yes", "no"), "augmented data", "models/a.model"),
    "as many copies": lambda: {
        **classes("", ["yes", "no"]),
        **classes("flipped/", ["yes", "no"], form="flip_{}.jpg"),
        "models/a.model": "x",
    },
    "copies further down": lambda: originals_and_copies(("cats", "dogs"), "augmented/flip", "notes.md"),
    "unlabelled images beside splits": lambda: {
        **classes("train/"), **classes("test/"), **{f"unlabeled/{n}.jpg": jpeg(n) for n in range(5)},
    },
    "a split of images and a split of folders": lambda: {
        **{f"train/{n}.png": jpeg(n) for n in range(7)}, **classes("test/", ["BSD68", "Set12"]),
    },
    "a stranger among faces": lambda: {
        **{f"lfw/{name}/{name}_{n:04}.jpg": jpeg(n) for name in ("Ann_B", "Cy_D", "Ed_F") for n in range(1, 4)},
        "lfw/Ed_F/logo.jpg": jpeg(9),
    },
    "copies without others": lambda: originals_and_copies(("cat", "dog"), "more", "notes.md"),
    "splits and icons": lambda: splits_and_others(("train", "val", "test"), "iconic-images"),
    "two splits and others": lambda: splits_and_others(("train", "test"), "extra"),
    "upper case ends": lambda: {f"{s}/i{n}_{e}.png": jpeg(n) for s in "ab" for n in range(6) for e in ("HR", "LR")},
    "lower case ends": lambda: {f"{s}/i{n}_{e}.png": jpeg(n) for s in "ab" for n in range(6) for e in ("temp", "test")},
    "domains": lambda: named("trainA", "trainB", "testA", "testB"),
    "years": lambda: named("train2017", "train2018"),
    "cameras": lambda: classes("front/") | classes("rear/"),
    "annotations of two classes": lambda: {
        **classes("", ["cat", "dog"], 10),
        **{f"{name}/{n}.xml": voc_xml(str(n), (name, (3, 2, 9, 7), 0)) for name, n in (("cat", 1), ("dog", 3))},
    },
    "thumbnails of the classes": lambda: {
        **{f"{c}/{c}{n}.png": photo(n + ord(c[0])) for c in ("cat", "dog") for n in range(8)},
        **{f"thumbnails/{c}{n}.png": photo(n + ord(c[0]), 16) for c in ("cat", "dog") for n in range(8)},
    },
    "captions beside classes": lambda: {
        **classes("", ["cat", "dog"], 8),
        **{f"{c}/{n}.txt": f"A {c} on a sofa, number {n} of them." for c in ("cat", "dog") for n in range(8)},
    },
    "scales of splits": lambda: {
        f"SET_{split}_{form}/{n:04}{end}.png": photo(n, size)
        for split, first in (("train", 1), ("valid", 801))
        for form, end, size in (("HR", "", 64), ("LR_bicubic/X2", "x2", 32))
        for n in range(first, first + 4)
    },
    "tables of classes": lambda: {
        **{f"images/{n}.jpg": jpeg(n) for n in range(12)},
        **{f"{c}.csv": "file,age\n" + "".join(f"{n}.jpg,{n}\n" for n in range(k, 12, 2)) for k, c in enumerate("ab")},
    },
    "tables of some images": lambda: {
        **{f"{s}/{c}/{s}{c}{n}.jpg": jpeg(n) for s in SPLITS for c in ("pit", "rim") for n in range(5)},
        **{
            f"{s}.csv": "file,kind\n" + "".join(f"{s}{c}{n}.jpg,{c}\n" for c in ("pit", "rim") for n in range(4))
            for s in ("train", "test")
        },
    },
    "the same boxes twice": lambda: {
        **{f"{s}/{s}_{n}.jpg": jpeg(n) for s in ("train", "test") for n in range(5)},
        **{f"{s}/{s}_{n}.xml": voc_xml(f"{s}_{n}", CUP) for s in ("train", "test") for n in range(5)},
        **{
            f"{s}_labels.csv": "filename,width,height,class,xmin,ymin,xmax,ymax\n"
            + "".join(f"{s}_{n}.jpg,16,12,cup,3,2,9,7\n" for n in range(5))
            for s in ("train", "test")
        },
    },
    "folders called images and masks": lambda: {
        f"{place}/{n}.png": jpeg(n) if place == "images" else mask(n)
        for place in ("images", "masks", "labels")
        for n in range(4)
    },
}  # fmt: skip


def ask(command: list[str]) -> AmbiguousSourceError | None:
    """The question of a command; None if it packs. Fails for any other error."""
    done = CliRunner().invoke(cli, command)
    if done.exit_code in (0, 3):
        return None
    assert isinstance(done.exception, AmbiguousSourceError), (command, done.output, done.exception)
    return done.exception


def left_of(note: str) -> Counter[str]:
    """What a note says is left out."""
    found = re.findall(r"([\d,]+) (image|\.\S+ file)", note.partition("leaves out")[2])
    return Counter({what: int(count.replace(",", "")) for count, what in found})


def count_files(root: Path) -> Counter[str]:
    return module._count_kinds(file.name for file in root.rglob("*") if file.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("archive", [False, True], ids=["folder", "zip"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_line_packs_and_leaves_out_what_it_says(name: str, archive: bool, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS[name]())
    source = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", root)) if archive else root
    command = ["convert", str(source), str(tmp_path / "s.lmdb")]
    question = ask(command)
    assert question is not None
    lines = suggest_commands(question, command)
    assert len(lines) == len(question.answers)
    for number, (line, answer) in enumerate(zip(lines, question.answers, strict=True)):
        words = shlex.split(line)[1:]
        words[2] = str(tmp_path / f"{number}.lmdb")
        assert answer.note, line
        asked = ask(words)
        assert str(asked) != str(question), line
        if asked is not None:
            assert "asks" in answer.note, (line, asked)
            continue
        with_classes = CliRunner().invoke(cli, ["info", words[2], "--json"])
        assert with_classes.exit_code == 0
        given: dict[str, Any] = {}
        for option, value in zip(answer.options[::2], answer.options[1::2], strict=True):
            key = {"source": "kind", "column": "columns"}.get(option[2:], option[2:].replace("-", "_"))
            if key != "split":
                given[key] = value if key in ("kind", "labels") else [*given.get(key, []), value]
        opened = open_source(answer.source or source, **given)
        split = dict(zip(answer.options[::2], answer.options[1::2], strict=True)).get("--split")
        survey = opened.survey(split)
        used = count_files(Path(answer.source or root))
        for path in survey.ledger.names(module.Role.LEFT):
            used -= module._count_kinds([path.rpartition("/")[2]])
        opened.close()
        assert left_of(answer.note) == count_files(root) - used, (line, answer.note)
        names = next((column.classes for column in survey.columns if column.name == "label"), None) or ()
        assert not (len(names) > 4 and 2 * len(names) > survey.records), line
        assert not (len(names) > 1 and {*names} <= {"train", "val", "test", "trainA", "testA"}), line


KEPT = {
    "annotations of two classes": "20 samples, with boxes, labels",
    "thumbnails of the classes": "16 samples in 2 classes (cat, dog), with thumbnails",
    "captions beside classes": "16 samples in 2 classes (cat, dog), with text",
    "scales of splits": "8 samples, train 4, valid 4, with lr_bicubic",
    "tables of classes": "12 samples, a 6, b 6, with age",
}


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "zip"])
@pytest.mark.parametrize("name", KEPT)
def test_the_first_line_keeps_all_files(name: str, archive: bool, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS[name]())
    source = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", root)) if archive else root
    question = ask(["convert", str(source), str(tmp_path / "s.lmdb")])
    assert question is not None
    assert question.answers[0].note.startswith(KEPT[name])
    assert question.answers[0].note.endswith("leaves out nothing")


LINES = {
    "tables of some images": [("--source", "table"), ("--source", "imagefolder")],
    "the same boxes twice": [("--source", "voc"), ("--source", "table")],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_lines_that_leave_out_least_come_first_and_each_outcome_once(name: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS[name]())
    question = ask(["convert", str(root), str(tmp_path / "s.lmdb")])
    assert question is not None
    assert [answer.options for answer in question.answers] == LINES[name]
    # The image folder comes last, since it packs no annotations.
    counts = [left_of(answer.note).total() for answer in question.answers if "imagefolder" not in answer.options]
    assert counts == sorted(counts)


@pytest.mark.parametrize(("images", "noted"), [(1, True), (2, False), (3, False)])
def test_one_photo_a_class_is_noted(images: int, noted: bool, tmp_path: Path) -> None:
    files = {f"p{n:02}/{n}x{k}.jpg": jpeg(n * 3 + k) for n in range(20) for k in range(images)}
    files |= {f"p{n:02}/{n}y.jpg": jpeg(90 + n) for n in range(4)}
    with closing(open_source(fill(tmp_path / "set", files))) as source:
        notes = [note for note in source.survey().notes if "--source flat" in note]
    assert len(notes) == noted


def test_splits_that_name_some_folders_have_a_line_that_names_the_others(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", named("a", "b", "c"))
    question = ask(["convert", str(root), str(tmp_path / "s.lmdb"), "--splits", "train=a,val=b"])
    assert question is not None
    assert [each.options for each in question.answers] == [("--splits", "c=/c"), ("--ignore", "/c")]
    assert question.answers[0].note == "12 samples, train 4, val 4, c 4, without labels; leaves out nothing"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scales of splits"])
def test_info_prints_a_question_as_json(name: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS[name]())
    done = CliRunner().invoke(cli, ["info", str(root), "--json"])
    printed = json.loads(done.stdout)
    (question,) = printed["questions"]
    assert printed["question"] == question["question"]
    for each in question["answers"]:
        assert each["note"]
        words = shlex.split(each["command"])[1:]
        assert ask([*words[:2], str(tmp_path / "s.lmdb"), *words[3:], "--overwrite"]) is None


@pytest.mark.parametrize("bad", [b"no image", mask(1)], ids=["text", "other size"])
def test_a_bad_companion_is_named(bad: bytes, tmp_path: Path) -> None:
    files = {f"{n}{end}.png": photo(n) if not end else bad for n in range(4) for end in ("", "_x")}
    root = fill(tmp_path / "set", files)
    options = ["--masks", "{s}.png={s}_x.png", "--ignore", "[0-2]_x.png"]
    done = CliRunner().invoke(cli, ["convert", str(root), str(tmp_path / "s.lmdb"), *options])
    assert re.search(r"3\.png: .*its 3_x\.png: .*--on-error skip", str(done.exception))


@pytest.mark.slow
def test_an_answer_that_changes_nothing_or_fails_is_not_offered(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS["copies"]())
    caught = question(root)
    # It fails for an empty class; and without that, the copies of all classes are a class.
    assert not [answer for answer in caught.answers if "imagefolder" in answer.options]
    assert caught.answers[0].options == ("--splits", "original=/no,original=/yes,augmented data=/augmented data")
    (whole,) = (each for each in caught.answers if each.options == ("--ignore", "/augmented data"))
    assert whole.note == "10 samples in 2 classes (no, yes); leaves out 6 images, 1 .model file"


def test_large_sources_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "set", LAYOUTS["copies"]())
    monkeypatch.setattr("packstore.sources.answers._MOST_FILES", 10)
    caught = question(root)
    assert caught.answers
    assert all(answer.note == "not tried: more than 10 files" for answer in caught.answers)


@pytest.mark.slow
def test_no_image_is_read_by_a_trial(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", dict.fromkeys(LAYOUTS["splits and icons"](), b""))
    command = ["convert", str(root), str(tmp_path / "s.lmdb")]
    question = ask(command)
    assert question is not None
    assert all("leaves out" in answer.note for answer in question.answers)


@pytest.mark.slow
def test_notes_are_comments_above_their_lines(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS["copies"]())
    lines = run("convert", root, tmp_path / "s.lmdb").stderr.splitlines()[1:]
    assert len(lines) >= 2
    assert all(line.startswith("  # " if number % 2 == 0 else "  packstore ") for number, line in enumerate(lines))


@pytest.mark.parametrize(
    "name", ["copies", "as many copies", "copies further down", "a split of images and a split of folders"]
)
def test_a_line_keeps_all_images(name: str, tmp_path: Path) -> None:
    root = fill(tmp_path / "set", LAYOUTS[name]())
    caught = question(root)
    with pytest.raises(AmbiguousSourceError) as tried, add_source_to_questions(root, SourceOptions()):
        raise caught
    first = tried.value.answers[0]
    survey = look(root, splits=first.options[1])
    assert survey.records == sum(path.suffix in (".jpg", ".png") for path in root.rglob("*"))
    keys = [(entry.key, entry.split, entry.labels) for entry in survey.entries]
    label = next((column for column in survey.columns if column.name == "label"), None)
    for key, split, values in keys:
        folder = key.split("/")
        if label is not None and label.classes is not None:
            assert label.classes[values[0]] == folder[-2]
            assert split == ("original" if len(folder) == 2 else folder[-3])
        else:
            assert split == folder[-2]


@pytest.mark.slow
def test_no_line_drops_a_class_or_makes_one_of_splits(tmp_path: Path) -> None:
    for name in ("copies further down", "unlabelled images beside splits"):
        caught = question(fill(tmp_path / name, LAYOUTS[name]()))
        options = [answer.options for answer in caught.answers]
        assert not {("--ignore", "/cats"), ("--ignore", "/dogs"), ("--source", "imagefolder")} & {*options}


@pytest.mark.slow
def test_one_stranger_alone_may_be_left_out(tmp_path: Path) -> None:
    caught = question(fill(tmp_path, LAYOUTS["a stranger among faces"]()))
    kept = [answer for answer in caught.answers if answer.options]
    assert [answer.options for answer in kept] == [("--ignore", "/lfw/Ed_F/logo.jpg")]
    assert kept[0].note.endswith("in 3 classes (Ann_B, Cy_D, Ed_F), with number; leaves out 1 image")


@pytest.mark.parametrize("flat", [False, True])
def test_images_without_the_name_of_one_are_a_question_before_packing(flat: bool, tmp_path: Path) -> None:
    names = ("1.jpg", "2.jpg_1088Wx1632H", "3.jpg_1088Wx1632H", "photo", "notes")
    files = {f"{place}{name}": jpeg(1) for place in ([""] if flat else ["a.1/", "b.2/"]) for name in names[:-1]}
    root = fill(tmp_path / "set", {**files, "notes": "x"})
    question = ask(["info", str(root)])
    assert question is not None
    assert [each.options[0] for each in question.answers] == ["--ignore", "--on-error"]
    assert question.answers[0].note == f"leaves out {3 if flat else 6} images"
    for answer in question.answers:
        assert ask(["convert", str(root), str(tmp_path / f"{answer.options[0]}.lmdb"), *answer.options]) is None


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize("have", [4, 8])
def test_a_table_most_of_whose_images_are_missing_is_read_by_the_first_line(
    have: int, suffix: str, tmp_path: Path
) -> None:
    rows = [{"who": f"A{n}", "scan": f"p{n}x.jpg", "finding": "ab"[n % 2]} for n in range(20)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    if suffix == ".csv":
        text = "".join(f"{','.join(row)}\n" for row in (rows[0].keys(), *(row.values() for row in rows)))
    files = {f"images/p{n}x.jpg": jpeg(n) for n in range(have)}
    root = fill(tmp_path / "set", {**files, f"facts{suffix}": text})
    question = ask(["convert", str(root), str(tmp_path / "s.lmdb")])
    assert question is not None
    first = question.answers[0]
    assert first.options == ("--column", "image=scan")
    assert first.note.startswith(f"{have} samples in 2 classes (a, b), with who; leaves out ")
    assert first.note.endswith(f"{20 - have} rows of facts{suffix} without an image")
    assert ask(["convert", str(root), str(tmp_path / "s.lmdb"), *first.options]) is None


def test_images_of_many_odd_names_can_be_skipped(tmp_path: Path) -> None:
    root = fill(tmp_path / "set", {"1.jpg": jpeg(1), **{f"a.x{n}y": jpeg(1) for n in range(20)}})
    question = ask(["info", str(root)])
    assert question is not None
    assert [answer.options for answer in question.answers] == [("--on-error", "skip")]
    assert ask(["convert", str(root), str(tmp_path / "s.lmdb"), "--on-error", "skip"]) is None


def test_classes_of_nearly_equal_sizes_raise_no_question(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    files = {}
    for name in ("cat", "dog"):
        for n in range(4):
            out = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (40 + n, 50, 3), np.uint8)).save(out, "PNG")
            files[f"{name}/{n:03}.png"] = out.getvalue()
    assert ask(["convert", str(fill(tmp_path / "set", files)), str(tmp_path / "s.lmdb")]) is None
