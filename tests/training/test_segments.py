"""Segments in batches: their masks and polygons move with the image, as masks of the whole image would."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import packstore
from packstore import PackedDataset, PackedLoader, augment, coco_masks
from tests.internals import Column, fill_segments, parse_shapes, to_stored
from tests.makers.sanitizers import build_sanitized
from tests.makers.tiers import SEED
from tests.makers.torchvision import import_torchvision
from tests.makers.typed import SHAPES

HEIGHT, WIDTH, COUNT = 48, 64, 6
REACH = 3  # pixels of a result that is enlarged at most twice


def outlines(rng: np.random.Generator) -> list[Any]:
    """Shapes of eight objects: polygons of one to three rings, and run lengths, some beyond the image."""
    shapes: list[Any] = []
    for number in range(8):
        if number % 4 == 3:
            mask = rng.random((HEIGHT, WIDTH)) < 0.3
            flat = mask.T.ravel()
            edges = np.flatnonzero(np.diff(flat, prepend=0))
            counts = np.diff([0, *edges.tolist(), mask.size]).tolist()
            shapes.append({"size": [HEIGHT, WIDTH], "counts": counts})
            continue
        rings = []
        for _ in range(1 + number % 3):
            middle, angles = rng.uniform(0, [WIDTH, HEIGHT]), np.sort(rng.uniform(0, 7, 9))
            ring = middle + rng.uniform(3, 30) * np.stack([np.cos(angles), np.sin(angles)], 1)
            rings.append(np.round(ring, number % 3).ravel().tolist())
        shapes.append(rings)
    return shapes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[NDArray[np.uint8]]]:
    """A store with a column of segments, and one of all their masks; and the masks of each record."""
    path, rng, masks = tmp_path_factory.mktemp("segments") / "a.lmdb", np.random.default_rng(0), []
    fields = {
        "image": packstore.Image("uint8"),
        "shapes": packstore.Segments(),
        "masks": packstore.Array("uint8", spatial="CHW"),
    }
    with packstore.Writer(path, fields) as writer:
        for _ in range(COUNT):
            shapes = outlines(rng)
            masks.append(coco_masks(shapes, HEIGHT, WIDTH))
            image = rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
            writer.add(image=image, shapes=shapes, masks=masks[-1])
    return path, masks


EXACT: dict[str, list[Any]] = {
    "none": [],
    "flip": [augment.RandomHorizontalFlip(0.5)],
    "crop": [augment.RandomCrop(32)],
    "crop and flip": [augment.RandomCrop((20, 40)), augment.RandomHorizontalFlip(0.5)],
    "flip, crop, flip": [
        augment.RandomHorizontalFlip(0.5),
        augment.RandomCrop((20, 40)),
        augment.RandomHorizontalFlip(0.5),
    ],
    "padded": [augment.RandomCrop(64, padding=16)],
    "warped": [augment.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10)],
    "perspective and crop": [augment.RandomPerspective(0.5, 1.0), augment.RandomCrop(32)],
}
RESIZED: dict[str, list[Any]] = {
    "resized crop": [augment.RandomResizedCrop((24, 40), scale=(0.4, 1.0)), augment.RandomHorizontalFlip(0.5)],
    "enlarged": [augment.Resize((96, 128)), augment.RandomCrop(50)],
    "zoomed out": [augment.RandomZoomOut(side_range=(1.0, 2.0), p=1.0), augment.Resize((48, 64))],
}


def load(made: tuple[Path, Any], operations: list[Any], **options: Any) -> Any:
    dataset = PackedDataset(made[0], columns=("image", "shapes", "masks"))
    options = {"seed": 5, "segments": "masks", "collate": {"masks": "list"}} | options
    [batch] = PackedLoader(dataset, COUNT, augment=operations, **options)
    return batch


@pytest.mark.parametrize("name", EXACT)
def test_masks_are_those_of_the_whole_image(made: tuple[Path, Any], name: str) -> None:
    """Filling and moving, in either order, gives the same pixels: of run lengths and of polygons."""
    _, masks, wholes = load(made, EXACT[name])
    for mask, whole in zip(masks, wholes, strict=True):
        assert mask.dtype == torch.bool
        assert torch.equal(mask, whole != 0)
    assert sum(int(mask.sum()) for mask in masks) > 1000


@pytest.mark.parametrize("name", RESIZED)
def test_resized_masks_differ_only_at_outlines(made: tuple[Path, Any], name: str) -> None:
    """Run lengths are exact. A polygon's pixels differ by at most a pixel of the image and one of the result."""
    _, masks, wholes = load(made, RESIZED[name])
    for mask, whole in zip(masks, wholes, strict=True):
        assert torch.equal(mask[3::4], whole[3::4] != 0)
        # An outline may also lie beyond the edge of the result.
        both = torch.nn.functional.pad(torch.stack([whole, 1 - whole]).float(), [REACH] * 4, value=1.0)
        near = torch.nn.functional.max_pool2d(both, 2 * REACH + 1, 1)
        differs = mask != (whole != 0)
        assert not (differs & ~near.all(0)).any()
        assert differs.sum() < 0.15 * mask.numel()


@pytest.mark.parametrize("name", [*EXACT, *RESIZED])
def test_polygons_have_the_areas_of_masks(made: tuple[Path, Any], name: str) -> None:
    """Moved and clipped polygons, filled, are the masks but for corners that clipping rounds to fifths of a pixel."""
    _, masks, _ = load(made, {**EXACT, **RESIZED}[name])
    _, polygons, _ = load(made, {**EXACT, **RESIZED}[name], segments="polygons")
    assert any(any(map(bool, shapes)) for shapes in polygons)
    for mask, shapes in zip(masks, polygons, strict=True):
        height, width = mask.shape[1:]
        filled = coco_masks([[ring for ring in shape if len(ring) >= 6] if isinstance(shape, list) else shape
                             for shape in shapes], height, width)  # fmt: skip
        for number, (one, other) in enumerate(zip(mask, filled, strict=True)):
            differs = (np.asarray(one) != (other != 0)).sum()
            assert differs == 0 if number % 4 == 3 else differs <= 0.05 * other.size
        flat = [n for shape in shapes if isinstance(shape, list) for ring in shape for n in ring]
        assert name == "none" or -1e-6 <= min(flat, default=0) <= max(flat, default=0) <= max(height, width) + 1e-6


def test_padded_masks(made: tuple[Path, Any]) -> None:
    _, masks, _ = load(made, EXACT["crop and flip"])
    _, (values, lengths), _ = load(made, EXACT["crop and flip"], segments="padded")
    assert lengths.tolist() == [8] * COUNT
    assert torch.equal(values, torch.stack(masks))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of files with boxes, labels, and segments in fractions: squares of 8 pixels, and one without a shape."""
    path = tmp_path_factory.mktemp("objects") / "a.h5"
    fields: dict[str, Any] = {
        "image": "image",
        "boxes": "boxes",
        "labels": packstore.Labels(of="boxes"),
        "shapes": packstore.Segments(of="boxes", fractions=True, optional=True),
    }
    with packstore.Writer(path, fields) as writer:
        for number in range(6):
            places = [(0, 0), (8 * number, 8), (40, 32)]
            boxes = [[x, y, x + 8, y + 8] for x, y in places]
            corners = [[x, y, right, y, right, bottom, x, bottom] for x, y, right, bottom in boxes[:2]]
            shapes = [[[n / (64, 48)[i % 2] for i, n in enumerate(ring)]] for ring in corners]
            if number == 5:
                writer.add(image=jpeg(number), boxes=[], labels=[], shapes=None)
            else:
                writer.add(image=jpeg(number), boxes=boxes, labels=[0, 1, 2], shapes=[*shapes, None])
    return path


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), 40 * number, np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("form", ["masks", "polygons"])
def test_objects_go_with_their_boxes(objects: Path, form: Any) -> None:
    """What a crop does not show is dropped from boxes, labels and segments alike; a shape is where its box is."""
    dataset = PackedDataset(objects, columns=("shapes", "image", "labels", "boxes"))
    options: dict[str, Any] = {"augment": [augment.RandomCrop(24)], "segments": form, "collate": {"shapes": "optional"}}
    seen = 0
    for seed in range(12):
        loader = PackedLoader(dataset, 6, seed=seed, **options)
        [(shapes_of_all, _, *others)] = loader
        for shapes, labels, boxes in zip(shapes_of_all, *others, strict=True):
            assert len(labels) == len(boxes)
            if shapes is None:
                continue
            assert len(shapes) == len(boxes)
            for shape, label, box in zip(shapes, labels.tolist(), boxes.tolist(), strict=True):
                if label == 2:
                    assert shape is None if form == "polygons" else not shape.any()
                    continue
                seen += 1
                left, top, right, bottom = box
                if form == "masks":
                    rows, columns = np.nonzero(shape.numpy())
                    assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box
                else:
                    points = np.reshape(shape[0], (-1, 2))
                    assert np.allclose([*points.min(0), *points.max(0)], [left, top, right, bottom], atol=1e-5)
    assert seen > 5


def test_run_lengths_of_another_size_are_errors(tmp_path: Path) -> None:
    with packstore.Writer(tmp_path / "a.lmdb", {"image": "image", "shapes": "segments"}) as writer:
        writer.add(image=jpeg(1), shapes=[{"size": [48, 64], "counts": [48 * 64]}])
        writer.add(image=jpeg(2), shapes=[{"size": [64, 48], "counts": [48 * 64]}])
    dataset = PackedDataset(tmp_path / "a.lmdb", columns=("image", "shapes"))
    with pytest.raises(packstore.StoreError, match=r"record 1 .*\[\[64, 48\]\], do not fill an image of 48 x 64"):
        next(iter(PackedLoader(dataset, 2, segments="masks")))
    loader = PackedLoader(dataset, 2, segments="masks", on_error="skip")
    [(images, masks)] = loader
    assert len(images) == len(masks) == 1
    assert loader.stats()["skipped"] == 1


def test_fractions_with_holes_go_to_coco_as_pixels_do(tmp_path: Path) -> None:
    rings = [[8, 8, 40, 8, 40, 40, 8, 40], [16, 16, 32, 16, 32, 32, 16, 32]]
    written = []
    for fractions in (False, True):
        unit = (64, 48) if fractions else (1, 1)
        shape = {"even_odd": [[n / unit[i % 2] for i, n in enumerate(ring)] for ring in rings]}
        fields: dict[str, Any] = {"image": "image", "boxes": "boxes"}
        fields["shapes"] = packstore.Segments(of="boxes", fractions=fractions)
        with packstore.Writer(tmp_path / f"{fractions}.lmdb", fields) as writer:
            writer.add(image=jpeg(1), boxes=[[8, 8, 40, 40]], shapes=[shape])
        packstore.export(tmp_path / f"{fractions}.lmdb", tmp_path / f"{fractions}", to="coco", bare=True)
        document = json.loads((tmp_path / f"{fractions}/annotations/instances.json").read_text())
        written.append(document["annotations"][0]["segmentation"])
    assert written[0] == written[1]
    assert coco_masks(written[:1], 48, 64).sum() == 32 * 32 - 16 * 16


def test_more_masks_than_memory_are_an_error(tmp_path: Path) -> None:
    with packstore.Writer(tmp_path / "a.lmdb", {"image": "image", "shapes": "segments"}) as writer:
        writer.add(image=jpeg(1), shapes=[None] * 1_500_000)
    dataset = PackedDataset(tmp_path / "a.lmdb", columns=("image", "shapes"))
    with pytest.raises(packstore.StoreError, match="its 1,500,000 masks of 48 x 64 pixels have more than"):
        next(iter(PackedLoader(dataset, 1, segments="masks")))


def test_items_of_torchvision_have_masks(objects: Path) -> None:
    import_torchvision()
    from torchvision import tv_tensors

    dataset = PackedDataset(objects, columns=("image", "shapes"), output="tv_tensors")
    _, masks = dataset[1]
    assert isinstance(masks, tv_tensors.Mask)
    assert (masks.dtype, masks.shape, masks.sum((1, 2)).tolist()) == (torch.uint8, (3, 48, 64), [64, 64, 0])
    assert dataset[5][1] is None


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    program, rng = build_sanitized("segments_fuzz", request), np.random.default_rng(SEED)
    column = Column("shapes", "ragged", "uint8", type="segments", coordinates="pixels")
    for number in range(20):
        rings = [rng.uniform(-9, 60, 2 * rng.integers(1, 9)).round(number % 9).tolist() for _ in range(3)]
        counts = rng.integers(0, 90, 20).tolist()
        run = {"size": [40, 56], "counts": [*counts, 40 * 56 - sum(counts)]}
        shapes = [rings[:2], None, {"even_odd": rings}, run, {"size": [40, 56], "counts": "PY1PP]1PP000"}, []]
        (tmp_path / str(number)).write_bytes(to_stored(column, shapes[: 4 + number % 3 if number % 2 else number % 4]))
    seeds = sorted(tmp_path.iterdir())
    done = subprocess.run([program, "50000", "1", *seeds], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    tried, accepted = map(int, done.stdout.split())
    assert tried == 50_000
    assert tried // 20 < accepted < tried


@pytest.mark.slow
@given(st.sampled_from(SHAPES), st.integers(0, 1 << 16), st.binary(max_size=9), st.integers(0, 1 << 16))
def test_what_is_damaged_is_refused_as_python_refuses_it(value: Any, place: int, written: bytes, end: int) -> None:
    """The engine takes a value exactly if the reader of shapes does, but for run lengths of other sizes."""
    column = Column("shapes", "ragged", "uint8", type="segments", coordinates="pixels")
    damaged = bytearray(to_stored(column, value))
    place %= len(damaged) + 1
    damaged[place : place + len(written)] = written
    raw = bytes(damaged[: end % (len(damaged) + 1)])
    count = column.traits.count_rows(column, raw)
    masks = np.zeros((count, 5, 4), np.uint8)
    taken = fill_segments(raw, np.ones(count, np.bool_), (5, 4), masks)
    try:
        shapes = parse_shapes(column, raw)
    except packstore.StoreError:
        assert not taken
    else:
        assert taken or len(shapes.runs)
