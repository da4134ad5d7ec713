"""Pictures that commands make: contact sheets, in files and in terminals; charts of ``info --plot``."""

from __future__ import annotations

import base64
import io
import os
import pty
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import packstore
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from packstore.cli import cli
from tests.internals import (
    CellMaker,
    SheetOptions,
    UsageError,
    choose_rows,
    draw_page,
    draw_values,
    encode_kitty,
    encode_sixel,
    parse_graphics,
    terminal_graphics,
    write_sheet,
)
from tests.makers.annotated import jpeg
from tests.makers.command import COMMAND, run
from tests.makers.datasets import make_folder
from tests.makers.images import encode
from tests.makers.stores import files_of
from tests.makers.typed import make_typed

AUGMENT = "RandomResizedCrop(24), RandomHorizontalFlip()"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sheet")
    packstore.convert(make_folder(root / "photos", per_class=6), root / "x.lmdb")
    return root / "x.lmdb"


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_each_class_has_a_row_of_some_records(store: Path) -> None:
    with packstore.open(store) as reader:
        rows = choose_rows(reader, SheetOptions(per_class=4))
        assert [row.title for row in rows] == ["ant  (12)", "bee  (12)", "cat  (12)"]
        for number, row in enumerate(rows):
            assert len(set(row.records)) == 4
            assert {int(reader.value("label", record)) for record in row.records} == {number}
        assert rows == choose_rows(reader, SheetOptions(per_class=4))
        assert rows != choose_rows(reader, SheetOptions(per_class=4, seed=1))
        val = reader.split("val")
        few = choose_rows(reader, SheetOptions(split="val", per_class=99))
        assert [record for row in few for record in row.records] == [*range(val.start, val.stop)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "per_class"), [(60, 5), (60, 2), (60, 1), (20, 5), (10, 5), (7, 3), (3, 5), (1, 40), (2, 60)]
)
@pytest.mark.parametrize("size", [(40, 20), (20, 20), (20, 60)])
def test_a_sheet_is_about_as_wide_as_high(tmp_path: Path, classes: int, per_class: int, size: tuple[int, int]) -> None:
    colors: set[tuple[int, ...]] = set()
    labels = packstore.Label([f"{n}" for n in range(classes)])
    with packstore.Writer(tmp_path / "x.h5", {"image": "image", "label": labels}, check="none") as writer:
        for number in range(classes * per_class):
            color = (number % 200 + 20, number // 200 * 50 + 20, 130)
            colors.add(color)
            image = encode(Image.new("RGB", size, color), "PNG")
            writer.add(key=f"{number}.png", image=image, label=number % classes)
    write_sheet(tmp_path / "x.h5", tmp_path / "x.png", SheetOptions(per_class=per_class, side=max(size)))
    with Image.open(tmp_path / "x.png") as image:
        sheet = np.asarray(image)
    assert 0.5 < sheet.shape[1] / sheet.shape[0] < 2.7
    found, counts = np.unique(sheet.reshape(-1, 3), axis=0, return_counts=True)
    areas = {tuple(color): count for color, count in zip(found.tolist(), counts.tolist(), strict=True)}
    assert all(areas.get(color) == size[0] * size[1] for color in colors), "an image is missing or covered"


@pytest.mark.slow
def test_augmented_images_are_those_of_the_loader_bit_for_bit(store: Path, tmp_path: Path) -> None:
    write_sheet(store, tmp_path / "x.png", SheetOptions(split="train", per_class=2, augment=AUGMENT, seed=5, epoch=3))
    with Image.open(tmp_path / "x.png") as image:
        sheet = np.asarray(image)
    loader = packstore.PackedLoader(
        packstore.PackedDataset(store, "train"),
        batch_size=18,
        augment=[RandomResizedCrop(24), RandomHorizontalFlip()],
        seed=5,
    )
    loader.set_epoch(3)
    images, _ = next(iter(loader))
    with packstore.open(store) as reader:
        rows = choose_rows(reader, SheetOptions(split="train", per_class=2, seed=5))
    windows = np.lib.stride_tricks.sliding_window_view(sheet[::1], (120, 120), (0, 1))  # 24 pixels, five times as large
    for row in rows:
        for record in row.records:
            wanted = images[record].permute(1, 2, 0).numpy().repeat(5, 0).repeat(5, 1).transpose(2, 0, 1)
            places = np.argwhere((windows[:, :, :, 0, 0] == wanted[:, 0, 0]).all(2))
            assert any((windows[y, x] == wanted).all() for y, x in places), record


@pytest.mark.slow
@pytest.mark.parametrize("augment", [None, AUGMENT])
def test_a_damaged_record_is_shown_as_such(store: Path, tmp_path: Path, augment: str | None) -> None:
    packstore.convert(make_folder(tmp_path / "photos", per_class=3, suffixes=(".png",)), tmp_path / "x.lmdb")
    with packstore.open(tmp_path / "x.lmdb") as reader:
        data = bytes(reader.read(1))
    file = tmp_path / "x.lmdb" / "data.mdb"
    content = bytearray(file.read_bytes())
    place = content.find(data)
    content[place + 60 : place + 90] = bytes(30)
    file.write_bytes(content)
    with packstore.open(tmp_path / "x.lmdb") as reader:
        cells = CellMaker(reader, SheetOptions(augment=augment))
        damaged = cells[1]
        assert (damaged.image, damaged.key) == (None, "train/ant/001.png")
        assert damaged.fault
        assert cells[2].image is not None
        whole = draw_page(cells, choose_rows(reader, SheetOptions(augment=augment)))
    red = np.asarray(whole)[:, :, 0].astype(int) - np.asarray(whole)[:, :, 1]
    assert (red > 170).any()


@pytest.mark.slow
def test_boxes_are_drawn_and_masks_if_asked_for(tmp_path: Path) -> None:
    names = ["mask", "boxes", "labels", "points", "label", "depth"]
    made = make_typed(tmp_path / "x.h5", names, 6)
    with packstore.open(made.path) as reader:
        plain = CellMaker(reader, SheetOptions(columns=[]))[1].image
        assert plain is not None
        np.testing.assert_array_equal(plain, made.images[1])
        drawn = CellMaker(reader, SheetOptions(columns=["boxes", "points"]))[1].image
        values = {name: made.values[1][name] for name in names if name != "mask"}
        expected = draw_values(made.images[1], values, reader.manifest.columns, ["boxes", "points"])
        np.testing.assert_array_equal(drawn, expected)
        boxes = CellMaker(reader, SheetOptions())[1].image
        assert boxes is not None
        np.testing.assert_array_equal(boxes, draw_values(made.images[1], values, reader.manifest.columns, ["boxes"]))
        assert (boxes != plain).any()
        augmented = CellMaker(reader, SheetOptions(columns=["mask", "boxes"], augment="CenterCrop(20)"))[1].image
        assert augmented is not None
        assert augmented.shape == (20, 20, 3)
        with pytest.raises(
            UsageError, match="no column 'label' of masks, boxes, keypoints or lists of images; there are: mask, boxes"
        ):
            CellMaker(reader, SheetOptions(columns=["label"]))


def test_a_pdf_has_a_page_for_twenty_classes(tmp_path: Path) -> None:
    with packstore.Writer(tmp_path / "x.lmdb", {"image": "image", "label": "label"}) as writer:
        for n in range(45):
            writer.add(image=_png(n), label=n, key=str(n))
    assert write_sheet(tmp_path / "x.lmdb", tmp_path / "x.pdf", SheetOptions(side=16)) == 0
    assert len(re.findall(rb"/Type /Page\b", (tmp_path / "x.pdf").read_bytes())) == 3


def _png(seed: int) -> bytes:
    return encode(Image.fromarray(np.full((8, 8, 3), seed, np.uint8)), "PNG")


@pytest.mark.slow
def test_the_command(store: Path, tmp_path: Path) -> None:
    done = run("sheet", store, tmp_path / "x.png", "--split", "val", "--per-class", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path / 'x.png'}: drawn from {store}\n", "")
    assert size_of(tmp_path / "x.png")[0] > 100
    for arguments, message in (
        ([tmp_path / "x.gif"], "a sheet is written as .png or .pdf, got 'x.gif'"),
        ([tmp_path / "none" / "x.png"], "there is no directory"),
        (
            [tmp_path / "x.png", "--columns", "mask"],
            "no column 'mask' of masks, boxes, keypoints or lists of images; there are: none",
        ),
        (
            [tmp_path / "x.png", "--augment", "exit()"],
            "augmentations should be calls of packstore.augment's operations",
        ),
        (["-"], "this terminal shows no images"),
    ):
        done = run("sheet", store, *arguments)
        assert done.returncode == 2
        assert message in done.stderr


@pytest.mark.slow
def test_the_command_draws_boxes_unless_told_not_to(tmp_path: Path) -> None:
    made = make_typed(tmp_path / "x.h5", ["boxes", "labels"], 6)
    sheets = {}
    for name, arguments in (("default", []), ("boxes", ["--columns", "boxes"]), ("none", ["--columns", "none"])):
        done = run("sheet", made.path, tmp_path / f"{name}.png", *arguments)
        assert done.returncode == 0, done.stderr
        sheets[name] = (tmp_path / f"{name}.png").read_bytes()
    assert sheets["default"] == sheets["boxes"] != sheets["none"]


@pytest.mark.slow
def test_a_terminal_that_can_shows_the_sheet(store: Path) -> None:
    master, slave = pty.openpty()
    command = [*COMMAND, "sheet", str(store), "-", "--per-class", "1", "--side", "16"]
    environment = os.environ | {"TERM": "xterm-kitty", "COLUMNS": "80"}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        shown = b""
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0, shown
    os.close(master)
    assert shown.startswith(b"\x1b_Ga=T,f=100")


def test_kittys_protocol() -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 50, 3), np.uint8))
    parts = re.findall(rb"\x1b_G(?:a=T,f=100,)?m=([01]);([^\x1b]*)\x1b\\", encode_kitty(image))
    assert [more for more, _ in parts] == [b"1"] * (len(parts) - 1) + [b"0"]
    assert all(len(data) <= 4096 for _, data in parts)
    shown = Image.open(io.BytesIO(base64.b64decode(b"".join(data for _, data in parts))))
    np.testing.assert_array_equal(np.asarray(shown), np.asarray(image))


def test_sixels() -> None:
    """Decoded as a terminal does."""
    pixels = np.zeros((15, 40, 3), np.uint8)
    pixels[:, :, 0] = np.arange(15)[:, None] // 5 * 100
    pixels[:, :, 1] = np.arange(40)[None] // 10 * 50
    text = encode_sixel(Image.fromarray(pixels)).decode()
    head = re.match(r'\x1bPq"1;1;40;15', text)
    assert head is not None
    body = text[head.end() :].partition("\x1b\\")[0]
    palette: dict[int, list[int]] = {}
    shown = np.full((18, 40, 3), -1)
    top = left = color = 0
    for token in re.findall(r"#\d+;2;\d+;\d+;\d+|#\d+|!\d+.|[$-]|[?-~]", body):
        if token.startswith("#"):
            numbers = [int(n) for n in re.findall(r"\d+", token)]
            color = numbers[0]
            if len(numbers) == 5:
                palette[color] = numbers[2:]
        elif token in "$-":
            left, top = 0, top + (6 if token == "-" else 0)
        else:
            count = int(token[1:-1]) if token.startswith("!") else 1
            for bit in range(6):
                if ord(token[-1]) - 63 >> bit & 1:
                    shown[top + bit, left : left + count] = palette[color]
            left += count
    assert np.abs(shown[:15] * 2.55 - pixels).max() <= 6
    assert (shown[15:] == -1).all()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", None),
        (b"\x1b[?62;22c", None),
        (b"\x1b[?62;4;22c", "sixel"),
        (b"\x1b[?4c", None),
        (b"\x1b_Gi=31;OK\x1b\\\x1b[?62;c", "kitty"),
        (b"\x1b_Gi=31;ENOENT\x1b\\\x1b[?64;1;4c", "sixel"),
    ],
)
def test_what_a_terminal_answers(answer: bytes, expected: str | None) -> None:
    assert parse_graphics(answer) == expected


def test_a_pipe_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KITTY_WINDOW_ID", "1")
    assert terminal_graphics() is None


COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 0, 255))


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records with 0, 2 and 6 further images, each of one colour; the last of none."""
    root = tmp_path_factory.mktemp("lists")
    colours = [encode(Image.new("RGB", (32, 16), colour), "PNG") for colour in COLOURS]
    samples = [{"image": colours[0], "views": colours[:count]} for count in (0, 2, 6)]
    fields = {"image": packstore.Image(), "views": packstore.Images(optional=True)}
    packstore.convert([*samples, {"image": colours[1]}], root / "x.lmdb", fields=fields)
    return root / "x.lmdb"


def test_lists_of_images_are_below_their_image(lists: Path, tmp_path: Path) -> None:
    with packstore.open(lists) as reader:
        cells = CellMaker(reader, SheetOptions())
        found = [cells[record] for record in range(4)]
        assert [(cell.image.shape, cell.more) for cell in found if cell.image is not None] == [
            ((16, 32, 3), 0), ((21, 32, 3), 0), ((21, 35, 3), 2), ((16, 32, 3), 0)
        ]  # fmt: skip
        image = found[2].image
        assert image is not None
        assert [tuple(image[19, left]) for left in (0, 9, 18, 27)] == [*COLOURS[:4]]
        plain = CellMaker(reader, SheetOptions(columns=()))
        assert [plain[record].image.shape for record in range(4)] == [(16, 32, 3)] * 4  # type: ignore[union-attr]
        with pytest.raises(UsageError, match="keypoints or lists of images; there are: views"):
            CellMaker(reader, SheetOptions(columns=("image",)))
    write_sheet(lists, tmp_path / "x.png", SheetOptions(columns=("views",)))


def test_a_damaged_image_of_a_list_is_named(tmp_path: Path) -> None:
    good = encode(Image.new("RGB", (32, 16)), "PNG")
    with packstore.Writer(tmp_path / "x.lmdb", {"image": packstore.Image(), "views": packstore.Images()}) as writer:
        writer.add(image=good, views=[good, good[:42] + b"\xff\xff" + good[44:]])
    with packstore.open(tmp_path / "x.lmdb") as reader:
        cell = CellMaker(reader, SheetOptions())[0]
        assert cell.image is None
        assert "column 'views[1]'" in cell.fault


def has_ink(path: Path) -> bool:
    with Image.open(path) as image:
        return float(np.asarray(image.convert("RGB")).std()) > 1


def test_a_chart_goes_into_a_file_that_can_be_written(tmp_path: Path) -> None:
    packstore.convert(make_folder(tmp_path / "in", per_class=1), tmp_path / "x.lmdb")
    for picture, message in ((tmp_path / "x.txt", "--plot writes .png"), (tmp_path / "no" / "x.png", "no directory")):
        failed = CliRunner().invoke(cli, ["info", str(tmp_path / "x.lmdb"), "--plot", str(picture)])
        assert isinstance(failed.exception, UsageError)
        assert message in str(failed.exception)


@pytest.mark.slow
def test_a_source_has_no_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    make_folder(tmp_path / "in", per_class=1)
    failed = CliRunner().invoke(cli, ["info", str(tmp_path / "in"), "--plot", str(tmp_path / "x.png")])
    assert failed.exit_code == 2
    assert "--plot needs a store, and this is a source" in failed.output


def test_a_chart_takes_at_most_5000_images() -> None:
    from tests.internals import _choose_images

    for count, chosen in ((0, 0), (1, 1), (5000, 5000), (5001, 5000), (9999, 5000), (1_000_000, 5000)):
        numbers = _choose_images(count)
        assert len(set(numbers.tolist())) == chosen
        assert count == 0 or (numbers[0], numbers[-1]) == (0, count - 1)


@pytest.mark.slow
def test_stores_of_many_kinds_have_charts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tests.internals import plot_store

    packstore.convert(make_folder(tmp_path / "in"), tmp_path / "files.lmdb", shard_size=20_000)
    packstore.convert(tmp_path / "in", tmp_path / "pixels.pth", encoding="uint8", size=16)
    fields = {"image": "image", "label": packstore.Label([f"${n}$<b>" for n in range(30)])}
    with packstore.Writer(tmp_path / "many.h5", fields) as writer:
        for number in range(30):
            writer.add(image=jpeg(number), label=number, key=str(number))
    with packstore.Writer(tmp_path / "plain.h5", {"image": "image"}) as writer:
        writer.add(image=jpeg(1), key="1")
    with packstore.Writer(
        tmp_path / "vectors.h5", {"image": "image", "label": packstore.Array("float32", (2,))}
    ) as writer:
        writer.add(image=jpeg(1), key="1", label=[1, 2])
    for name in ("files.lmdb", "pixels.pth", "many.h5", "plain.h5", "vectors.h5"):
        with packstore.open(tmp_path / name) as reader:
            plot_store(reader, tmp_path / "x.png")
            assert has_ink(tmp_path / "x.png")
    for file in files_of(sorted((tmp_path / "files.lmdb").glob("shard-*"))[0]):
        file.unlink()
    with packstore.open(tmp_path / "files.lmdb") as reader:
        plot_store(reader, tmp_path / "x.svg")
    assert "<svg" in (tmp_path / "x.svg").read_text("utf-8")
