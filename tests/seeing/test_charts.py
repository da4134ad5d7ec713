"""Charts of ``info --plot``; that of ``bench`` is beside its tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import packstore
from packstore.cli import cli
from tests.internals import UsageError
from tests.makers.annotated import jpeg
from tests.makers.datasets import make_folder
from tests.makers.stores import files_of


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
