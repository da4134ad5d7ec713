"""What the command line says about something that it cannot do, and about the next step."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import platform
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from PIL import Image
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock

import packstore
from packstore.stores import is_store
from tests.internals import ConvertOptions, LocalPath, MessageHandler, UsageError, disk_bytes, shell_quote, url_message
from tests.makers.command import commands, run
from tests.makers.datasets import make_cifar10, pixels, write_image


def proof(stdout: str) -> list[str]:
    assert "prove it with: packstore " in stdout, stdout
    return shlex.split(stdout.partition("prove it with: packstore ")[2])


@pytest.mark.slow
def test_convert_ends_with_the_command_that_proves_it(photos: Path, tmp_path: Path) -> None:
    for number, options in enumerate(([], ["--split", "train"], ["--source", "imagefolder"])):
        out = tmp_path / f"{number}.lmdb"
        command = proof(run("convert", photos, out, *options).stdout)
        assert command[:4] == ["verify", str(out), "--against", str(photos)]
        assert run(*command).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    "name", [b"a\nb.h5", b"it's \\ \x1b[31m\xff.h5", "größe\t1.h5".encode(), b"plain.h5", b"a b'.h5"]
)
def test_a_name_with_any_bytes_is_quoted_for_the_shell(name: bytes) -> None:
    path = Path(os.fsdecode(name))
    shown = shell_quote(path)
    assert "\n" not in shown
    assert "\x1b" not in shown
    read = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True).stdout
    assert read == name
    read = subprocess.run(["bash", "-c", f"LC_ALL=C; printf %s {shown}"], capture_output=True, check=True).stdout
    assert read == name


EVIL = "\x1b[31mEVIL\x9b1m\r\x07.lmdb"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["info", EVIL],
        ["verify", EVIL],
        ["select", "some.lmdb", "--out", EVIL, "--drop", EVIL],
        ["export", "some.lmdb", f"out{EVIL}", "--to", EVIL],
        ["convert", "some.lmdb", f"missing{EVIL}/out.lmdb"],
        ["append", EVIL, "photos"],
        [EVIL],
        ["info", "some.lmdb", f"--{EVIL}"],
    ],
)
def test_names_from_outside_do_not_reach_the_terminal_raw(command: list[str], photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "some.lmdb", split="train")
    (tmp_path / EVIL).mkdir()
    done = run(*command, cwd=tmp_path)
    assert done.returncode in (1, 2), done.stdout
    assert "EVIL" in done.stderr
    assert all(line.isprintable() for line in done.stderr.removesuffix("\n").split("\n"))


def test_errors_of_the_library_escape_names_once(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / EVIL, split="train")
    with packstore.open(tmp_path / EVIL) as reader, pytest.raises(packstore.PackstoreError) as caught:
        reader.ragged_column("label")
    assert rf"{tmp_path}/\x1b[31mEVIL\x9b1m\r\x07.lmdb is not ragged" in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_newline_in_the_destination(photos: Path, tmp_path: Path) -> None:
    done = run("convert", photos, tmp_path / "a\nb.h5")
    assert done.returncode == 0, done.stderr
    command = done.stdout.partition("prove it with: ")[2]
    assert command.count("\n") == 1
    split = f"printf '%s\\0' {command.removeprefix('packstore ')}"
    words = subprocess.run(["bash", "-c", split], capture_output=True, check=True).stdout.split(b"\0")[:-1]
    assert run(*map(os.fsdecode, words)).returncode == 0


@pytest.mark.slow
def test_the_command_names_the_labels(photos: Path, tmp_path: Path) -> None:
    labels = tmp_path / "my labels.csv"
    labels.write_text("file,label\n" + "".join(f"{p.name},a\n" for p in (photos / "train" / "ant").iterdir()))
    command = proof(run("convert", photos / "train" / "ant", tmp_path / "a.h5", "--labels", labels).stdout)
    assert command[-2:] == ["--labels", str(labels)]
    done = run(*command)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "verify --json", "bench", "repair", "salvage"])
def test_a_source_where_a_store_is_expected(photos: Path, tmp_path: Path, command: str) -> None:
    name, *options = command.split()
    options += {"repair": ["--from", "x", "--out", "y.lmdb"], "salvage": ["--out", "y.lmdb"]}.get(name, [])
    done = run(name, photos, *options, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    said, _, then = done.stderr.partition("; pack it first: packstore ")
    assert said == f"packstore: error: {photos} is an image folder"
    assert shlex.split(then) == ["convert", str(photos), "my photos.lmdb"]
    assert run(*shlex.split(then), cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_other_sources_where_a_store_is_expected(photos: Path, tmp_path: Path) -> None:
    make_cifar10(tmp_path)
    said = run("verify", "cifar-10-batches-py", cwd=tmp_path).stderr
    assert "is CIFAR-10 as downloaded; pack it first: packstore convert cifar-10-batches-py" in said
    assert "is a folder of images; pack it first" in run("verify", photos / "train" / "ant").stderr


@pytest.mark.slow
def test_a_damaged_store_is_no_source(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.lmdb")
    (tmp_path / "a.lmdb" / "data.mdb").write_bytes(b"")
    done = run("info", tmp_path / "a.lmdb")
    assert done.returncode == 1
    assert "pack it first" not in done.stderr
    packstore.convert(photos, tmp_path / "a.pth", encoding="original")
    whole = (tmp_path / "a.pth").read_bytes()
    for size in (len(whole) // 2, 0):
        (tmp_path / "a.pth").write_bytes(whole[:size])
        for command in (["verify"], ["verify", "--quick"], ["salvage", "--out", tmp_path / "b.pth"]):
            said = run(command[0], tmp_path / "a.pth", *command[1:]).stderr
            assert "pack it first" not in said
            assert ("salvage may recover" in said) == (command[0] == "verify" and size > 0)


@pytest.mark.slow
@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize(
    "command",
    [
        "convert {photos} a.lmdb --labels s3://bucket/labels.csv",
        "repair {store} --from {photos} --out s3://bucket/b.lmdb",
        "salvage {store} --out s3://bucket/b.lmdb",
        "salvage file:///tmp/a.lmdb --out b.lmdb",
    ],
)
def test_urls_in_commands(photos: Path, tmp_path: Path, command: str) -> None:
    store = tmp_path / "store.h5"
    packstore.convert(photos, store)
    words = [word.format(photos=photos, store=store) for word in command.split()]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    (url,) = [word for word in words if "://" in word]
    assert done.stderr == f"packstore: error: {url} is a URL; give a path on this machine\n"
    assert [p.name for p in tmp_path.iterdir()] == ["store.h5"]


def test_urls_in_python() -> None:
    with pytest.raises(UsageError, match=r"s3://bucket/a\.lmdb is a URL; give a path on this machine"):
        packstore.salvage("s3://bucket/a.lmdb", "b.lmdb")


@pytest.mark.parametrize(
    "command",
    [
        ["convert", "", "a.lmdb"],
        ["convert", "{photos}", ""],
        ["convert", "{photos}", "a.lmdb", "--labels", ""],
        ["verify", ""],
        ["repair", "a.lmdb", "--from", "", "--out", "b.lmdb"],
        ["salvage", "a.lmdb", "--out", ""],
        ["clean", ""],
        ["demo", ""],
    ],
)
def test_an_empty_path_is_not_the_working_directory(photos: Path, tmp_path: Path, command: list[str]) -> None:
    """It is a variable of a shell that is not set."""
    done = run(*(word.format(photos=photos) for word in command), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "it is empty; use . for the working directory" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_path_of_a_command_may_not_be_empty() -> None:
    paths = [p.type for command in commands().values() for p in command.params if isinstance(p.type, click.Path)]
    assert len(paths) > 15
    assert all(isinstance(type, LocalPath) for type in paths)


@pytest.mark.parametrize(
    "call",
    [
        lambda photos: packstore.open(""),
        lambda photos: packstore.PackedDataset(""),
        lambda photos: packstore.convert("", "b.lmdb"),
        lambda photos: packstore.convert(photos, ""),
        lambda photos: packstore.convert(photos, "b.lmdb", labels=""),
        lambda photos: packstore.convert([(b"", 1)], ""),
        lambda photos: packstore.append("", photos),
        lambda photos: packstore.append("a.lmdb", ""),
        lambda photos: packstore.merge(["a.lmdb", ""], "b.lmdb"),
        lambda photos: packstore.merge(["a.lmdb"], ""),
        lambda photos: packstore.select("", "b.lmdb"),
        lambda photos: packstore.verify(""),
        lambda photos: packstore.verify("a.lmdb", against=""),
        lambda photos: packstore.verify("a.lmdb", against=photos, labels=""),
        lambda photos: packstore.repair("", source=photos, destination="b.lmdb"),
        lambda photos: packstore.repair("a.lmdb", source=photos, destination="b.lmdb", labels=""),
        lambda photos: packstore.salvage("a.lmdb", ""),
    ],
)
def test_empty_paths_in_python(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"a path is empty; use \. for the working directory"):
        call(photos)
    assert not is_store("")


def test_what_is_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    assert url_message("C:/images", "a:b", "/s3://x", "images", None, b"\xff:/", "s3://a folder of this name") is None


@pytest.mark.slow
@pytest.mark.parametrize(("text", "expected"), [("2kB", 2000), (" 1 KiB", 1024), ("1.5k", 1500), (2000, 2000)])
def test_shard_sizes_as_the_command_line_takes_them(
    photos: Path, tmp_path: Path, text: int | str, expected: int
) -> None:
    options = ConvertOptions(shard_size=text)
    assert options.shard_bytes == expected
    shards = packstore.convert(photos, tmp_path / "a.h5", shard_size=text).manifest.shards
    assert len(shards) == len(packstore.convert(photos, tmp_path / "b.h5", shard_size=expected).manifest.shards) > 1


@pytest.mark.parametrize(("text", "why"), [("2", "2MB or 2GB"), ("big", "not a size"), ("-1MB", "not a size")])
def test_shard_sizes_that_are_none(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ConvertOptions(shard_size=text)


@pytest.mark.slow
def test_the_versions_are_one_line() -> None:
    done = run("--version")
    torch = version("torch")
    assert done.stdout == f"packstore {packstore.__version__} (Python {platform.python_version()}, torch {torch})\n"
    assert run("-V").stdout == done.stdout
    assert version("packstore") == packstore.__version__


@pytest.mark.slow
def test_floating_point_says_what_uint8_would_save(tmp_path: Path) -> None:
    make_cifar10(tmp_path)
    said = {}
    for encoding in ("float16", "uint8"):
        done = run("convert", "cifar-10-batches-py", f"{encoding}.pth", "--encoding", encoding, cwd=tmp_path)
        said[encoding] = done.stdout
    found = re.search(r"float16 .* (\d+) kB on disk.*--encoding uint8 takes (\d+) kB and is normalised when loading",
                      said["float16"], re.DOTALL)  # fmt: skip
    assert found is not None, said["float16"]
    for name, said_kb in zip(("float16", "uint8"), found.groups(), strict=True):
        assert int(said_kb) == pytest.approx(disk_bytes(tmp_path / f"{name}.pth") / 1000, rel=0.02)
    assert "normalised when loading" not in said["uint8"]
    packed = run("convert", "float16.pth", "again.h5", cwd=tmp_path)
    assert "--encoding uint8" not in packed.stdout


def palette_png(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(20, 20, seed)).quantize(8).save(path)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["original", "uint8"])
def test_a_class_of_palette_png_may_be_masks(tmp_path: Path, encoding: str) -> None:
    for i in range(3):
        palette_png(tmp_path / "set" / "ant" / f"{i}.png", i)
        palette_png(tmp_path / "set" / "bee" / f"{i}.png", i)
        write_image(tmp_path / "set" / "cat" / f"{i}.png", 20, 20, i)
    write_image(tmp_path / "set" / "bee" / "rgb.png", 20, 20, 9)
    classes = {"source_kind": "imagefolder"}
    report = packstore.convert(tmp_path / "set", tmp_path / "a.h5", encoding=encoding, **classes)
    assert report.palette == ("ant",)
    done = run("convert", tmp_path / "set", tmp_path / "b.h5", "--encoding", encoding, "--source", "imagefolder")
    assert "palette  all images of 1 class (ant) are PNG with a palette: are they masks?" in done.stdout
    done = run("convert", tmp_path / "set" / "ant", tmp_path / "c.h5", "--encoding", encoding)
    assert "palette  all images are PNG with a palette: are they masks?" in done.stdout
    assert "PNG with a palette" not in run("convert", tmp_path / "set" / "cat", tmp_path / "d.h5").stdout


def test_indices_of_palette_png_are_read_as_the_guide_says(tmp_path: Path) -> None:
    palette_png(tmp_path / "masks" / "0.png", 1)
    packstore.convert(tmp_path / "masks", tmp_path / "a.lmdb")
    with packstore.open(tmp_path / "a.lmdb") as store:
        read = np.asarray(Image.open(io.BytesIO(store.read(0))))
    assert read.shape == (20, 20)
    assert np.array_equal(read, np.asarray(Image.open(tmp_path / "masks" / "0.png")))


def test_doctor_examines_no_url() -> None:
    said = run("doctor", "s3://bucket/x.lmdb")
    assert said.returncode == 2
    assert "s3://bucket/x.lmdb is a URL; give a path on this machine: doctor examines this machine" in said.stderr


def test_doctor_lists_the_library_for_heic() -> None:
    from tests.internals import LIBRARIES

    (heif,) = [library for library in LIBRARIES if library.module == "pillow_heif"]
    assert not heif.needed
    assert "pip install pillow-heif" in heif.install


@pytest.mark.slow
def test_a_killed_process_keeps_no_lock_of_messages(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A forked process that dies while it holds tqdm's lock, which is shared."""
    monkeypatch.setattr(TqdmDefaultWriteLock, "mp_lock", multiprocessing.RLock(), raising=False)
    monkeypatch.setattr(tqdm, "_lock", TqdmDefaultWriteLock(), raising=False)
    dying = multiprocessing.get_context("fork").Process(target=lambda: (tqdm.get_lock().acquire(), os._exit(0)))
    dying.start()
    dying.join()
    record = logging.makeLogRecord({"msg": "still here", "levelno": logging.WARNING})
    saying = threading.Thread(target=MessageHandler(logging.WARNING).handle, args=(record,), daemon=True)
    saying.start()
    saying.join(30)
    assert not saying.is_alive()
    assert "packstore: still here" in capsys.readouterr().err
