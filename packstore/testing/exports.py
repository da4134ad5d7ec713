"""The contract of an export as tests. Each kind inherits :class:`ExportSuite` and adds tests of its own, above all that
the format's own library reads the export."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from packstore.checking.verification import verify
from packstore.core.errors import CorruptRecordError, DestinationError, SourceError, UsageError
from packstore.core.manifest import Manifest
from packstore.core.progress import Progress
from packstore.core.registry import EXPORTS
from packstore.exports import ExportOptions, run
from packstore.exports.base import Export
from packstore.exports.plan import ExportStaging, plan_export
from packstore.exports.run import ExportReport, export
from packstore.packing.conversion import convert
from packstore.stores import open_store
from packstore.stores.export_manifest import MANIFEST_FILE, ROWS_FILE
from packstore.stores.places.leftovers import find_leftovers, remove_leftover
from packstore.stores.places.work import WorkDirectory, work_path
from packstore.testing.records import KINDS, flip, listing, make_records, open_files, write

FILES: dict[str, dict[str, Any]] = {"original": {}, "jpeg": {"encoding": "jpeg"}}
PIXELS: dict[str, dict[str, Any]] = {
    "uint8": {"encoding": "uint8"},
    "fixed": {"encoding": "uint8", "size": 16},
    "float16": {"encoding": "float16", "size": 16},
    "bfloat16": {"encoding": "bfloat16", "size": 16, "normalize": "cifar10"},
    "float32": {"encoding": "float32", "size": 16, "normalize": "none"},
}
ENCODINGS: dict[str, dict[str, Any]] = {**FILES, **PIXELS}
"""Options of ``convert`` for a store of each encoding."""


NAMES = [
    "a, b", "line\nbreak", "tab\t", " ", "", "..", "../../up", "/abs", "\N{GRINNING FACE} ü", "no", "1", 'a: "b" # c',
    "c" * 400, "Cat", "cat", "\0", "%41", "A", "\u2028", "\udc80 no UTF-8",
]  # fmt: skip
"""Difficult class names."""


class ExportFixtures:
    """Base of the tests of one kind of export.

    Attributes:
        kind: The name of the kind in the registry.
        refuses: Names of :data:`packstore.testing.records.KINDS` with columns that the kind cannot hold.
    """

    kind: ClassVar[str]
    refuses: ClassVar[frozenset[str]] = frozenset()

    @property
    def export_class(self) -> type[Export]:
        """Class of the kind in the registry."""
        kind: type[Export] = EXPORTS[self.kind]
        return kind

    def destination(self, folder: Path, name: str = "out") -> Path:
        """Returns a destination in ``folder``, with the kind's suffix if it has one."""
        suffixes = self.export_class.suffixes
        return folder / f"{name}{suffixes[0] if suffixes else ''}"

    def export(self, store: Path, destination: Path, **options: Any) -> ExportReport:
        """Exports a store to this kind."""
        return export(store, destination, to=self.kind, **options)

    @property
    def stored_encoding(self) -> str:
        """Encoding of stores whose images this kind holds unchanged: ``original``, or ``uint8`` if the kind holds no
        files."""
        return "original" if "files" in self.export_class.image_forms else "uint8"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Makes an image folder of 12 images with two splits of two classes."""
        root = tmp_path / "images"
        for number in range(12):
            split, label = ("train", "val")[number % 3 == 2], ("cat", "dog: big")[number % 2]
            path = root / split / label / f"{number:02}.v{number}.{('jpg', 'png')[number % 5 == 4]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number, 20 + number, 30, "PNG" if path.suffix == ".png" else "JPEG"))
        return root

    @pytest.fixture
    def store(self, folder: Path, tmp_path: Path) -> Path:
        """Makes a store of the image folder whose images this kind holds unchanged."""
        convert(folder, tmp_path / "in.lmdb", encoding=self.stored_encoding)
        return tmp_path / "in.lmdb"

    def import_back(self, path: Path, tmp_path: Path, **options: Any) -> Manifest:
        """Converts an export to a new store in ``tmp_path`` and returns its manifest."""
        number = len(list(tmp_path.glob("again-*")))
        return convert(path, tmp_path / f"again-{number}.h5", **options).manifest


def picture(seed: int, height: int = 20, width: int = 30, kind: str = "JPEG") -> bytes:
    """Returns an image file, a different one for each seed."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).save(out, kind)
    return out.getvalue()


def pixels_of(data: Any) -> Any:
    """Decodes an image file with Pillow to RGB, uint8 ``(H, W, 3)``."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(bytes(data))).convert("RGB"))


def contents(path: Path) -> dict[str, bytes]:
    """Reads a file, or all files in a folder. Returns their bytes by relative path."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def files_of(path: Path) -> list[Path]:
    """Returns a file itself, or all files in a folder, sorted."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


class ExportInterruptsSuite(ExportFixtures):
    """Tests of interrupted runs of one kind of export."""

    @property
    def small_shards(self) -> dict[str, Any]:
        """Options that divide the 12 images into several shards. Empty for a kind without ``shard_size``."""
        sized = self.export_class.shard_bytes is not None and not self.export_class.one_file
        return {"shard_size": 1500} if sized else {}

    def export_and_kill(
        self, at: type[WorkDirectory | ExportStaging], method: str, store: Path, destination: Path, **options: Any
    ) -> str:
        """Exports until a method is called, where the run is killed. Returns the notes of the error."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(at, method, kill)
            with pytest.raises(KeyboardInterrupt) as caught:
                self.export(store, destination, **options)
        return "".join(getattr(caught.value, "__notes__", ()))

    @pytest.mark.slow
    def test_an_interrupted_run_is_gone_on_with(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that is interrupted several times resumes. The export equals the export of a whole run."""
        whole, out = self.destination(tmp_path, "whole"), self.destination(tmp_path)
        options = self.small_shards
        monkeypatch.setattr(run, "_CHUNK_RECORDS", 2)
        self.export(store, whole, **options)
        for stop in (0, 5, 9):
            with pytest.raises(KeyboardInterrupt):
                self.export(store, out, progress=Stop(stop), **options)
            assert not out.exists()
        assert self.export(store, out, **options).resumed > 0
        assert not work_path(out).exists()
        assert contents(out) == contents(whole)

    def test_a_run_that_was_killed_before_publishing_is_gone_on_with(self, store: Path, tmp_path: Path) -> None:
        """A run killed before publishing resumes. The export equals the export of a whole run."""
        whole, out = self.destination(tmp_path, "whole"), self.destination(tmp_path)
        self.export(store, whole)
        for _ in range(2):
            assert "the same command goes on" in self.export_and_kill(ExportStaging, "publish", store, out)
        assert self.export(store, out).resumed > 0
        assert contents(out) == contents(whole)

    def test_a_damaged_receipt_is_not_believed(self, store: Path, tmp_path: Path) -> None:
        """A run does not resume after a shard whose receipt is damaged. The export equals the export of a whole
        run."""
        whole, out = self.destination(tmp_path, "whole"), self.destination(tmp_path)
        self.export(store, whole)
        self.export_and_kill(ExportStaging, "publish", store, out)
        receipt = min(work_path(out).glob("*/parts/*.json"))
        receipt.write_bytes(receipt.read_bytes().replace(b'"records":', b'"records":1', 1))
        assert self.export(store, out).resumed == 0
        assert contents(out) == contents(whole)

    def test_a_run_that_was_killed_after_publishing_is_complete(self, store: Path, tmp_path: Path) -> None:
        """The next run finds the published export, removes the work directory and changes nothing."""
        out = self.destination(tmp_path)
        self.export_and_kill(WorkDirectory, "remove", store, out)
        before = contents(out)
        assert work_path(out).exists()
        report = self.export(store, out)
        assert (report.resumed, report.manifest.records) == (12, 12)
        assert not work_path(out).exists()
        assert contents(out) == before

    def test_a_run_that_was_killed_after_replacing_another_export_is_complete(
        self, store: Path, folder: Path, tmp_path: Path
    ) -> None:
        """The next run keeps the new export, and not the replaced export, which lies in the work directory."""
        out, whole = self.destination(tmp_path), self.destination(tmp_path, "whole")
        self.export(store, whole)
        for number, path in enumerate(sorted(file for file in folder.rglob("*") if file.is_file())):
            path.write_bytes(picture(50 + number, 20, 30, "PNG" if path.suffix == ".png" else "JPEG"))
        convert(folder, tmp_path / "old.lmdb", encoding=self.stored_encoding)
        self.export(tmp_path / "old.lmdb", out)
        self.export_and_kill(WorkDirectory, "remove", store, out, overwrite=True)
        for _ in range(2):
            assert contents(out) == contents(whole)
            assert self.export(store, out, overwrite=True).manifest.records == 12

    def test_a_published_export_that_is_gone_is_made_again(self, store: Path, tmp_path: Path) -> None:
        """The next run exports everything again, if the published export was moved away."""
        out = self.destination(tmp_path)
        self.export_and_kill(WorkDirectory, "remove", store, out)
        out.rename(tmp_path / "elsewhere")
        assert self.export(store, out).resumed == 0
        assert {file.relative_to(out) for file in files_of(out)} == {
            file.relative_to(tmp_path / "elsewhere") for file in files_of(tmp_path / "elsewhere")
        }

    def test_what_an_interrupted_run_leaves_is_cleaned(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``clean`` finds and removes all leftovers of an interrupted run."""
        monkeypatch.setattr(run, "_CHUNK_RECORDS", 2)
        options = self.small_shards
        before = listing(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            self.export(store, self.destination(tmp_path), progress=Stop(9), **options)
        (leftover,) = find_leftovers(tmp_path)
        remove_leftover(leftover)
        assert listing(tmp_path) == before


class Stop:
    """Progress callback that raises :class:`KeyboardInterrupt` as soon as more than ``done`` records are done."""

    def __init__(self, done: int) -> None:
        self.done = done

    def __call__(self, report: Progress) -> None:
        if report.done > self.done:
            raise KeyboardInterrupt


def kill(at: WorkDirectory | ExportStaging, *_: object) -> None:
    """Releases the lock of a work directory and raises :class:`KeyboardInterrupt`. Replaces a method that publishes or
    removes the directory."""
    (at.work if isinstance(at, ExportStaging) else at).release()
    raise KeyboardInterrupt


def _first_fast(names: Iterable[str]) -> list[Any]:
    """Returns the names as test parameters, all but the first marked slow."""
    first, *rest = names
    return [first, *(pytest.param(name, marks=pytest.mark.slow) for name in rest)]


class ExportSuite(ExportInterruptsSuite):
    """Tests of one kind of export. A subclass sets ``kind``, and ``refuses`` if it refuses columns; see
    :class:`packstore.testing.exports.ExportFixtures`."""

    @pytest.mark.parametrize("encoding", _first_fast(ENCODINGS))
    def test_an_import_is_the_same_dataset(self, folder: Path, tmp_path: Path, encoding: str) -> None:
        """Importing an export gives the store's dataset digest, and leaves out no file.

        If the kind cannot hold such images, exporting them is refused. Pixels of 8 bits are then exported as PNG.
        """
        store, out = tmp_path / "in.lmdb", self.destination(tmp_path)
        manifest = convert(folder, store, **ENCODINGS[encoding]).manifest
        held = {"files": manifest.holds_files, "floats": manifest.holds_floats}
        form = next((name for name, its in held.items() if its), "uint8")
        options: dict[str, Any] = {}
        if form not in self.export_class.image_forms:
            with pytest.raises(UsageError, match=r"export to|--encode png"):
                self.export(store, out)
            assert not out.exists()
            if form == "floats":
                with pytest.raises(UsageError, match="needs pixels"):
                    self.export(store, out, encode="png")
                return
            options["encode"] = "png"
        report = self.export(store, out, **options)
        assert report.manifest.dataset_digest == manifest.dataset_digest
        again = self.import_back(out, tmp_path)
        assert again.dataset_digest == manifest.dataset_digest
        assert again.origin.kind == (self.export_class.source)
        assert again.origin.digest == manifest.dataset_digest
        assert again.normalization == manifest.normalization
        assert again.origin.files is not None
        assert again.origin.files.left == 0
        assert verify(store, against=out).problems == ()

    @pytest.mark.parametrize("kind", _first_fast(reversed(KINDS)))
    def test_records_of_every_type_come_back(self, tmp_path: Path, kind: str) -> None:
        """Odd keys, missing values, columns of every type and dtype, and files that are no images come back. Or the
        kind refuses the store."""
        write(tmp_path / "made.lmdb", make_records(kind, count=9))
        manifest = convert(tmp_path / "made.lmdb", tmp_path / "in.lmdb", check="none").manifest
        out = self.destination(tmp_path)
        if kind in self.refuses:
            with pytest.raises(UsageError, match="cannot hold"):
                self.export(tmp_path / "in.lmdb", out)
            return
        form = "files" if manifest.holds_files else "floats" if manifest.holds_floats else "uint8"
        if form not in self.export_class.image_forms:
            if form == "floats":
                return
            self.export(tmp_path / "in.lmdb", out, encode="png")
        else:
            self.export(tmp_path / "in.lmdb", out)
        again = self.import_back(out, tmp_path, check="none")
        assert again.dataset_digest == manifest.dataset_digest
        assert again.skipped == manifest.skipped

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{"shard_size": 3000}, {"split": "val"}], ids=["shards", "one split"])
    def test_other_stores_come_back(self, folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
        """A store of shards, and a store of one split, come back."""
        manifest = convert(folder, tmp_path / "in.lmdb", encoding=self.stored_encoding, **options).manifest
        out = self.destination(tmp_path)
        self.export(tmp_path / "in.lmdb", out)
        assert self.import_back(out, tmp_path).dataset_digest == manifest.dataset_digest

    def test_a_store_without_labels_and_splits_comes_back(self, tmp_path: Path) -> None:
        """Importing the export of a flat folder gives the same dataset digest."""
        (tmp_path / "flat").mkdir()
        for number in range(5):
            (tmp_path / "flat" / f"{number}.jpg").write_bytes(picture(number))
        manifest = convert(tmp_path / "flat", tmp_path / "in.lmdb", encoding=self.stored_encoding).manifest
        out = self.destination(tmp_path)
        self.export(tmp_path / "in.lmdb", out)
        assert self.import_back(out, tmp_path).dataset_digest == manifest.dataset_digest

    def test_classes_of_any_name_and_labels_of_any_size_come_back(self, tmp_path: Path) -> None:
        """Names that cannot be lines, folders or C strings, and labels of the whole range of int64, come back."""
        from packstore import Label, Writer

        fields: dict[str, Any] = {"image": "image", "label": Label(NAMES), "number": Label()}
        form = None if "files" in self.export_class.image_forms else "uint8"
        with Writer(tmp_path / "in.lmdb", fields=fields, encoding=form) as writer:
            for i in range(len(NAMES)):
                number = (-1, 0, 2**53 + 1, -(2**63), 2**63 - 1)[i % 5]
                writer.add(key=f"{i}", image=picture(i), label=i, number=number)
        manifest = writer.report.manifest if writer.report is not None else None
        assert manifest is not None
        out = self.destination(tmp_path)
        self.export(tmp_path / "in.lmdb", out)
        again = self.import_back(out, tmp_path)
        assert again.dataset_digest == manifest.dataset_digest
        assert again.classes == tuple(NAMES)

    def test_one_split_of_an_export(self, store: Path, tmp_path: Path) -> None:
        """Importing one split gives its records in order."""
        out = self.destination(tmp_path)
        self.export(store, out)
        again = self.import_back(out, tmp_path, split="val")
        with open_store(store) as reader, open_store(tmp_path / "again-0.h5") as other:
            split = reader.manifest.split("val")
            assert again.records == len(split)
            assert [other.key(i) for i in range(len(split))] == [reader.key(i) for i in range(split.start, split.stop)]

    @pytest.mark.slow
    def test_jpeg_and_png_are_made_only_when_asked(self, folder: Path, tmp_path: Path) -> None:
        """An import of an export with ``encode`` has files of that format: PNG with the same digest, JPEG with another.
        A kind that holds no files refuses both."""
        store = tmp_path / "in.lmdb"
        digest = convert(folder, store, encoding="uint8").manifest.dataset_digest
        for number, (encode, form) in enumerate({"png": "uint8", "jpeg": "jpeg"}.items()):
            if "files" not in self.export_class.image_forms:
                with pytest.raises(UsageError):
                    self.export(store, self.destination(tmp_path, encode), encode=encode)
                continue
            report = self.export(store, self.destination(tmp_path, encode), encode=encode)
            again = self.import_back(report.destination, tmp_path)
            assert again.encoding == form
            assert again.dataset_digest == report.manifest.dataset_digest
            assert (again.dataset_digest == digest) == (encode == "png"), number

    def test_the_same_store_gives_the_same_bytes(self, store: Path, tmp_path: Path) -> None:
        """Two exports of one store have equal files."""
        exports = []
        for name in ("a", "b"):
            out = self.destination(tmp_path, name)
            self.export(store, out)
            exports.append(contents(out))
        assert exports[0] == exports[1]

    @pytest.mark.slow
    def test_an_existing_destination(self, store: Path, tmp_path: Path) -> None:
        """An existing export is replaced only with ``overwrite``. A folder with a foreign file in it is never
        replaced."""
        out = self.destination(tmp_path)
        self.export(store, out)
        before = listing(tmp_path)
        with pytest.raises(DestinationError, match="--overwrite"):
            self.export(store, out)
        self.export(store, out, overwrite=True)
        assert listing(tmp_path) == before
        if out.is_dir():
            (out / "mine.txt").write_text("mine")
            with pytest.raises(DestinationError, match=r"mine\.txt"):
                self.export(store, out, overwrite=True)
            assert (out / "mine.txt").read_text() == "mine"

    @pytest.mark.parametrize("what", ["folder", "file", "store"])
    def test_what_is_no_export_is_never_replaced(self, store: Path, tmp_path: Path, what: str) -> None:
        """A foreign folder, a foreign file and a store stay unchanged, also with ``overwrite``."""
        out = self.destination(tmp_path)
        if what == "folder":
            out.mkdir()
            (out / "mine.txt").write_text("mine")
        elif what == "file":
            out.write_text("mine")
        else:
            convert(store, out, format="hdf5")
        before = contents(out)
        for overwrite in (False, True):
            with pytest.raises(DestinationError):
                self.export(store, out, overwrite=overwrite)
        assert contents(out) == before

    def test_the_estimate_is_right_within_ten_percent(self, tmp_path: Path) -> None:
        """The estimated size of an export is within 10% of its size on disk."""
        write(tmp_path / "in.lmdb", make_records("ragged", count=100, sizes=[9000 + 500 * (i % 7) for i in range(100)]))
        with ExitStack() as stack:
            out = self.destination(tmp_path)
            plan = plan_export(tmp_path / "in.lmdb", out, ExportOptions(to=self.kind), stack)
            assert plan.estimate_bytes == pytest.approx(run.run_export(plan).disk_bytes, rel=0.1)

    def test_a_damaged_record_ends_it(self, store: Path, tmp_path: Path) -> None:
        """A flipped byte of a record raises :class:`CorruptRecordError` and leaves no export."""
        with open_store(store) as reader:
            image = bytes(reader.read(5))
        data = store / "data.mdb"
        flip(data, data.read_bytes().index(image) + len(image) // 2)
        out = self.destination(tmp_path)
        with pytest.raises(CorruptRecordError):
            self.export(store, out)
        assert not out.exists()

    @pytest.mark.slow
    def test_a_changed_export_is_refused(self, store: Path, tmp_path: Path) -> None:
        """Importing a changed export raises :class:`SourceError`. Changes are a wrong ``packstore.json``, a missing
        record line, and an added image.

        Skipped for an export of one file.
        """
        out = self.destination(tmp_path)
        self.export(store, out)
        if not out.is_dir():
            pytest.skip("it is one file")
        plain = json.loads((out / MANIFEST_FILE).read_text())
        for name, value in {
            "packstore_export": 99,
            "held": 3,
            "manifest": {},
            "shards": [["../x", "train", 1]],
        }.items():
            (out / MANIFEST_FILE).write_text(json.dumps(plain | {name: value}))
            with pytest.raises(SourceError, match=r"packstore\.json"):
                self.import_back(out, tmp_path)
        (out / MANIFEST_FILE).write_text(json.dumps(plain))
        if (out / ROWS_FILE).exists():
            lines = (out / ROWS_FILE).read_bytes().splitlines(keepends=True)
            (out / ROWS_FILE).write_bytes(b"".join(lines[:-1]))
            with pytest.raises(SourceError, match=r"packstore\.json"):
                self.import_back(out, tmp_path)
            (out / ROWS_FILE).write_bytes(b"".join(lines))
        if self.export_class.source == "exported":
            first = next(file for file in files_of(out) if file.suffix in (".jpg", ".png"))
            (first.parent / "mine.png").write_bytes(picture(99, kind="PNG"))
            with pytest.raises(SourceError, match="1 images that"):
                self.import_back(out, tmp_path)

    def test_progress_ends_with_all_records(self, store: Path, tmp_path: Path) -> None:
        """Progress never goes back, and ends with all records."""
        seen: list[Progress] = []
        self.export(store, self.destination(tmp_path), progress=seen.append)
        assert [report.done for report in seen] == sorted(report.done for report in seen)
        assert (seen[-1].done, seen[-1].total) == (12, 12)

    def test_nothing_stays_open(self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An export leaves no open files."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        self.export(store, self.destination(tmp_path))
        assert open_files(tmp_path) == []
