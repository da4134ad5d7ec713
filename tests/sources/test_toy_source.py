"""A plug-in: a kind of source that lives in this file alone, by its one line and by an entry point.

It reads a folder of ``LABEL-name.npy`` files, each an uint8 array ``(H, W, 3)``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from packstore.sources import Certainty, Entry, Kind, Source, SourceOptions, Survey, open_source
from packstore.testing import SourceSuite
from tests.internals import (
    SOURCES,
    AmbiguousSourceError,
    Claims,
    Column,
    Progress,
    ProgressCallback,
    SampleError,
    SourceError,
    UsageError,
    max_file_bytes,
    no_progress,
    printable,
    round_up_size,
)

ROOT = Path(__file__).resolve().parents[2]


class NpySource(Source):
    kind = "npy"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        if not path.is_dir():
            raise SourceError(f"{printable(str(path))} is not a folder of .npy files")

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        count = size = key_bytes = 0
        size_counts: Counter[int] = Counter()
        claims = Claims()
        for entry in self.entries(split):
            claims.claim(entry.key)
            count, size = count + 1, size + entry.size_bytes
            key_bytes += len(os.fsencode(entry.key))
            size_counts[round_up_size(entry.size_bytes)] += 1
        if not count:
            raise SourceError(f"{printable(str(self.path))} holds no .npy files")
        progress(Progress("scan", count, count, size))
        columns = (Column("label", "fixed", "int64", type="label"),)
        ledger = self.ledger(claims)
        return Survey({"": count}, columns, "uint8", None, size, size_counts, key_bytes, ledger=ledger)

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        if split is not None:
            raise self.unknown_split_error(split, ())
        return self._entries()

    def _entries(self) -> Iterator[Entry]:
        for name in sorted(os.listdir(self.path)):
            if name.endswith(".npy"):
                found = (self.path / name).stat()
                label = int(name.partition("-")[0])
                yield Entry(name, "", (label,), found.st_size, None, found.st_mtime_ns, found.st_ctime_ns)

    def read(self, entry: Entry) -> NDArray[np.uint8]:
        if entry.size_bytes > max_file_bytes(self.options.max_pixels):
            raise SampleError(entry.key, f"has {entry.size_bytes} bytes, too many for max_pixels")
        try:
            image = np.load(self.path / entry.key, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise SampleError(entry.key, f"cannot be read: {error}") from None
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            raise SampleError(entry.key, f"is {image.dtype} {image.shape}, expected uint8 (H, W, 3)")
        return np.ascontiguousarray(image)


def recognise(path: Path, options: SourceOptions) -> Certainty:
    found = path.is_dir() and any(name.endswith(".npy") for name in os.listdir(path))
    return Certainty.CERTAIN if found else Certainty.NO


KIND = Kind("npy", "a folder of .npy files", recognise, NpySource)


def write(folder: Path, samples: int) -> Path:
    for number in range(samples):
        pixels = np.random.default_rng(number).integers(0, 256, (3 + number % 3, 5, 3), np.uint8)
        name = "\udce9" if number == 1 else f"{number:05}"
        np.save(folder / f"{number % 7}-{name}.npy", pixels)
    return folder


class TestToySource(SourceSuite):
    kind = "npy"
    damages = 0  # what numpy does with damage is not tried here

    @pytest.fixture(autouse=True)
    def registered(self) -> Iterator[None]:
        SOURCES.register("npy", KIND)
        yield
        SOURCES.unregister("npy")

    def make(self, folder: Path, samples: int) -> Path:
        return write(folder, samples)

    def change(self, path: Path) -> None:
        (path / "0-00000.npy").rename(path / "1-00000.npy")

    def spoil(self, path: Path, entry: Entry) -> bool:
        (path / entry.key).write_bytes(b"\x93NUMPY\x01\0 and nothing more")
        return True

    def enlarge(self, path: Path, entry: Entry) -> bool:
        os.truncate(path / entry.key, max_file_bytes(1) + 1)
        return True


def test_it_is_gone_when_it_is_not_plugged_in(tmp_path: Path) -> None:
    write(tmp_path, 6)
    with pytest.raises(UsageError, match=r"unknown kind of source 'npy'; use one of: store, .*flat$"):
        open_source(tmp_path, kind="npy")
    with pytest.raises(AmbiguousSourceError, match="the order of its axes is not clear"):
        open_source(tmp_path)


def plugged_in(folder: Path, *arguments: object, point: str = "npy = tests.sources.test_toy_source:KIND") -> str:
    """What ``packstore ARGUMENTS`` prints where a distribution in ``folder`` has the entry point."""
    information = folder / "toy-1.0.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[packstore.sources]\n{point}\n")
    done = subprocess.run(
        [sys.executable, "-m", "packstore", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_command_line_works_with_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    (tmp_path / "site").mkdir()
    source, store, site = write(tmp_path / "arrays", 20), tmp_path / "toy.lmdb", tmp_path / "site"
    plan = plugged_in(site, "convert", source, store, "--dry-run")
    assert "arrays (npy)" in plan
    assert "20 records (uint8 in LMDB)" in plugged_in(site, "convert", source, store, "--source", "npy")
    verdict = plugged_in(site, "verify", store, "--against", source, "--source", "npy")
    assert "undamaged (20 records" in verdict
    assert "undamaged (20 records" in plugged_in(site, "verify", store, "--against", source)
    facts = json.loads(plugged_in(site, "info", store, "--json"))
    assert facts["origin"]["kind"] == "npy"
    (source / "0-00000.npy").unlink()
    assert "the source does not" in plugged_in(site, "verify", store, "--against", source)
    unknown = plugged_in(site, "convert", source, store, "--source", "nyp")
    assert f"use one of: {', '.join(SOURCES.built_in)}, npy" in unknown


@pytest.mark.slow
def test_a_plug_in_that_does_not_load_is_named_and_harms_no_built_in_kind(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    source = write(tmp_path / "arrays", 6)
    broken = "npy = no_such_module:KIND"
    message = plugged_in(tmp_path, "convert", source, tmp_path / "toy.lmdb", point=broken)
    assert "the plug-in 'npy' of toy (kind of source) does not load: No module named 'no_such_module'" in message
    from tests.makers.datasets import write_image

    write_image(tmp_path / "photos" / "a.png", 9, 9, 1)
    assert "1 record" in plugged_in(tmp_path, "convert", tmp_path / "photos", tmp_path / "a.h5", point=broken)
