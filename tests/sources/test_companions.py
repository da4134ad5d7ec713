"""Files that belong to images: patterns of ``--pair``, ``--sidecar`` and ``--masks``, and the columns they become."""

from __future__ import annotations

import cProfile
import io
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore import UsageError
from packstore.sources import open_source
from tests.internals import Role, SourceError, parse_pattern
from tests.makers.annotated import fill, jpeg, mask
from tests.makers.images import encode, npy, picture, tiny
from tests.makers.sources import FileSuite, look, not_packed, prove, question, refused


def make(folder: Path, samples: int) -> Path:
    dot = encode(picture(width=1, height=1), "PNG")
    return fill(
        folder, {f"a{n:05}{end}.png": file for n in range(samples) for end, file in (("_HR", tiny(n)), ("_LR", dot))}
    )


class TestCompanions(FileSuite):
    kind = "companions"
    bytes_per_sample = 1500

    def make(self, folder: Path, samples: int) -> Path:
        return make(folder, samples)

    def options(self, path: Path) -> dict[str, Any]:
        return {"pair": "{s}_HR.png={s}_LR.png"}

    def change(self, path: Path) -> None:
        (path / "a00000_HR.png").write_bytes(tiny(99_999))


def read(path: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """The values of each sample by its key; all files are packed or read."""
    survey = look(path, **options)
    assert (survey.kind, survey.ledger.left) == ("companions", {})
    return survey.samples


def archives(path: Path) -> list[Path]:
    """The folder, and the same as zip and tar."""
    return [path, *(Path(shutil.make_archive(str(path.parent / "archive"), end, path)) for end in ("zip", "tar"))]


MASKS = {
    "{s}_mask.png": ("a{}.jpg", "a{}_mask.png"),
    "{s}.png": ("x/a{}.jpg", "x/a{}.png"),
    "{s}_m.png": ("a{}.JPG", "a{}_m.PNG"),
    "GT{s}.png": ("a{}.jpg", "GTa{}.png"),
    "masks/{s}.png": ("images/a{}.jpg", "masks/a{}.png"),
    "truth/{s}.png": ("photos/2020/a{}.jpg", "truth/2020/a{}.png"),
    "labels/{s}_l.png": ("train/images/a{}.jpg", "train/labels/a{}_l.png"),
    "{s}_mask_*.png": ("a{}.jpg", "a{}_mask_0.png"),
    "{dir}/../m/{s}.png": ("set/i/a{}.jpg", "set/m/a{}.png"),
    "{dir}_m/{s}.png": ("set/i/a{}.jpg", "set/i_m/a{}.png"),
    "{s}_sat.jpg={s}_mask.png": ("a{}_sat.jpg", "a{}_mask.png"),
    "i/{s}.jpg=m/{s}-{s}.png": ("i/{0}.jpg", "m/{0}-{0}.png"),
    "truth/t_{s}.png": ("photos/2020/a{}.jpg", "truth/2020/t_a{}.png"),
    "p/p_{s}.jpg=m/{s}.png": ("p/2020/p_a{}.jpg", "m/2020/a{}.png"),
}


@pytest.mark.parametrize("count", [2, 3, 30])
@pytest.mark.parametrize("pattern", MASKS)
def test_masks(pattern: str, count: int, tmp_path: Path) -> None:
    image, file = MASKS[pattern]
    expected = {image.format(n): {"mask": mask(n)} for n in range(count)}
    path = fill(
        tmp_path / "set",
        {image.format(n): jpeg(n) for n in range(count)} | {file.format(n): mask(n) for n in range(count)},
    )
    for place in archives(path) if count == 3 and not image.startswith(("x/", "set/")) else [path]:
        assert read(place, masks=pattern) == expected
    (path / file.format(1)).unlink()
    assert read(path, masks=pattern) == expected | {image.format(1): {"mask": None}}


def test_an_image_with_several_masks_has_a_list(tmp_path: Path) -> None:
    files = {f"{n}/images/{n}.png": tiny(n) for n in range(3)}
    path = fill(tmp_path, files | {f"{n}/masks/m{k}.png": mask(n + k) for n in range(3) for k in range(n)})
    expected = {f"{n}/images/{n}.png": {"masks": [mask(n + k) for k in range(n)] or None} for n in range(3)}
    assert read(path, masks="{dir}/../masks/*.png") == expected


def test_a_mask_goes_with_the_longest_name(tmp_path: Path) -> None:
    images = ("a", "a_b", "a1", "a10")
    files = {f"{name}.jpg": jpeg(n) for n, name in enumerate(images)}
    files |= {f"{name}_{k}.png": mask(10 * n + k) for n, name in enumerate(images) for k in range(2)}
    assert read(fill(tmp_path, files), masks="{s}_*.png") == {
        f"{name}.jpg": {"masks": [mask(10 * n + k) for k in range(2)]} for n, name in enumerate(images)
    }


SIDECARS: dict[str, tuple[str, Any, Any]] = {
    "{s}.gt.txt=text": ("a{}.gt.txt", lambda n: f"line {n}\n", lambda n: f"line {n}"),
    "{s}.json=json": ("a{}.json", lambda n: json.dumps({"n": n}), lambda n: {"n": n}),
    "{s}.cls=label": ("a{}.cls", lambda n: "cat" if n % 2 else "bee", lambda n: n % 2),
    "{s}.num=label": ("a{}.num", lambda n: f"{n + 4}\n", lambda n: n + 4),
    "{s}.pose.txt=numbers": ("a{}.pose.txt", lambda n: f"1 {n}\n2.5 3\n", lambda n: [[1, n], [2.5, 3]]),
    "{s}.box.txt=numbers": ("a{}.box.txt", lambda n: f"1,{n}\n" * n, lambda n: [[1, n]] * n),
    "{s}.npy=npy": ("a{}.npy", lambda n: npy([[n, 1], [2, 3]]), lambda n: [[n, 1], [2, 3]]),
    "{s}.dat=bytes": ("a{}.dat", lambda n: bytes([n, 255]), lambda n: bytes([n, 255])),
}


@pytest.mark.parametrize("pattern", SIDECARS)
def test_sidecars(pattern: str, tmp_path: Path) -> None:
    name, content, value = SIDECARS[pattern]
    path = fill(
        tmp_path / "set", {f"a{n}.x.jpg": jpeg(n) for n in range(4)} | {name.format(n): content(n) for n in range(3)}
    )
    column = parse_pattern("sidecar", pattern).words or pattern.rpartition("=")[2]
    found = [each[column] for each in read(path, sidecar=pattern).values()]
    assert [each.tolist() if isinstance(each, np.ndarray) else each for each in found] == [*map(value, range(3)), None]
    prove(path, tmp_path / "o.lmdb", sidecar=pattern)


def test_two_pairs_and_names_of_columns(tmp_path: Path) -> None:
    names = ("clean", "noise10", "noise25")
    path = fill(tmp_path, {f"{name}/{n}.png": tiny(n + k) for k, name in enumerate(names) for n in range(3)})
    pairs = [f"clean/{{s}}.png={name}/{{s}}.png" for name in names[1:]]
    assert read(path, pair=pairs) == {
        f"clean/{n}.png": {"noise10": tiny(n + 1), "noise25": tiny(n + 2)} for n in range(3)
    }


def test_folders_are_splits_and_classes_or_a_text(tmp_path: Path) -> None:
    def pairs(name: str, count: int = 2) -> dict[str, bytes]:
        return {f"{name}{n}{end}.png": tiny(n) for n in range(count) for end in ("_a", "_b")}

    one = fill(tmp_path / "one", pairs("train/cat/") | pairs("train/dog/") | pairs("test/cat/"))
    with closing(open_source(one, pair="{s}_a.png={s}_b.png")) as source:
        survey = source.survey()
        assert dict(survey.splits) == {"train": 4, "test": 2}
        assert survey.columns[0].classes == ("cat", "dog")
        assert [source.read(each).values["label"] for each in source.entries("train")] == [0, 0, 1, 1]  # type: ignore[union-attr]
    two = fill(tmp_path / "two", pairs("scene1/") | pairs("scene2/"))
    assert [each["folder"] for each in read(two, pair="{s}_a.png={s}_b.png").values()] == ["scene1"] * 2 + [
        "scene2"
    ] * 2
    three = fill(tmp_path / "three", pairs("x/", 1) | pairs("y/", 1))
    assert [set(each) for each in read(three, pair="{s}_a.png={s}_b.png").values()] == [{"b"}, {"b"}]


def test_a_file_without_an_image_is_counted(tmp_path: Path) -> None:
    path = fill(make(tmp_path, 3), {"b_LR.png": tiny(9), "notes.md": "x"})
    survey = look(path, pair="{s}_HR.png={s}_LR.png").survey
    assert survey.records == 3
    assert survey.ledger.left["images that belong to no image"] == 1


@pytest.mark.slow
def test_recorded_and_used_again(tmp_path: Path) -> None:
    path, more = make(tmp_path / "set", 4), fill(tmp_path / "more", {f"b{e}.png": tiny(7) for e in ("_HR", "_LR")})
    store = tmp_path / "o.lmdb"
    prove(path, store, pair="{s}_HR.png={s}_LR.png")
    packstore.append(store, more)
    with packstore.open(store) as reader:
        assert (len(reader), reader.manifest.options["pair"]) == (5, '["{s}_HR.png={s}_LR.png"]')
    other = tmp_path / "p.lmdb"
    packstore.convert(store, other)
    packstore.append(other, store, key_prefix="x/")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("pair", "{s}_LR.png"),
        ("pair", "{s}.png={s}.png"),
        ("pair", "a.png={s}.png"),
        ("pair", "{s}.png=a.png"),
        ("pair", "{s}.png=../{s}.jpg"),
        ("pair", "{s}.png=/a/{s}.jpg"),
        ("pair", "{s}.png={t}/{s}.jpg"),
        ("pair", "{dir}/{s}.png={s}.jpg"),
        ("pair", "{s}={s}"),
        ("masks", "{s}"),
        ("masks", "masks/*.png"),
        ("masks", "*/{s}.png"),
        ("masks", "{s}//a.png"),
        ("masks", "{dir}/../../x\0{s}"),
        ("masks", ""),
        ("sidecar", "{s}.txt"),
        ("sidecar", "{s}.txt=words"),
        ("sidecar", "a=b={s}.txt=text"),
    ],
)
def test_unusable_patterns(option: str, text: str, tmp_path: Path) -> None:
    path = make(tmp_path, 2)
    refused(UsageError, path, f"^{option}: .* is not a pattern", **{option: text})
    refused(UsageError, path, f"^{option} should be patterns", **{option: [1]})


def test_patterns_that_match_nothing_or_not_this_kind(tmp_path: Path) -> None:
    path = make(tmp_path, 2)
    refused(SourceError, path, "no image has a file", masks="{s}_seg.png")
    refused(UsageError, path, "does not use masks", kind="flat", masks="{s}_seg.png")
    with pytest.raises(SourceError, match="has no files that belong to images"):
        open_source(fill(tmp_path / "alone", {"a.png": encode(photo(1), "PNG")}), kind="companions")
    refused(SourceError, path, "holds no images", masks="{s}.png")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type", "content", "reason"),
    [
        ("numbers", "1 2\n3\n", "equally many numbers"),
        ("numbers", "one", "other text than lines of equally many numbers"),
        ("npy", "x", "no array of numpy"),
        ("json", "{", "no JSON"),
    ],
)
def test_a_bad_sidecar_is_a_bad_sample(type: str, content: str, reason: str, tmp_path: Path) -> None:
    good = {"numbers": "1 2", "npy": npy([1, 2]), "json": "[]"}[type]
    files = {f"a{n:03}.jpg": jpeg(n) for n in range(300)} | {f"a{n:03}.dat": good for n in range(299)}
    path = fill(tmp_path, files | {"a299.dat": content})
    with closing(open_source(path, sidecar=f"{{s}}.dat={type}")) as source:
        source.survey()
        entry = list(source.entries())[-1]
        with pytest.raises(packstore.SampleError, match=reason):
            source.read(entry)


def test_a_mask_that_does_not_fit_is_named(tmp_path: Path) -> None:
    dots = {f"a{n}_mask.png": mask(n, 1, 1) for n in range(3)}
    path = fill(tmp_path / "images", {f"a{n}.jpg": jpeg(n) for n in range(3)} | dots)
    with pytest.raises(packstore.SampleError, match=r"its a0_mask.png: mask: the mask is 1x1, and its image"):
        packstore.convert(path, tmp_path / "out.lmdb", masks="{s}_mask.png")


def offers(path: Path) -> list[tuple[str, ...]]:
    """The options of each answer to the question that a folder raises."""
    caught = question(path)
    return [answer.options for answer in caught.answers]


def photo(seed: int, width: int = 64, height: int = 48) -> Image.Image:
    """A picture of smooth colours, another one for each seed."""
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (5, 6, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )


def noisy(image: Image.Image, seed: int) -> Image.Image:
    values = np.asarray(image) + np.random.default_rng(seed).normal(0, 20, np.asarray(image).shape)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def outline(seed: int, width: int = 64, height: int = 48) -> bytes:
    """A black and white PNG file."""
    values = np.zeros((height, width), np.uint8)
    values[seed % 20 : seed % 20 + 12, seed % 30 : seed % 30 + 20] = 255
    return encode(Image.fromarray(values), "PNG")


FOUND_MASKS = (
    ("{}.jpg", "{}.png"),
    ("{}.jpg", "GT{}.png"),
    ("{}.jpg", "seg-{}.png"),
    ("{}.jpg", "{}.outline.bmp"),
    ("{}.jpg", "cut{}.png"),
    ("{}.jpg", "{}cut.png"),
    ("raw/{}.jpg", "cut/cut{}.png"),
    ("raw/{}.png", "cut/{}cut.png"),
    ("{}.jpg", "{}_m_0.png"),
    ("{}_0.jpg", "{}_1.png"),
    ("s{}-0.png", "s{}-1.png"),
    ("a/{}.jpg", "a/{}_L.png"),
    ("x/raw/{}.jpg", "x/cut/{}.png"),
    ("raw/{}.png", "cut/{}-cut.png"),
    ("{0}/photo/{0}.png", "{0}/parts/k.png"),
    ("{}/photo.jpg", "{}/parts.png"),
    ("{}/image/photo.png", "{}/mask/0.png"),
    ("train/{}_sat.jpg", "train/{}_mask.png"),
    ("train/{}.jpg", "trainannot/{}.png"),
    ("images/training/{}.jpg", "annotations/training/{}.png"),
    ("raw/train/{}.png", "cut/train/gt_{}.png"),
    ("raw/train/r_{}.png", "cut/train/c_{}.png"),
    ("train/{}/image/photo.png", "train/{}/mask/0.png"),
)


@pytest.mark.parametrize("count", [2, 3, 29])
@pytest.mark.parametrize("names", FOUND_MASKS)
@pytest.mark.parametrize("stem", ["{}", "tile_{}", "n{}x"])
def test_masks_are_found_whatever_their_names(names: tuple[str, str], stem: str, count: int, tmp_path: Path) -> None:
    stems = [stem.format(number) for number in range(count)]
    kind = {"jpg": "JPEG", "png": "PNG"}[names[0][-3:]]
    files = {names[0].format(each): encode(photo(number), kind, quality=90) for number, each in enumerate(stems)}
    masks = {names[1].format(each): outline(number) for number, each in enumerate(stems)}
    path = fill(tmp_path / "set", files | masks)
    shard = names[1].startswith("{}.")  # a tar of such names is one of WebDataset
    for place in [path] if count != 3 else archives(path)[: 3 - shard]:
        survey = look(place)
        assert survey.records == count
        assert {"mask", "masks"} & {column.name for column in survey.columns}
        assert not survey.ledger.left


@pytest.mark.parametrize("count", [2, 12, 29])
@pytest.mark.parametrize("names", ["{}.gt.txt", "{}_gt.txt", "text-{}.txt", "{}.jpg.txt"])
def test_lines_of_text_are_found(names: str, count: int, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"b{n % 2}/{n:04}.jpg": jpeg(n) for n in range(count + 1)}
    files |= {f"b{n % 2}/" + names.format(f"{n:04}"): f"line {n}\n" for n in range(count)}
    path = fill(tmp_path / "set", files)
    values = read(path)
    if count == 2:
        assert read(archives(path)[1]) == values
    texts = [next(each[column] for column in each if column not in ("folder", "label")) for each in values.values()]
    assert sorted(filter(None, texts)) == sorted(f"line {n}" for n in range(count))
    assert texts.count(None) == 1


@pytest.mark.parametrize("count", [2, 3, 40])
def test_texts_of_one_name_beside_the_image_of_each_folder_are_a_question(count: int, tmp_path: Path) -> None:
    for n in range(count):
        fill(tmp_path, {f"set/{n:03}/image.jpg": jpeg(n), f"set/{n:03}/caption.txt": f"A view of hill {n}."})
    caught = question(tmp_path / "set")
    assert caught.answers[0].options == ("--sidecar", "{dir}/caption.txt=text")
    assert caught.answers[0].note == f"{count} samples, with caption; leaves out nothing"
    found = read(tmp_path / "set", sidecar="{dir}/caption.txt=text")
    assert {key: values["caption"] for key, values in found.items()} == {
        f"{n:03}/image.jpg": f"A view of hill {n}." for n in range(count)
    }


@pytest.mark.slow
@pytest.mark.parametrize("text", ["about.txt", "about.json"])
@pytest.mark.parametrize("other", ["parts.png", "right.png"])
def test_texts_of_one_name_beside_forms_of_an_image(other: str, text: str, tmp_path: Path) -> None:
    for n in range(5):
        form = outline(n) if other == "parts.png" else encode(noisy(photo(n), n), "PNG")
        files = {"left.png": encode(photo(n), "PNG"), other: form, text: json.dumps([n])}
        fill(tmp_path, {f"s{n}/{name}": content for name, content in files.items()})
    first = offers(tmp_path)[0]
    options = dict(zip(first[::2], first[1::2], strict=True))
    values = read(tmp_path, **{name.removeprefix("--"): pattern for name, pattern in options.items()})
    assert [values[f"s{n}/left.png"]["about"] for n in range(5)] == [
        f"[{n}]" if text[-3:] == "txt" else [n] for n in range(5)
    ]


def test_equal_texts_in_each_folder_are_no_companions(tmp_path: Path) -> None:
    for n in range(4):
        fill(tmp_path, {f"{n}/image.jpg": jpeg(n), f"{n}/terms.txt": "Free to use."})
    assert look(tmp_path).kind == "imagefolder"


@pytest.mark.parametrize("text", [".txt", ".json"])
@pytest.mark.parametrize("folders", [("", "", ""), ("images/", "masks/", "notes/")])
def test_masks_and_texts_are_read_by_one_answer(folders: tuple[str, str, str], text: str, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"{folders[0]}a{n}.jpg": encode(photo(n), "JPEG") for n in range(9)}
    files |= {f"{folders[1]}a{n}{'' if folders[1] else '_mask'}.png": outline(n) for n in range(9)}
    files |= {f"{folders[2]}a{n}{text}": f'{{"seen": {n}}}' if text == ".json" else f"seen {n}" for n in range(9)}
    first = offers(fill(tmp_path, files))[0] if text == ".json" else ()  # texts for people raise no question
    options = dict(zip(first[::2], first[1::2], strict=True))
    values = read(fill(tmp_path, files), **{name.removeprefix("--"): pattern for name, pattern in options.items()})
    assert list(values) == [f"{folders[0]}a{n}.jpg" for n in range(9)]
    for n, each in enumerate(values.values()):
        assert outline(n) in each.values()
        assert (f"seen {n}" if text == ".txt" else {"seen": n}) in each.values()


PAIRS = {
    "noise": ("n10/{}.png", "n25/{}.png", "--pair"),
    "haze": ("foggy/{}.png", "bright/{}.png", "--pair"),
    "splits": ("train/p/{}.png", "train/q/{}.png", "--pair"),
    "prefixes": ("1/left{}.png", "1/right{}.png", "--pair"),
    "suffixes": ("image_{}_HR.png", "image_{}_LR.png", "--pair"),
    "names": ("scene{}/left.png", "scene{}/right.png", "--pair"),
    "numbers in folders": ("scene{}/im0.png", "scene{}/im1.png", "--pair"),
    "letters": ("L{}.png", "R{}.png", "--pair"),
    "letters behind": ("seq/{}_a.png", "seq/{}_b.png", "--pair"),
    "numbered cameras": ("cam0_{:03}.png", "cam1_{:03}.png", "--pair"),
    "numbered cameras of scenes": ("hall/cam0_{}.png", "hall/cam1_{}.png", "--pair"),
    "numbered cameras behind": ("{:03}_cam0.png", "{:03}_cam1.png", "--pair"),
    "numbers behind": ("{:06}_10.png", "{:06}_11.png", "--pair"),
    "scales": ("{:04}.png", "{:04}x2.png", "--pair"),
    "scales of both": ("{:04}_2x.png", "{:04}_4x.png", "--pair"),
    "sizes": ("{:04}_64x48.png", "{:04}_32x24.png", "--pair"),
    "exposures": ("shot{}_ev-2.png", "shot{}_ev+2.png", "--pair"),
    "exposures with a zero": ("shot{}_ev0.png", "shot{}_ev-2.png", "--pair"),
    "words of size": ("{}_large.png", "{}_small.png", "--pair"),
    "words of age": ("{}_old.png", "{}_new.png", "--pair"),
    "words as names": ("s{}/amber.Hi.png", "s{}/amber.Lo.png", "--pair"),
}


@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("name", PAIRS)
def test_two_forms_of_a_picture_are_a_question(name: str, count: int, tmp_path: Path) -> None:
    one, other, option = PAIRS[name]
    files = {one.format(n): encode(photo(n), "PNG") for n in range(count)}
    files |= {other.format(n): encode(noisy(photo(n), n), "PNG") for n in range(count)}
    path = fill(tmp_path / "set", files)
    for place in [path] if count != 3 else archives(path):
        answers = [answer for answer in offers(place) if answer[0] == option]
        assert answers
        assert look(place, pair=answers[0][1::2]).records == count


def test_each_scale_is_a_column(tmp_path: Path) -> None:
    files = {f"{n:04}.png": encode(photo(n), "PNG") for n in range(5)}
    for k in (2, 3, 4):
        files |= {f"{n:04}x{k}.png": encode(photo(n).resize((64 // k, 48 // k)), "PNG") for n in range(5)}
    path = fill(tmp_path, files)
    patterns = tuple(f"{{s}}.png={{s}}x{k}.png" for k in (2, 3, 4))
    assert any(answer[1::2] == patterns for answer in offers(path))
    assert all({*values} == {"x2", "x3", "x4"} for values in read(path, pair=patterns).values())


def test_splits_in_names_of_folders_share_a_column(tmp_path: Path) -> None:
    files = {}
    for split, count in (("train", 6), ("valid", 3)):
        files |= {f"X_{split}_big/{split[0]}{n}.png": encode(photo(n), "PNG") for n in range(count)}
        files |= {f"X_{split}_tiny/{split[0]}{n}.png": encode(photo(n).resize((32, 24)), "PNG") for n in range(count)}
    path = fill(tmp_path, files)
    patterns = [f"X_{split}_big/{{s}}.*=X_{split}_tiny/{{s}}.*" for split in ("train", "valid")]
    found = read(path, pair=patterns)
    assert len(found) == 9
    assert all({*values} == {"tiny"} and values["tiny"] for values in found.values())


@pytest.mark.parametrize("names", [("{}_rgb.png", "{}_z.png"), ("rgb/{}.png", "z/{}.png")])
def test_depth_of_16_bits_is_asked_about_and_kept_by_an_option(names: tuple[str, str], tmp_path: Path) -> None:
    files = {names[0].format(n): encode(photo(n), "PNG") for n in range(6)}
    for n in range(5):
        values = np.asarray(photo(50 + n).convert("L")).astype(np.uint16) * 200
        files[names[1].format(n)] = encode(Image.fromarray(values), "PNG")
    path = fill(tmp_path / "in", files)
    (first, *_) = offers(path)
    not_packed(UsageError, path, tmp_path / "o.lmdb", r"--column z\.depth=keep", pair=first[1])
    assert first[2:] == ("--column", "z.depth=keep")
    packstore.convert(path, tmp_path / "o.lmdb", pair=first[1], columns="z.depth=keep")
    with packstore.open(tmp_path / "o.lmdb") as reader:
        assert [column.mode for column in reader.manifest.columns if column.name == "z"] == ["I;16"]


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("mode", ["1", "L"])
@pytest.mark.parametrize("form", ["{0}/{1:03}", "{0}/{2}_{0}"])
def test_scans_of_two_classes_are_no_masks_of_each_other(form: str, suffix: str, mode: str, tmp_path: Path) -> None:
    files = {
        f"{form.format(c, n, NAMES[n])}.{suffix}": scan(50 * k + n, suffix, mode)
        for k, c in enumerate("ab")
        for n in range(9)
    }
    assert look(fill(tmp_path, files)).found == ("imagefolder", 18)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_masks_of_scans_have_fewer_edges(suffix: str, tmp_path: Path) -> None:
    files = {f"a/{n:03}.{suffix}": scan(n, suffix, "L") for n in range(9)}
    files |= {f"b/{n:03}.png": outline(n) for n in range(9)}
    assert all(values["mask"] for values in read(fill(tmp_path, files), masks="b/{s}.png").values())
    assert look(tmp_path).found == ("companions", 9)


def scan(seed: int, suffix: str, mode: str) -> bytes:
    """A picture of short black strokes on white, as lines of text."""
    values = np.full((48, 64), 255, np.uint8)
    for row in range(4, 44, 8):
        strokes = np.random.default_rng((seed, row)).integers(0, 2, 30).astype(bool)
        values[row : row + 4, 2:62:2][:, strokes] = 0
    return encode(Image.fromarray(values).convert(mode), "PNG" if suffix == "png" else "JPEG")


@pytest.mark.slow
@pytest.mark.parametrize("images", [("cam0_{}.png", "cam1_{}.png"), ("{}_0.png", "{}_1.png")])
@pytest.mark.parametrize("text", ["pose_{}.txt", "{}.txt", "{}.npy"])
def test_texts_beside_images_of_several_numbers(images: tuple[str, str], text: str, tmp_path: Path) -> None:
    stems = [f"h{n:03}x" for n in range(6)]
    files: dict[str, str | bytes] = {
        form.format(stem): encode(noisy(photo(n), k), "PNG")
        for n, stem in enumerate(stems)
        for k, form in enumerate(images)
    }
    files |= {text.format(stem): npy([n]) if text[-3:] == "npy" else f"1 0 {n}\n" for n, stem in enumerate(stems)}
    first = offers(fill(tmp_path, files))[0]
    options = dict(zip(first[::2], first[1::2], strict=True))
    values = read(tmp_path, **{name.removeprefix("--"): pattern for name, pattern in options.items()})
    assert len(values) == 6
    assert all(len(each) == 2 and all(each[name] is not None for name in each) for each in values.values())


@pytest.mark.parametrize("count", [3, 30])
def test_masks_of_two_experts(count: int, tmp_path: Path) -> None:
    files = {f"eye{n}.jpg": encode(photo(n), "JPEG") for n in range(count)}
    files |= {f"eye{n}_{end}.png": outline(n) for n in range(count) for end in ("1stHO", "2ndHO")}
    survey = look(fill(tmp_path, files))
    masks = [column for column in survey.columns if column.type == "mask"]
    assert (survey.kind, survey.records, len(masks)) == ("companions", count, 2)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("masks", [("vessels", "optic_disc"), ("masks/vessels", "masks/optic_disc")])
def test_several_folders_of_masks_are_columns(masks: tuple[str, str], count: int, tmp_path: Path) -> None:
    files = {f"images/{n}.jpg": encode(photo(n % 9), "JPEG") for n in range(count)}
    files |= {f"{name}/{n}.png": outline(n % 9) for name in masks for n in range(count)}
    survey = look(fill(tmp_path, files))
    columns = {column.name for column in survey.columns if column.type == "mask"}
    assert (survey.kind, survey.records, survey.ledger.left) == ("companions", count, {})
    assert columns == {name.replace("/", "_") for name in masks}


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["", "s1/", "s2/"])
def test_depth_and_poses_of_images_are_kept_by_one_answer(scene: str, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    for n in range(6):
        for place in (scene, "s1/" if scene else ""):
            files[f"{place}rgb/{n:04}.png"] = encode(photo(n), "PNG")
            files[f"{place}depth/{n:04}.png"] = encode(shade(n), "PNG")
            files[f"{place}poses/{n:04}.txt"] = f"1 0 0 {n}\n0 1 0 0\n"
    first = offers(fill(tmp_path, files))[0]
    assert first == ("--pair", "rgb/{s}.*=depth/{s}.*", "--sidecar", "rgb/{s}.*=poses/{s}.txt=numbers")


@pytest.mark.slow
def test_copies_of_a_set_are_read_as_the_set_is(tmp_path: Path) -> None:
    files = {}
    for base in ("DRIVE", "archive/DRIVE"):
        for split, end in (("training", 21), ("test", 1)):
            for n in range(end, end + 4):
                place = f"{base}/{split}"
                files[f"{place}/images/{n:02}_{split}.png"] = encode(photo(n), "PNG")
                files[f"{place}/1st_manual/{n:02}_manual1.png"] = outline(n)
                files[f"{place}/mask/{n:02}_{split}_mask.png"] = outline(n + 9)
    survey = look(fill(tmp_path, files))
    assert (survey.kind, survey.records, survey.ledger.left) == ("companions", 16, {})
    assert survey.splits == {"training": 8, "test": 8}
    assert {column.name for column in survey.columns if column.type == "mask"} == {"mask", "x1st_manual"}


def test_masks_belong_to_photos_and_not_to_their_depth(tmp_path: Path) -> None:
    files = {f"rgb/{n}.png": encode(photo(n), "PNG") for n in range(6)}
    files |= {f"depth/{n}.png": encode(photo(n).convert("L"), "PNG") for n in range(6)}
    (answer, *_) = offers(fill(tmp_path, files | {f"mask/{n}.png": outline(n) for n in range(6)}))
    assert {*answer[1::2]} == {"rgb/{s}.*=depth/{s}.*", "rgb/{s}.*=mask/{s}.*"}


def test_images_without_the_suffix_of_one_are_left_out(tmp_path: Path) -> None:
    """They have no name to compare with others."""
    files = {f"{c}/{n}.jpg": encode(photo(n), "JPEG") for c in ("ant", "bee") for n in range(4)}
    files |= {f"{c}/{n}_mask.png": outline(n) for c in ("ant", "bee") for n in range(4)}
    files["icons/logo.ico"] = encode(photo(9).resize((16, 16)), "ICO")
    survey = look(fill(tmp_path, files), masks="{s}_mask.png")
    assert (survey.records, survey.ledger.count(Role.LEFT)) == (8, 1)


@pytest.mark.slow
def test_few_masks_beside_many_images_are_masks(tmp_path: Path) -> None:
    files = {f"images/{n:05}.jpg": encode(photo(n % 9), "JPEG") for n in range(400)}
    files |= {f"outlines/{n:05}.png": outline(n % 9) for n in range(7, 400, 66)}
    survey = look(fill(tmp_path, files))
    assert (survey.kind, survey.records, survey.ledger.left) == ("companions", 400, {})


@pytest.mark.slow
def test_forms_beside_a_folder_of_other_names(tmp_path: Path) -> None:
    forms = ("bright", "dim", "dull", "grey")
    files = {f"{form}/{n:04}.png": encode(noisy(photo(n), k), "PNG") for k, form in enumerate(forms) for n in range(9)}
    path = fill(tmp_path, files | {f"a/p{101085 + n}.jpg": encode(photo(n), "JPEG") for n in range(9)})
    found = [answer for answer in offers(path) if "--pair" in answer]
    assert found[0][1::2] == tuple(f"bright/{{s}}.*={form}/{{s}}.*" for form in forms[1:])


NAMES = ("anna", "bob", "carol", "dave", "erik", "fay", "gus", "hal", "ida")


@pytest.mark.parametrize("count", [1, 2, 4, 9])
@pytest.mark.parametrize("alike", [False, True])
def test_folders_of_equal_names_may_be_classes(count: int, alike: bool, tmp_path: Path) -> None:
    """Few equal names are no evidence, but pictures that resemble each other are."""
    files = {
        f"{c}/{name}.png": encode(noisy(photo(n + 99 * (c == "b" and not alike)), 50 * n + ord(c)), "PNG")
        for c in "ab"
        for n, name in enumerate(NAMES[:count])
    }
    path = fill(tmp_path, files)
    if count == 9 or (alike and count > 1):
        assert ("--source", "imagefolder") in offers(path)
        return
    assert look(path).found == ("imagefolder", 2 * count)


@pytest.mark.parametrize("form", ["{0}", "{0}_icon"])
def test_an_icon_of_each_class_is_no_pair_of_its_images(form: str, tmp_path: Path) -> None:
    """Names that are those of their folders prove nothing."""
    files = {
        f"{split}/{name}/{name}_{n:03}.jpg": encode(photo(99 + 9 * len(split) + 3 * ord(name[0]) + n), "JPEG")
        for split in ("train", "test")
        for name in ("Pear", "Milk", "Kiwi")
        for n in range(3)
    }
    files |= {
        f"icons/{name}/{form.format(name)}.jpg": encode(photo(k), "JPEG")
        for k, name in enumerate(("Pear", "Milk", "Kiwi"))
    }
    assert ("--ignore", "/icons") in offers(fill(tmp_path, files))


def test_forms_and_masks_of_equal_names_in_each_folder(tmp_path: Path) -> None:
    files = {f"s{n}/rgb.png": encode(photo(n), "PNG") for n in range(5)}
    files |= {f"s{n}/depth.png": encode(photo(50 + n).convert("L"), "PNG") for n in range(5)}
    path = fill(tmp_path, files | {f"s{n}/parts.png": outline(n) for n in range(5)})
    assert ("--pair", "{dir}/depth.png", "--masks", "{dir}/parts.png") in offers(path)
    assert look(path, pair="{dir}/depth.png", masks="{dir}/parts.png").records == 5


def test_numbered_drawings_of_small_classes_are_no_masks(tmp_path: Path) -> None:
    files = {f"{c}/P00_s0.jpg": encode(photo(n), "JPEG") for n, c in enumerate("abc")}
    seen = look(fill(tmp_path, files | {f"{c}/P00_s1.png": outline(7 * n) for n, c in enumerate("ab")}))
    assert seen.found == ("imagefolder", 5)


UNLIKE: dict[str, list[str]] = {
    "letters": [f"{n}_{k}.jpg" for n in range(6) for k in "ab"],
    "letters first": [f"{k}{n}.jpg" for n in range(6) for k in "ab"],
    "second numbers": [f"{n:03}_{k}.jpg" for n in range(6) for k in range(3)],
    "cameras": [f"cam{k}_{n:03}.jpg" for n in range(6) for k in range(3)],
    "versions": [f"{n:03}_v{k}.jpg" for n in range(6) for k in range(3)],
    "versions first": [f"v{k}-f{n:03}.jpg" for n in range(6) for k in range(3)],
    "two of each class": [f"{c}/{k}.jpg" for c in "abc" for k in range(2)],
    "two words of each class": [f"{c}/{name}.jpg" for c in "ab" for name in ("anna", "bob")],
    "one name without a number": [f"{c}/{n}.jpg" for c in "ab" for n in (*range(11), "example")],
    **{
        f"classes {' '.join(classes)}": [f"{name}/{n:04}.jpg" for name in classes for n in range(9)]
        for classes in (("ant", "bee"), ("ant", "bee", "cow", "dog"), ("left", "right"), ("mask", "nomask"))
    },
}


@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_pictures_are_no_pairs_whatever_their_names(name: str, tmp_path: Path) -> None:
    names = UNLIKE[name]
    kind = "imagefolder" if "/" in names[0] else "flat"
    files = {file: encode(photo(n), "JPEG") for n, file in enumerate(names)}
    assert look(fill(tmp_path, files)).found == (kind, len(names))


def forms(names: str, *pictures: tuple[str, Callable[[int], Image.Image]], count: int = 5) -> dict[str, bytes]:
    """Files of several forms: ``{n}`` in ``names`` is a picture, ``{f}`` its form."""
    return {names.format(n=n, f=form): encode(make(n), "PNG") for form, make in pictures for n in range(count)}


def rounded(number: int) -> tuple[int, int]:
    return 91 + 7 * number % 23, 70 + 5 * number % 19


OFFERED: dict[str, tuple[tuple[str, ...], Callable[[], dict[str, bytes]]]] = {
    "grey photos and pictures in colour": (("--pair", "{s}.jpg={s}_overlay.png"), lambda: {
        **{f"x{n}.jpg": encode(photo(n).convert("L"), "JPEG") for n in range(4)},
        **forms("x{n}_overlay.png", ("", photo), count=4)}),
    "in colour and grey": (("--pair", "color_{s}.png=range_{s}.png"), lambda: forms(
        "{f}_{n}.png", ("color", photo), ("range", shade), count=6)),
    "scales in several folders": (("--pair", "{s}_full.png={s}_reduced.png"), lambda: {
        f"by_{k}/{n:03}_by_{k}_{form}.png": encode(photo(n, (96 + 12 * (n % 2)) // size, 72 // size), "PNG")
        for k in (2, 3, 4) for n in range(5) for form, size in (("full", 1), ("reduced", k))}),
    "words as names": (("--pair", "{s}.Hi.png={s}.Lo.png"), lambda: {
        f"s{k}/{word}.{end}.png": encode(photo(9 * k + n).resize(size), "PNG")
        for k in (2, 3) for n, word in enumerate(("amber", "birch", "cloud"))
        for end, size in (("Hi", (64, 48)), ("Lo", (32, 24)))}),
    "scaled and rounded sizes": (("--pair", "a/{s}.*=b/{s}.*"), lambda: forms(
        "{f}/{n:03}.png", ("a", lambda n: photo(n, *rounded(n))),
        ("b", lambda n: photo(50 + n, rounded(n)[0] // 4, rounded(n)[1] // 4)), count=9)),
    "pictures without a partner": (("--source", "flat"), lambda: {
        **forms("x{n}_RGB.png", ("", photo), count=10),
        **{f"{'xy'[n > 5]}{n}.png": encode(shade(n), "PNG") for n in range(9)}}),
    "poses": (("--sidecar", "{s}.color.png={s}.pose.txt=numbers"), lambda: {
        **forms("frame-{n:06}.color.png", ("", photo), count=9), "camera.txt": b"585 0 320",
        **{f"frame-{n:06}.pose.txt": b"1 0 %d\n0 1 2.5\n" % n for n in range(8)}}),
}  # fmt: skip


@pytest.mark.parametrize("name", OFFERED)
def test_what_goes_together_is_offered(name: str, tmp_path: Path) -> None:
    answer, make = OFFERED[name]
    assert answer in offers(fill(tmp_path, make()))
    if answer[0] == "--sidecar":
        assert look(tmp_path, sidecar=answer[1]).records == 9


def test_the_number_of_an_image_in_its_class_is_no_pair(tmp_path: Path) -> None:
    files = {
        f"{c}/{c}_{k}.png": encode(noisy(photo(n), 10 * n + k), "PNG") for n, c in enumerate("abcdef") for k in range(2)
    }
    assert look(fill(tmp_path, files)).found == ("imagefolder", 12)


def test_words_in_names_of_unlike_pictures_are_a_question_that_keeps_them(tmp_path: Path) -> None:
    files = {f"p{n}_{k}.jpg": encode(photo(2 * n + (k == "sad")), "JPEG") for n in range(7) for k in ("sad", "glad")}
    assert {("--source", "flat"), ("--pair", "{s}_glad.jpg={s}_sad.jpg")} <= {*offers(fill(tmp_path, files))}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "missing"), [(3, 0), (300, 0), (300, 5)])
@pytest.mark.parametrize("stem", ["{}", "yacht{:04}"])
def test_photos_of_one_object_are_one_sample(stem: str, count: int, missing: int, tmp_path: Path) -> None:
    """The words behind each stem recur; of many names only a sample is read."""
    parts = ("bow", "cabin", "galley", "stern")
    files = {f"{stem.format(n)}_{part}.jpg": jpeg(4 * n + k) for n in range(count) for k, part in enumerate(parts)}
    for n in range(missing):
        del files[f"{stem.format(50 * n)}_stern.jpg"]
    prices = "".join(f"4 2 {1000 + n}\n" for n in range(count))
    path = fill(tmp_path, {**files, "YachtsInfo.txt": prices})
    caught = question(path)
    first = caught.answers[0]
    assert {*first.options[1::2]} == {f"{{s}}_bow.jpg={{s}}_{part}.jpg" for part in parts[1:]}
    assert first.note.startswith(f"{count} samples, with ")
    assert first.note.endswith("; leaves out 1 .txt file (as many lines as samples: YachtsInfo.txt)")


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 250])
@pytest.mark.parametrize("ends", ["temp test", "golden val"])
def test_templates_of_few_shades_and_what_is_tested_are_pairs(ends: str, count: int, tmp_path: Path) -> None:
    """One word is also the name of a split, and the pictures look like masks."""
    first, second = ends.split()
    files: dict[str, str | bytes] = {}
    for group in ("lot7", "lot9"):
        for n in range(count):
            files |= {f"{group}/a/{n:05}_{end}.jpg": scan(n % 9, "jpg", "L") for end in (first, second)}
            files[f"{group}/a_not/{n:05}.txt"] = f"{n} 20 30 40 1\n" * (n % 3 + 1)
    if count > 99:
        del files[f"lot7/a/00007_{second}.jpg"]
    pair, texts = f"{{s}}_{first}.jpg={{s}}_{second}.jpg", f"{{s}}_{first}.jpg={{dir}}_not/{{s}}.txt=numbers"
    assert offers(fill(tmp_path, files))[0] == ("--pair", pair, "--sidecar", texts)
    values = read(tmp_path, pair=pair, sidecar=texts)
    assert len(values) == 2 * count
    assert sum(each[second] is None for each in values.values()) == (count > 99)


@pytest.mark.slow
@pytest.mark.parametrize("towns", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 20])
@pytest.mark.parametrize(
    ("stem", "height", "use"), [("44-2013-{}-A{}", "{}_HGT", "{}_LU2012"), ("{}{}", "dem_{}", "{}lu")]
)
def test_unlike_pictures_that_have_the_stems_of_images_belong_to_them(
    stem: str, height: str, use: str, count: int, towns: int, tmp_path: Path
) -> None:
    if towns * count == 1:
        return  # a sample alone
    for town in range(towns):
        for n in range(count):
            name, seed = stem.format(town + 7, 300 + n), 90 * town + 3 * n
            fill(
                tmp_path / f"set/town{town}",
                {
                    f"ORTHO/{name}.tif": encode(photo(seed), "TIFF"),
                    f"HGT/{height.format(name)}.tif": encode(photo(seed + 1), "TIFF"),
                    f"LandUse/{use.format(name)}.tif": encode(Image.open(io.BytesIO(outline(seed))), "TIFF"),
                },
            )
    for place in archives(tmp_path / "set")[: 3 if count == 5 else 1]:
        caught = question(place)
        note = caught.answers[0].note
        assert note.startswith(f"{towns * count} samples")
        assert note.endswith(("with hgt_dem, mask; leaves out nothing", "with hgt, mask; leaves out nothing"))
        assert ("--source", "imagefolder") in [answer.options for answer in caught.answers] or towns == 1


def test_poses_beside_two_images_belong_to_the_first(tmp_path: Path) -> None:
    files = {f"f{n:03}.rgb.png": encode(photo(n), "PNG") for n in range(6)}
    files |= {f"f{n:03}.depth.png": encode(shade(n), "PNG") for n in range(6)}
    files |= {f"f{n:03}.cam.txt": f"{n} 1 2\n3 4 5\n".encode() for n in range(6)}
    (answer, *_) = offers(fill(tmp_path, files))
    assert {*answer[1::2]} == {"{s}.rgb.png={s}.depth.png", "{s}.rgb.png={s}.cam.txt=numbers"}


def chessboard(seed: int, shift: int) -> bytes:
    """A board before a wall, from the left or the right."""
    random = np.random.default_rng(seed)
    x, y, side = random.integers(5, 30) + shift, random.integers(4, 20), random.integers(5, 8)
    values = np.full((72, 96), 200, np.uint8)
    squares = np.indices((5, 7)).sum(0) % 2 == 0
    values[y : y + 5 * side, x : x + 7 * side] = np.where(squares.repeat(side, 0).repeat(side, 1), 20, 200)
    return encode(Image.fromarray(values), "JPEG")


@pytest.mark.parametrize("names", [("left{:02}.jpg", "right{:02}.jpg"), ("left/{:02}.jpg", "right/{:02}.jpg")])
def test_pictures_of_a_chessboard_by_two_cameras_are_a_question(names: tuple[str, str], tmp_path: Path) -> None:
    """All of them are alike, but each pair shows the board at the same place."""
    files = {name.format(n): chessboard(n, 8 - 8 * k) for n in range(1, 14) for k, name in enumerate(names)}
    assert offers(fill(tmp_path / "pairs", files))[0][0] == "--pair"
    unlike = {name.format(n): chessboard(n + 50 * k, 0) for n in range(1, 14) for k, name in enumerate(names)}
    assert look(fill(tmp_path / "unlike", unlike)).records == 26


@pytest.mark.parametrize("folders", [("mask", "nomask"), ("photo", "xray")])
def test_pictures_of_unrelated_sizes_are_classes_whatever_their_colours(
    folders: tuple[str, str], tmp_path: Path
) -> None:
    pictures = {
        f"{folder}/{n:03}.jpg": photo(20 * k + n)
        .resize((60 + 13 * (n * (k + 2) % 5), 90 - 9 * ((n + 3 * k) % 7)))
        .convert("L" if k else "RGB")
        for k, folder in enumerate(folders)
        for n in range(9)
    }
    path = fill(tmp_path, {name: encode(image, "JPEG") for name, image in pictures.items()})
    assert look(path).found == ("imagefolder", 18)


def shade(seed: int) -> Image.Image:
    """A grey picture unlike that of :func:`photo`."""
    return photo(50 + seed).convert("L")


@pytest.mark.parametrize(("images", "files"), [(10, 6), (10, 3), (6, 4), (30, 30)])
@pytest.mark.parametrize("stem", ["x{}", "{:04}"])
def test_plain_names_may_be_those_of_the_companions(stem: str, images: int, files: int, tmp_path: Path) -> None:
    """All images are samples, though the pattern of the plain names matches them too."""
    colour = {f"{stem.format(n)}_RGB.png": encode(photo(n), "PNG") for n in range(images)}
    masks, depth = (
        {f"{stem.format(n)}.png": make(n) for n in range(files)}
        for make in (outline, lambda n: encode(shade(n), "PNG"))
    )
    values = read(fill(tmp_path / "masks", colour | masks))
    assert [each["mask"] for each in values.values()].count(None) == images - files
    path = fill(tmp_path / "depth", colour | depth)
    assert offers(path)[0] == ("--pair", "{s}_RGB.png={s}.png")
    assert len(read(path, pair="{s}_RGB.png={s}.png")) == images


@pytest.mark.slow
@pytest.mark.parametrize("count", [33, 60])
def test_forms_in_many_folders(count: int, tmp_path: Path) -> None:
    path = fill(tmp_path / "forms", {f"clean/{n}.png": encode(photo(n), "PNG") for n in range(5)})
    fill(path, {f"x{k}/{n}.png": encode(noisy(photo(n), k), "PNG") for n in range(5) for k in range(count)})
    pairs = offers(path)[0]
    assert pairs[0] == "--pair"
    assert len(pairs) == 2 * count
    classes = {f"x{k}/{n}.png": encode(photo(9 * k + n), "PNG") for n in range(5) for k in range(count)}
    assert look(fill(tmp_path / "classes", classes)).kind == "imagefolder"


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("{}/{}.jpg", "{}/{}.png"), ("photos/{}/{}.jpg", "cut/{}/{}.png"), ("{}/a/{}.jpg", "{}/b/{}.png")]
)
@pytest.mark.parametrize("classes", [("c0", "c1", "c2"), ("MT_Blowhole", "MT_Crack")])
@pytest.mark.parametrize("strays", [0, 2])
def test_folders_of_images_with_masks_are_classes(
    names: tuple[str, str], classes: tuple[str, ...], strays: int, tmp_path: Path
) -> None:
    """A few pictures at the top do not change it."""
    numbered = [(name, f"exp{k}_{n}") for k, name in enumerate(classes) for n in range(6)]
    files = {names[0].format(*each): encode(photo(n), "JPEG") for n, each in enumerate(numbered)}
    files |= {names[1].format(*each): outline(n) for n, each in enumerate(numbered)}
    files |= {name: encode(photo(90), "JPEG") for name in ("overview.jpg", "sample.png")[:strays]}
    path = fill(tmp_path / "set", files)
    for place in archives(path)[: 2 if names[0].startswith("{}/{}") else 3]:  # such a tar is a shard of WebDataset
        survey = look(place)
        assert (survey.kind, survey.records) == ("companions", len(numbered))
        assert sum(survey.ledger.left.values()) == strays
        columns = {column.name: column.classes for column in survey.columns}
        assert columns["label"] == classes
        assert "mask" in columns


@pytest.mark.parametrize(("folders", "column"), [(2, "label"), (9, "folder")])
def test_folders_of_few_images_with_masks_are_kept(folders: int, column: str, tmp_path: Path) -> None:
    """The first folder has two images, the others one."""
    places = ["ant", *NAMES[: folders - 1], "ant"]
    files = {f"{place}/x{n}.jpg": encode(photo(n), "JPEG") for n, place in enumerate(places)}
    files |= {f"{place}/x{n}_m.png": outline(n) for n, place in enumerate(places)}
    values = read(fill(tmp_path, files))
    assert [column in each for each in values.values()] == [True] * len(places)


@pytest.mark.parametrize("clip", ["clip_{}", "147{}"])
def test_folders_of_clips_with_masks_are_a_text(clip: str, tmp_path: Path) -> None:
    clips = [clip.format(k) for k in range(3) for _ in range(4)]
    files = {f"{name}/a{n}.jpg": encode(photo(n), "JPEG") for n, name in enumerate(clips)}
    files |= {f"{name}/a{n}.png": outline(n) for n, name in enumerate(clips)}
    assert sorted(each["folder"] for each in read(fill(tmp_path, files)).values()) == clips


@pytest.mark.slow
def test_recognition_takes_time_in_proportion_to_folders(tmp_path: Path) -> None:
    """Names are compared a number of times that grows with the number of folders, not with its square."""
    calls = []
    for count in (20, 80):
        files = {f"{count}/{n}/a/{n}.png": encode(photo(n % 9), "PNG") for n in range(count)}
        fill(tmp_path, files | {f"{count}/{n}/b/{n}_{k}.png": outline(k) for n in range(count) for k in range(2)})
        profile = cProfile.Profile()
        with profile, closing(open_source(tmp_path / str(count))) as source:
            assert source.kind == "companions"
        calls.append(sum(each.callcount for each in profile.getstats()))
    assert calls[1] < 6 * calls[0]
