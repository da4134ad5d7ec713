"""The parsers that are ours, as targets of :mod:`tests.makers.fuzzing`, and where their seeds lie.

Another parser is one more :class:`Target` in :data:`TARGETS` and a folder of seeds.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import hashlib
import importlib
import json
import random
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from packstore.images.engine import Requests, get_engine
from packstore.sources import Source, open_source
from packstore.stores import open_store
from tests.internals import FORMAT as VOC
from tests.internals import (
    LAYOUTS,
    TABLE_ROW,
    BatchError,
    BetonSource,
    CaptionsSource,
    Cifar10Source,
    CocoSource,
    DecodeError,
    DicomSource,
    ExportedFiles,
    HeaderError,
    IdxSource,
    LabelledSource,
    LitdataSource,
    Manifest,
    MatSource,
    MdsSource,
    NiftiSource,
    NpzSource,
    PackstoreError,
    PickleError,
    Ragged,
    Reader,
    RecordioSource,
    Sample,
    SampleError,
    ShardTable,
    SourceOptions,
    TableFacts,
    TfdsSource,
    TfrecordSource,
    VocSource,
    WebDatasetSource,
    YoloSource,
    build_array,
    check_header,
    check_offsets,
    coco_masks,
    count_frames,
    declare_columns,
    hash_lookup3,
    image_files,
    is_complete_jpeg,
    load_mat,
    open_image_folder,
    open_tree,
    parse_datum,
    parse_dict,
    parse_exif_orientation,
    read_annotation_orientation,
    read_features,
    read_geotiff,
    read_orientation,
    sniff,
    unpickle,
    without_metadata,
)
from tests.internals import tfrecord_frame_record as frame_record
from tests.makers.fuzzing import Target
from tests.makers.seek_indexes import repaired

CORPUS = Path(__file__).parents[1] / "corpus"
WRITTEN = frozenset(
    {"annotated", "arrayrecord", "arrow", "coco_masks", "exr", "ffcv", "former", "parity", "parquet", "released"}
)
"""Folders beside those of seeds: what libraries wrote, and older versions of packstore (``former``, ``released``)."""
_MAX_RECORDS = 2000
_HF_FILES = ("metadata.csv", "metadata.jsonl", "README.md")
_ODD = (0, -1, 1, 2, 2**31, 2**62, 2**64, 10**10, 10**11, -(2**63), 1.5, 1e308, float("inf"), float("nan"), None, True,
        "", "x", "../x", "/etc/passwd", "\0", "\ud800", "a" * 5000, [], {}, [[[]]], [0], {"a": 1})  # fmt: skip


def seeds(name: str) -> list[bytes]:
    """The corpus of a target, in a fixed order. A compressed shard of WebDataset is the tar file within, since hardly a
    mutation of gzip can be decompressed."""
    found = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    return [gzip.decompress(data) for data in found] if name == "webdataset" else found


@functools.cache
def _scratch() -> Path:
    """A folder for parsers that want a file, in memory where there is such a place."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="packstore-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(clear_scratch)
    return path


def clear_scratch() -> None:
    """Removes that folder; a process that multiprocessing started does not come to it by itself."""
    if _scratch.cache_info().currsize:
        shutil.rmtree(_scratch(), ignore_errors=True)


# --- images -----------------------------------------------------------------------------------------------------------


def _read_all(source: Source) -> None:
    """Surveys a source and reads its samples; some may be bad."""
    with closing(source):
        source.survey()
        for entry in islice(source.entries(), _MAX_RECORDS):
            with suppress(SampleError):
                source.read(entry)


def _file(name: str, make: Callable[[Path, SourceOptions], Source], **options: Any) -> Callable[[bytes], None]:
    """The input is the file of a source."""

    def run(data: bytes) -> None:
        path = _scratch() / name
        path.write_bytes(data)
        _read_all(make(path, SourceOptions(max_pixels=1 << 16, **options)))

    return run


def _sniff(data: bytes) -> None:
    sniff(memoryview(data))
    check_header(data)


def _jpeg(data: bytes) -> None:
    is_complete_jpeg(memoryview(data))
    without_metadata(memoryview(data))


def _orientation(data: bytes) -> None:
    """Of a file, and of EXIF alone, which Pillow reads as we do."""
    assert 1 <= read_orientation(memoryview(data)) <= 8
    assert 1 <= read_annotation_orientation(memoryview(data)) <= 8
    tiff = data[:65000]
    assert read_orientation(jpeg_with_exif(tiff)) == (parse_exif_orientation(b"Exif\0\0" + tiff) or 1)


def jpeg_with_exif(tiff: bytes) -> bytes:
    """The start of a JPEG file with EXIF, up to its scan."""
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(tiff) + 8) + b"Exif\0\0" + tiff + b"\xff\xda\0\2"


@functools.cache
def _indexed_files() -> list[tuple[bytes, Any]]:
    """The files whose indexes are mutated, and their pixels."""
    engine = get_engine()
    files = [(CORPUS / "engine" / name).read_bytes() for name in ("photo", "photo-restarts")]
    return [(data, engine.decode(data, 1 << 22)) for data in files]


def _seek_index(index: bytes) -> None:
    """Whatever the index says, its file is decoded; if its checksum is wrong, as without it."""
    engine = get_engine()
    for data, image in _indexed_files():
        height, width, _ = image.shape
        for top, left, rows, columns in ((0, 0, height, width), (height // 2, width // 3, 20, 30), (9, 0, 1, width)):
            requests, box = Requests([data], indexes=[index]), np.array([(top, left, rows, columns)])
            out = np.empty((1, rows, columns, 3), np.uint8)
            requests.set_outputs(box, box[:, 2:], np.array([(0, 0, rows, columns)]), None, out)
            assert not engine.run(requests, 0, 1, 1 << 22)[0]
            assert engine.unindexed <= bool(index)
            if engine.unindexed or not index:
                assert np.array_equal(out[0], image[top : top + rows, left : left + columns])


def _engine(data: bytes) -> None:
    """Whole, and boxes; resized, mirrored and cut."""
    engine = get_engine()
    requests = Requests([data] * 3)
    height, width = requests.read_sizes()[0].tolist()
    if not 0 < height * width <= 1 << 22:
        return
    engine.decode(data, 1 << 22)
    boxes = np.array([(0, 0, height, width), (height // 2, width // 3, 1, 1), (height // 3, 0, height // 2 + 1, width)])
    windows = np.array([(0, 0, 20, 30), (-3, 2, 20, 30), (2, -40, 20, 30)])
    out = np.empty((3, 20, 30, 3), np.uint8)
    for sizes in (boxes[:, 2:], np.full((3, 2), 25)):
        requests.set_outputs(boxes, sizes, windows, np.array([True, False, True]), out)
        engine.run(requests, 0, 3, 1 << 22)


def _repair_seek_index(index: bytes, rng: random.Random) -> bytes:
    return repaired(index, rng.choice(_indexed_files())[0]) if len(index) > 20 and _indexed_files() else index


def _tiff(data: bytes) -> None:
    """Tags on the ground, description, and the first pages."""
    with suppress(ValueError):
        read_geotiff(data)
    view = memoryview(data)
    info = sniff(view)
    if info.kind == "tiff":
        reader = image_files.open_file(view, 1 << 16)
        image_files.describe_image(view, info)
        reader.read_frame()
        for page in range(1, min(3, count_frames(data, info).total)):
            image_files.describe_image(view, info, page)
            reader.read_frame(page)


# --- sources ----------------------------------------------------------------------------------------------------------


def _pickle(data: bytes) -> None:
    for value in parse_dict(data).values():
        with suppress(ValueError):
            assert build_array(value).dtype.kind in "ui"


def _cifar_directory(layout: int) -> Callable[[bytes], None]:
    """A CIFAR directory of which one batch is the input."""

    def run(data: bytes) -> None:
        chosen = LAYOUTS[layout]
        folder = _scratch() / chosen.directory
        if not folder.exists():
            folder.mkdir()
            for name in chosen.meta:
                (folder / name).write_text("".join(f"name{i}\n" for i in range(100)))
            for _, name in chosen.batches:
                (folder / name).touch()
        (folder / chosen.batches[-1][1]).write_bytes(data)
        _read_all(open_source(folder, kind=chosen.kind))

    return run


def _cifar_archive(data: bytes) -> None:
    """``data`` is a gzip file, or a tar file that is yet to be compressed."""
    path = _scratch() / "cifar-10-binary.tar.gz"
    path.write_bytes(data if data[:2] == b"\x1f\x8b" else gzip.compress(data, 1))
    if Cifar10Source.matches(path):
        _read_all(Cifar10Source(path, SourceOptions()))


def _archive(data: bytes) -> None:
    path = _scratch() / "archive"
    path.write_bytes(data)
    tree = open_tree(path)
    if tree is None:
        return
    with closing(tree):
        for directory, listing in tree.walk("", ()):
            for name, size in zip(listing.images, listing.sizes, strict=True):
                with suppress(SampleError):
                    key = f"{directory}/{name}" if directory else name
                    assert len(tree.read(key, max(size, 0), 0, 1 << 20)) == size


def _mds(data: bytes) -> None:
    """A shard, or what describes it."""
    folder = _scratch() / "mds"
    if not folder.exists():
        folder.mkdir()
        shutil.copy(CORPUS / "mds" / "train-index.json", folder / "index.json")
        for file in (CORPUS / "mds").glob("shard.*"):
            shutil.copy(file, folder)
    name = "index.json" if data.lstrip()[:1] == b"{" else "shard.00001.mds"
    kept = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(kept)] + kept[len(data) :] if name != "index.json" else data)
    try:
        _read_all(MdsSource(folder, SourceOptions(max_pixels=1 << 16)))
    finally:
        (folder / name).write_bytes(kept)


def _litdata(data: bytes) -> None:
    """A chunk, or what describes it."""
    folder = _scratch() / "litdata"
    if not folder.exists():
        shutil.copytree(CORPUS / "litdata", folder)
    name = "index.json" if data.lstrip()[:1] == b"{" else "chunk-0-1.bin"
    (folder / name).write_bytes(data)
    try:
        _read_all(LitdataSource(folder, SourceOptions(max_pixels=1 << 16)))
    finally:
        shutil.copy(CORPUS / "litdata" / name, folder / name)


def _tfds(data: bytes) -> None:
    """A file of records, or what describes them."""
    written, folder = CORPUS / "tfds", _scratch() / "tfds"
    if not folder.exists():
        shutil.copytree(written, folder)
    names = {b"{": ["features.json", "dataset_info.json"]}.get(
        data.lstrip()[:1], ["things-test.tfrecord-00000-of-00001"]
    )
    for name in names:
        (folder / name).write_bytes(data)
        try:
            _read_all(TfdsSource(folder, SourceOptions(max_pixels=1 << 16)))
        finally:
            shutil.copy(written / name, folder / name)


def _repair_json(data: bytes, rng: random.Random) -> bytes:
    """Changes some values of JSON; leaves all else."""
    if data.lstrip()[:1] != b"{":
        return data
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if isinstance(plain, dict):
        _change(plain, rng)
    try:
        return json.dumps(plain).encode()
    except ValueError:  # a value that holds itself
        return data


def _repair_either(data: bytes, rng: random.Random) -> bytes:
    return _repair_json(data, rng) if data.lstrip()[:1] == b"{" else _repair_tfrecord(data, rng)


def _repair_tfrecord(data: bytes, rng: random.Random) -> bytes:
    """The checksums anew, as far as the lengths lead."""
    out, at = bytearray(data), 0
    while at + 16 <= len(out):
        length = int.from_bytes(out[at : at + 8], "little")
        if length > len(out) - at - 16:
            length = rng.randrange(len(out) - at - 15)
        out[at : at + 16 + length] = frame_record(bytes(out[at + 12 : at + 12 + length]))
        at += 16 + length
    return bytes(out)


def _hf_imagefolder(data: bytes) -> None:
    """The name of a file of metadata, or of the card, and what is in it; beside two images."""
    folder = _scratch() / "images"
    for name in ("a/1.png", "b/2.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\x89PNG")
    for name in _HF_FILES:
        (folder / name).unlink(missing_ok=True)
    name, _, content = data.partition(b"\n")
    (folder / next((each for each in _HF_FILES if each.encode() == name), _HF_FILES[0])).write_bytes(content)
    _read_all(open_image_folder(folder, SourceOptions(max_pixels=1 << 16)))


def _hf_features(data: bytes) -> None:
    """The metadata of a schema with columns of all sorts."""
    pa = importlib.import_module("pyarrow")
    row = {
        "image": {"bytes": b"\x89PNG", "path": "a"}, "label": 1, "labels": [1, 2], "grid": [[1, 2], [3, 4]],
        "objects": {"category": [0, 1], "area": [0.5]}, "text": "a", "mask": b"\x89PNG\r\n\x1a\n", "number": 0.5,
    }  # fmt: skip
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)])
    batch = batch.replace_schema_metadata({"huggingface": data})
    columns = declare_columns(batch, read_features(batch.schema), TableFacts(optional=row))
    for column in columns:
        cells = column.cells(batch.column(column.column))
        for number in range(2):
            with suppress(ValueError):
                cells(number)


_BESIDE = {
    "annotations.json": CocoSource,
    "data.yaml": YoloSource,
    "labels/1.txt": YoloSource,
    "Annotations/1.xml": partial(VocSource, format=VOC),
    "ImageSets/Main/train.txt": partial(VocSource, format=VOC),
    "captions.csv": CaptionsSource,
    "captions.jsonl": CaptionsSource,
    "results.csv": CaptionsSource,
    "1.token": CaptionsSource,
}


def _beside(data: bytes) -> None:
    """The name of a file beside an image, and what is in it."""
    name, _, content = data.partition(b"\n")
    chosen = next((each for each in _BESIDE if each.encode() == name), "annotations.json")
    folder = _scratch() / "beside"
    shutil.rmtree(folder, ignore_errors=True)
    image = b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x08\x00\x10\x01\x01\x11\x00\xff\xd9"
    files = {"images/1.jpg": image, "JPEGImages/1.jpg": image, "data.yaml": b"train: images\nnames: [a, b]\n"}
    for file, text in {**files, "Annotations/2.xml": b"", chosen: content}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(text)
    with closing(_BESIDE[chosen](folder, SourceOptions(max_pixels=1 << 16))) as source:
        source.survey()
        for entry in source.entries():
            with suppress(SampleError):
                for segmentation in _segmentations(source.read(entry)):
                    with suppress(ValueError):
                        coco_masks([segmentation], 8, 16)


def _segmentations(sample: Sample) -> list[Any]:
    document = sample.values.get("json")
    annotations = document.get("annotations") if isinstance(document, dict) else None
    return [each.get("segmentation") for each in annotations or ()]


def _idx(data: bytes) -> None:
    """The images of a set, plain or gzip, beside three labels."""
    folder = _scratch() / "MNIST"
    folder.mkdir(exist_ok=True)
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\1\0\0\0\3\1\2\3")
    (folder / "train-images-idx3-ubyte").write_bytes(data)
    _read_all(IdxSource(folder, SourceOptions(max_pixels=1 << 16)))


def _medical(make: type[DicomSource | NiftiSource], name: str, *columns: str) -> Callable[[bytes], None]:
    """A folder of one file, which is read as one of ``columns`` says: which one, its checksum chooses."""

    def run(data: bytes) -> None:
        folder = _scratch() / make.kind
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        chosen = columns[zlib.crc32(data) % len(columns)]
        _read_all(make(folder, SourceOptions(max_pixels=1 << 16, columns=(chosen,))))

    return run


def _labels(data: bytes) -> None:
    path = _scratch() / "labels.csv"
    path.write_bytes(data)
    LabelledSource(path.parent, SourceOptions(labels=path)).close()


# --- stores -----------------------------------------------------------------------------------------------------------


def _manifest(data: bytes) -> None:
    manifest = Manifest.from_json(data)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.dataset_digest


def _shards(data: bytes) -> None:
    """A table whose digest is right, whatever is in it."""
    table = ShardTable(max(len(data) // TABLE_ROW.itemsize, 1), hashlib.sha256(data).hexdigest(), ".h5").parse_rows(
        data
    )
    assert int(table.starts[-1]) == sum(shard.records for shard in table)
    assert ShardTable.from_shards(table[:], ".h5") == table


def _export(data: bytes) -> None:
    """``packstore.json`` on the first line, and the lines of the records, in a folder with two files."""
    folder = _scratch() / "export"
    if not folder.exists():
        (folder / "train").mkdir(parents=True)
        for name in ("train/0.jpg", "train/1.png"):
            (folder / name).write_bytes(b"\x89PNG")
    head, _, lines = data.partition(b"\n")
    (folder / "packstore.json").write_bytes(head)
    (folder / "packstore.rows.jsonl").write_bytes(lines)
    _read_all(ExportedFiles(folder, SourceOptions(max_pixels=1 << 16)))


def _repair_export(data: bytes, rng: random.Random) -> bytes:
    """Changes some values of the export manifest and of a line, and writes the digest of the manifest anew."""
    head, *lines = data.split(b"\n")
    try:
        export_manifest, line = json.loads(head), json.loads(lines[0])
        _change(export_manifest["manifest"], rng)
        if rng.random() < 0.5:
            _change(export_manifest, rng)
            _change(line, rng)
        export_manifest["manifest"] = json.loads(signed(export_manifest["manifest"]))
        return b"\n".join([json.dumps(export_manifest).encode(), json.dumps(line).encode(), *lines[1:]])
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return data


def _repair_manifest(data: bytes, rng: random.Random) -> bytes:
    """Changes some values of the JSON where it still is JSON, and writes its digest anew."""
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(plain, dict):
        return data
    _change(plain, rng)
    return signed(plain)


def _change(plain: dict[str, Any], rng: random.Random) -> None:
    """Exchanges up to two values for odd ones, or for others of the same document."""
    for _ in range(rng.randrange(3)):
        place: Any = plain
        while isinstance(place, (dict, list)) and place:
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.2:
                place[key] = rng.choice(_ODD) if rng.random() < 0.8 else rng.choice(list(plain.values()))
                break
            place = place[key]


def signed(plain: dict[str, Any]) -> bytes:
    """The manifest ``plain`` as its JSON, with the digest that goes with it, whatever it says."""
    plain.pop("digest", None)
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return json.dumps(plain | {"digest": hashlib.sha256(text.encode()).hexdigest()}).encode()
    except (ValueError, RecursionError):
        return b"{}"


def use(reader: Reader) -> None:
    """Everything that can be read, as far as it is not too much."""
    reader.manifest.to_json()
    for problem in reader.check_structure(quick=True):
        assert problem.what
    for name in [c.name for c in reader.manifest.columns]:
        try:
            column = reader.column(name)
            for i in range(min(len(column), 20)):
                bytes(column[i]) if isinstance(column, Ragged) else column[i]
            for i in range(min(len(reader), 20)):
                reader.item(name, i)
        except PackstoreError:
            continue
    for i in range(min(len(reader), _MAX_RECORDS)):
        try:
            bytes(reader.read(i))
            reader.key(i)
            if reader.manifest.image.layout is not None:
                reader.array(i)
        except PackstoreError:
            continue


def _store(name: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        path = _scratch() / name
        file = path
        if name.endswith(".lmdb"):
            path.mkdir(exist_ok=True)
            file = path / "data.mdb"
        file.write_bytes(data)
        with open_store(path) as reader:
            use(reader)

    return run


def _repair_hdf5(data: bytes, rng: random.Random) -> bytes:
    """The checksums of superblock, object headers and heaps anew, as far as their lengths can be told."""
    out = bytearray(data)

    def seal(start: int, end: int) -> None:
        if start < end and end + 4 <= len(out):
            out[end : end + 4] = hash_lookup3(bytes(out[start:end])).to_bytes(4, "little")

    seal(0, 44)
    at = -1
    while (at := out.find(b"OHDR", at + 1)) >= 0 and at + 8 < len(out):
        flags = out[at + 5]
        start = at + 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
        width = 1 << (flags & 3)
        end = start + width + int.from_bytes(out[start : start + width], "little")
        seal(at, end)
        for message in range(start, min(end, len(out) - 20)):
            # A continuation: type 16, 16 bytes.
            if out[message : message + 3] == b"\x10\x10\0":
                begin, size = struct.unpack_from("<QQ", out, message + 4)
                if size >= 4 and begin + size <= len(out):
                    seal(begin, begin + size - 4)
                    seal(at, end)
    for name, size in ((b"FRHP", 142), (b"BTHD", 34)):
        at = -1
        while (at := out.find(name, at + 1)) >= 0:
            seal(at, at + size)
    return bytes(out)


def _offsets(data: bytes) -> None:
    """Offsets of a ragged column over 100 bytes of data."""
    numbers = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
    if len(numbers):
        ragged = Ragged(numbers, np.zeros(100, np.uint8))
        bad = {problem.record for problem in check_offsets("x", ragged)}
        for i in range(len(ragged)):
            try:
                assert len(ragged[i]) == numbers[i + 1] - numbers[i]
            except PackstoreError:
                assert i in bad


def _mat(data: bytes) -> None:
    """Whole, and by its arrays alone."""
    path = _scratch() / "x.mat"
    path.write_bytes(data)
    with suppress(PackstoreError):
        MatSource(path, SourceOptions()).close()
    load_mat("x.mat", data)


TARGETS = (
    Target("sniff", _sniff, (HeaderError,), ("images/sniff.py", "kinds/jpeg.py", "kinds/tiff.py")),
    Target("jpeg", _jpeg, (), ("kinds/jpeg.py",)),
    Target("orientation", _orientation, (), ("orientation.py",)),
    Target(
        "tiff",
        _tiff,
        (DecodeError, HeaderError),
        ("kinds/tiff.py", "images/image_files.py", "sources/geotiff.py"),
    ),
    Target("seek_index", _seek_index, (), ("engine/requests.py", "engine/__init__.py"), _repair_seek_index),
    Target("engine", _engine, (), ("engine/requests.py", "engine/__init__.py")),
    Target("cifar_pickle", _pickle, (BatchError,), ("arrays/pickles.py", "pickle_machine.py")),
    Target("cifar_binary", _cifar_directory(1), (PackstoreError,), ("arrays/published.py",)),
    Target(
        "cifar_archive", _cifar_archive, (PackstoreError,), ("arrays/published.py", "archives/tar.py", "inflating.py")
    ),
    Target(
        "archive",
        _archive,
        (PackstoreError,),
        ("archives/index.py", "archives/tar.py", "archives/zip.py"),
    ),
    Target("webdataset", _file("shard.tar", WebDatasetSource), (PackstoreError,), ("sources/webdataset.py",)),
    Target(
        "tfrecord",
        _file("records.tfrecord", TfrecordSource, named=True),
        (PackstoreError,),
        ("records/wire.py", "records/examples.py", "records/facts.py", "records/tfrecord.py"),
        _repair_tfrecord,
    ),
    Target(
        "beside",
        _beside,
        (PackstoreError,),
        (
            "coco/documents.py",
            "sources/yolo/__init__.py",
            "yolo/layout.py",
            "sources/annotation_formats/voc.py",
            "sources/captions.py",
            "annotation_formats/parsing.py",
            "sources/yamltext.py",
            "training/coco_masks.py",
        ),
        words=(b"\n", b" ", b"0.5", b"1e9", b"-1", b"[", b"{", b'"', b"../", b"nan", b"<object>", b"</object>", b"NaN"),
    ),
    Target("mat", _mat, (PackstoreError,), ("named/mat.py", "arrays/files.py")),
    Target("npz", _file("arrays.npz", NpzSource, named=True), (PackstoreError,), ("arrays/files.py", "inflating.py")),
    Target("recordio", _file("x.rec", RecordioSource, named=True), (PackstoreError,), ("records/recordio.py",)),
    Target(
        "hf_imagefolder",
        _hf_imagefolder,
        (PackstoreError,),
        ("table/reading.py", "huggingface/imagefolder.py", "huggingface/splits.py"),
        None,
        (
            b"file_name",
            b"configs:",
            b"data_files:",
            b"**",
            b"../",
            b"\n",
            b",",
            b'{"',
            b"metadata.jsonl\n",
            b"1",
            b"-1",
        ),
    ),
    Target(
        "hf_features",
        _hf_features,
        (PackstoreError, ValueError),
        ("huggingface/__init__.py", "huggingface/columns.py"),
        _repair_json,
    ),
    Target("beton", _file("x.beton", BetonSource), (PackstoreError,), ("records/beton.py", "records/typed.py")),
    Target(
        "litdata",
        _litdata,
        (PackstoreError,),
        ("records/litdata.py", "records/mds.py", "records/typed.py"),
        _repair_json,
    ),
    Target("mds", _mds, (PackstoreError,), ("records/mds.py", "records/__init__.py", "records/typed.py"), _repair_json),
    Target("tfds", _tfds, (PackstoreError,), ("records/tfds.py", "records/examples.py"), _repair_either),
    Target("idx", _idx, (PackstoreError,), ("arrays/idx.py",)),
    Target(
        "dicom",
        _medical(DicomSource, "x.dcm", "image=stored", "image=window", "image=rescaled"),
        (PackstoreError,),
        ("medical/dicom.py", "medical/dicom_files.py", "medical/scan.py"),
    ),
    Target(
        "nifti",
        _medical(NiftiSource, "x.nii", "image=slices", "image=volumes"),
        (PackstoreError,),
        ("medical/nifti.py",),
    ),
    Target("datum", parse_datum, (ValueError,), ("sources/lmdbs.py", "records/wire.py")),
    Target(
        "labels",
        _labels,
        (PackstoreError,),
        ("sources/flat.py", "table/reading.py"),
        None,
        (b",", b'"', b"\n", b"\r\n", b"train", b"../"),
    ),
    Target("shards", _shards, (PackstoreError,), ("shards.py",)),
    Target("manifest", _manifest, (PackstoreError,), ("manifest.py", "core/columns.py"), _repair_manifest),
    Target(
        "export",
        _export,
        (PackstoreError,),
        ("stores/export_manifest.py", "sources/exported.py"),
        _repair_export,
    ),
    Target("offsets", _offsets, (), ("stores/parts.py",)),
    Target("torch_pickle", unpickle, (PickleError,), ("pth/store.py", "pickle_machine.py")),
    Target("pth", _store("s.pth"), (PackstoreError,), ("pth/zip.py", "pth/store.py")),
    Target("lmdb", _store("s.lmdb"), (PackstoreError,), ("lmdb/pages.py", "lmdb/store.py")),
    Target("hdf5", _store("s.h5"), (PackstoreError,), ("hdf5/file.py", "hdf5/store.py"), _repair_hdf5),
)  # fmt: skip
