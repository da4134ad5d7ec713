"""The command line as a user meets it: whole processes, what they print and how they exit."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import packstore.cli
from packstore import Manifest
from packstore.cli import cli
from packstore.stores import is_store
from tests.internals import BYTE_SIZE, UsageError, human_bytes, wrap_row
from tests.makers import annotated
from tests.makers.command import COMMAND, commands, run
from tests.makers.datasets import make_folder, pixels, write_image
from tests.makers.images import tiny
from tests.makers.stores import content


@pytest.mark.parametrize("name", commands())
def test_help_fits_a_terminal_of_80_columns(name: str) -> None:
    command = commands()[name]
    context = click.Context(command, info_name=f"packstore {name}", terminal_width=80)
    lines = command.get_help(context).splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert not [line for line in lines if re.search("(INTEGER|FLOAT) RANGE", line)], "give it a metavar"


def test_every_command_has_help_with_examples() -> None:
    for name, command in commands().items():
        text = command.help or ""
        assert "Examples:" in text, name
        assert f"packstore {name}" in text, name
        assert command.short_help
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, (name, parameter.name)


def test_help_of_convert_is_in_groups() -> None:
    command = commands()["convert"]
    text = command.get_help(click.Context(command, terminal_width=80))
    titles = re.findall(r"^([A-Z][^:\n]*):$", text.partition("Examples:")[2], re.MULTILINE)
    assert titles == ["Images", "Channels, depth and frames", "Source", "Store", "Run"]
    for option in (option for each in command.params for option in each.opts if option.startswith("--")):
        assert len(re.findall(rf"^  (?:-\w, )?{option}\b(?!-)", text, re.MULTILINE)) == 1, option


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--version"], ["info", "no\\nwhere"], ["convert"], ["convert", "-q", ".", "a.h5"]]
)
def test_the_fork_that_tests_use_does_what_the_command_does(arguments: list[str], tmp_path: Path) -> None:
    write_image(tmp_path / "forked" / "ant" / "0.png", 9, 9, 1)
    shutil.copytree(tmp_path / "forked", tmp_path / "begun")
    forked = run(*arguments, cwd=tmp_path / "forked")
    process = subprocess.run(
        [*COMMAND, *arguments], cwd=tmp_path / "begun", capture_output=True, text=True, check=False
    )
    assert content(tmp_path / "forked") == content(tmp_path / "begun")
    found, expected = ((done.returncode, done.stdout, done.stderr) for done in (forked, process))
    assert found == expected


@pytest.mark.slow
def test_convert_verify_info(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.lmdb"
    done = run("convert", photos, out)
    assert done.returncode == 0, done.stderr
    assert "24 records" in done.stdout
    assert "train 12, val 12" in done.stdout
    assert done.stderr == ""
    done = run("verify", out, "--decode", "--against", photos)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "undamaged" in done.stdout
    done = run("info", out)
    assert done.returncode == 0
    for part in ("LMDB", "original", "ant, bee, cat", "train", "photos", packstore.__version__):
        assert part in done.stdout
    facts = json.loads(run("info", out, "--json").stdout)
    assert facts["records"] == 24
    assert facts["class_counts"] == {"ant": 8, "bee": 8, "cat": 8}
    assert json.loads(run("verify", out, "--json").stdout)["ok"] is True


@pytest.mark.slow
def test_quiet_says_nothing(photos: Path, tmp_path: Path) -> None:
    done = run("convert", "-q", photos, tmp_path / "a.h5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run("verify", "-q", tmp_path / "a.h5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_dry_run_tells_the_plan_and_writes_nothing(photos: Path, tmp_path: Path) -> None:
    done = run("convert", photos, tmp_path / "a.lmdb", "--dry-run", "--encoding", "float16", "--size", "32x48")
    assert done.returncode == 0, done.stderr
    for part in ("24", "train", "val", "3 (ant, bee, cat)", "3 x 32 x 48 (CHW)", "estimate", "nothing was written"):
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []
    pixels = run("convert", photos, tmp_path / "a.h5", "--dry-run", "--encoding", "uint8", "--size", "32x48")
    assert "uint8, 32 x 48 x 3 (HWC)" in pixels.stdout


@pytest.mark.slow
def test_a_common_shape_is_said(tmp_path: Path) -> None:
    from PIL import Image

    for folder, heights in {"same": (32, 32), "other": (32, 48)}.items():
        (tmp_path / folder / "ant").mkdir(parents=True)
        for height, name in zip(heights, "ab", strict=True):
            Image.new("RGB", (32, height)).save(tmp_path / folder / "ant" / f"{name}.png")
    said = "every image is 32 x 32: --size 32 stores them as one array"
    for folder, options in (("same", []), ("same", ["--size", "32"]), ("other", [])):
        done = run("convert", tmp_path / folder, tmp_path / "a.h5", "--encoding", "uint8", "--overwrite", *options)
        assert done.returncode == 0, done.stderr
        assert (said in done.stdout) is (folder == "same" and not options)


@pytest.mark.slow
def test_skipped_files_are_listed_and_the_exit_code_is_3(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", splits=())
    (tmp_path / "photos" / "bee" / "\x1b[31mred\n.jpg").write_bytes(b"")
    (tmp_path / "photos" / "bee" / "Thumbs.db").write_bytes(b"x")
    done = run("convert", tmp_path / "photos", tmp_path / "a.lmdb", "--on-error", "skip")
    assert done.returncode == 3
    assert r"bee/\x1b[31mred\n.jpg: is empty" in done.stdout
    assert "\x1b" not in done.stdout
    assert "13 images packed, except those of 1 skipped sample" in done.stdout
    assert "1 left out: bee/Thumbs.db" in done.stdout
    assert "skipped" in run("info", tmp_path / "a.lmdb").stdout
    done = run("verify", tmp_path / "a.lmdb", "--against", tmp_path / "photos")
    assert done.returncode == 0, done.stdout
    assert "skipped" in done.stdout


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert re.fullmatch(r"packstore: error: .+\n", done.stderr), done.stderr
    return done.stderr


@pytest.mark.slow
def test_errors_are_one_line_with_the_right_exit_code(photos: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    out = tmp_path / "a.lmdb"
    assert "nowhere" in one_line(run("convert", tmp_path / "nowhere", out), 2)
    assert ".tar" in one_line(run("convert", photos, tmp_path / "a.tar"), 2)
    assert "no images" in one_line(run("convert", empty, out), 1)
    assert "one lies in the other" in one_line(run("convert", photos, photos / "a.lmdb"), 1)
    assert "--size" in one_line(run("convert", photos, tmp_path / "a.pth"), 2)
    for command in ("verify", "info", "bench"):
        assert "a.lmdb" in one_line(run(command, out), 2)
    assert "a.lmdb" in one_line(run("verify", out, "--json"), 2)
    assert "nowhere" in one_line(run("verify", out, "--against", tmp_path / "nowhere"), 2)
    assert "empty" in one_line(run("info", empty), 1)
    (tmp_path / "hole" / "ant").mkdir(parents=True)
    (tmp_path / "hole" / "bee").mkdir()
    write_image(tmp_path / "hole" / "ant" / "a.png", 5, 5, 1)
    assert "bee" in run("convert", tmp_path / "hole", out).stderr
    assert run("convert", photos, out).returncode == 0
    assert "--overwrite" in one_line(run("convert", photos, out), 1)
    assert run("convert", photos, out, "--overwrite").returncode == 0
    for bad in (["convert"], ["convert", photos], ["verify"], ["nothing"], ["convert", photos, out, "--size", "big"]):
        done = run(*bad)
        assert done.returncode == 2
        assert "Usage:" in done.stderr


@pytest.mark.slow
def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    for place in (["--debug", "info", tmp_path / "no"], ["info", tmp_path / "no", "--debug"]):
        done = run(*place)
        assert done.returncode == 2
        assert "Traceback" in done.stderr


@pytest.mark.slow
def test_verify_exits_1_and_names_the_damage(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.h5"
    packstore.convert(photos, out)
    with packstore.open(out) as store:
        data, key = bytes(store.read(7)), store.key(7)
    content = bytearray(out.read_bytes())
    content[content.find(data) + 20] ^= 1
    out.write_bytes(content)
    done = run("verify", out)
    assert done.returncode == 1
    assert f"record 7 ({key})" in done.stdout
    assert "DAMAGED" in done.stdout
    facts = json.loads(run("verify", out, "--json").stdout)
    assert facts["problems"][0]["record"] == 7
    problem, verdict = run("verify", "-q", out).stdout.splitlines()
    assert problem.startswith("problem  record 7 ")
    assert "DAMAGED" in verdict


@pytest.mark.slow
def test_demo_makes_a_folder_that_packs(tmp_path: Path) -> None:
    assert run("demo", cwd=tmp_path).returncode == 0
    assert run("convert", "packstore-demo", "demo.lmdb", cwd=tmp_path).returncode == 0
    done = run("verify", "demo.lmdb", "--decode", "--against", "packstore-demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "packstore-demo" in one_line(run("demo", cwd=tmp_path), 1)


def large_folder(root: Path, files: int) -> Path:
    write_image(root / "ant" / "0.png", 300, 300, 1)
    for i in range(1, files):
        os.link(root / "ant" / "0.png", root / "ant" / f"{i}.png")
    return root


@pytest.mark.slow
@pytest.mark.sampled(1, per="number")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("shards", [[], ["--shard-size", "1MB"]])
def test_an_interrupted_conversion_leaves_nothing_that_opens(
    tmp_path: Path, number: signal.Signals, code: int, shards: list[str], rng: random.Random
) -> None:
    root = large_folder(tmp_path / "photos", 40)
    options = ["--encoding", "uint8", *shards]
    done = run("convert", root, tmp_path / "a.h5", *options, stop=(number, "pack", rng.randrange(41)))
    assert done.returncode == code, done.stderr
    said, kept, _ = done.stderr.partition("; what is done so far is kept in ")
    assert said.rstrip("\n") in ("packstore: interrupted", "packstore: terminated")
    # A work directory stays where a receipt was written (after two seconds), and when the signal came in the moment in
    # which it was made: the next run takes it up, and nothing in it opens.
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [".a.h5.packstore", "photos"] if kept else names in (["photos"], [".a.h5.packstore", "photos"])
    assert not any(is_store(path) for path in tmp_path.iterdir())


def test_a_signal_while_a_class_is_made_ends_as_any_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        try:
            raise packstore.cli._SignalError(signal.SIGTERM)
        except BaseException as stopped:
            raise RuntimeError("Error calling __set_name__") from stopped  # as Python 3.11 does

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # put back afterwards
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    monkeypatch.setattr(cli, "main", stop)
    with pytest.raises(SystemExit) as ended:
        packstore.cli.main(["info"])
    assert (ended.value.code, capsys.readouterr().err) == (143, "packstore: terminated\n")


@pytest.mark.slow
def test_a_signal_in_a_callback_that_swallows_exceptions_ends_as_any_other() -> None:
    code = """
import signal, sys, time, types, weakref, packstore.cli
def stop(*_, **__):
    some = set()
    sys.modules["packstore.objects"] = types.ModuleType("packstore.objects")  # as while it is being imported
    watched = weakref.ref(some, lambda _: signal.raise_signal(signal.SIGTERM))
    del some
    time.sleep(60)
packstore.cli.cli.main = stop
packstore.cli.main(["info"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (143, "packstore: terminated\n")


@pytest.mark.slow
def test_the_bar_shows_images_bytes_and_time_left_in_a_terminal(tmp_path: Path) -> None:
    root = large_folder(tmp_path / "photos", 300)
    master, slave = pty.openpty()
    command = [*COMMAND, "convert", str(root), str(tmp_path / "a.h5"), "--encoding", "jpeg"]
    process = subprocess.Popen(command, stderr=slave, stdout=subprocess.DEVNULL)
    os.close(slave)
    shown = b""
    while True:
        ready, _, _ = select.select([master], [], [], 60)
        try:
            chunk = os.read(master, 65536) if ready else b""
        except OSError:  # Linux says EIO when the other side has closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(master)
    assert process.wait(timeout=120) == 0
    text = shown.decode()
    assert "pack" in text
    assert "/300" in text
    assert "images/s" in text
    assert "MB/s" in text


@pytest.mark.parametrize(
    ("start", "text", "lines"),
    [
        ("digest  ", "0" * 40, ["digest  " + "0" * 40]),
        ("classes  ", "3: ants, bees, wasps and more", ["classes  3: ants, bees, wasps", "         and more"]),
        ("    ", "a b.jpg: is empty and no image at all", ["    a b.jpg: is empty and no", "    image at all"]),
        ("column key  ", "uint8, ragged: 24 kB, 40 B", ["column key  uint8, ragged: 24", "            kB, 40 B"]),
        (
            "  \x1b[33mskipped\x1b[0m  ",
            "3 files of 12 in all",
            ["  \x1b[33mskipped\x1b[0m  3 files of 12 in", "           all"],
        ),
        ("  bytes    ", "two  blanks", ["  bytes    two  blanks"]),
        ("", "", [""]),
    ],
)
def test_a_long_row_continues_below_its_text(start: str, text: str, lines: list[str]) -> None:
    assert wrap_row(start, text, 30) == lines


def test_summaries_fit_the_terminal_and_stay_lines_elsewhere(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")
    path = tmp_path / "a.lmdb"
    packstore.convert(photos, path, exif_transpose=True)

    def told() -> list[str]:
        cli.main(["info", str(path)], prog_name="packstore", standalone_mode=False)
        return capsys.readouterr().out.splitlines()

    whole = told()
    assert max(map(len, whole)) > 80
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = told()
    assert max(len(line) for line in lines if not line.startswith(("path", "digest"))) <= 50
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(whole).split())


@pytest.mark.slow
def test_output_into_a_closed_pipe_is_no_drama(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.lmdb")
    shell = f"{sys.executable} -m packstore info {tmp_path / 'a.lmdb'} --json | head -n 1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1GiB", 2**30), ("500MB", 500 * 10**6), ("1.5k", 1500), ("4096", 4096), ("2 TiB", 2**41), ("10b", 10)],
)
def test_sizes_as_people_write_them(text: str, expected: int) -> None:
    assert BYTE_SIZE.convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234567, "1.23 MB"), (999_600, "1 MB"), (10**13, "10 TB")],
)
def test_sizes_as_people_read_them(number: int, expected: str) -> None:
    assert human_bytes(number) == expected


@pytest.mark.slow
def test_a_bad_file_is_named_with_its_path_and_a_way_on(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", splits=())
    (tmp_path / "photos" / "bee" / "bad.jpg").write_bytes(b"no image")
    message = one_line(run("convert", tmp_path / "photos", tmp_path / "a.lmdb"), 1)
    assert f"{tmp_path}/photos/bee/bad.jpg: " in message
    assert "--on-error skip" in message


@pytest.mark.slow
def test_what_is_no_store_is_not_sent_to_salvage(tmp_path: Path) -> None:
    for name, hinted in (("notes.md", False), ("cut.h5", True)):
        (tmp_path / name).write_bytes(b"not a store")
        done = run("verify", tmp_path / name)
        assert done.returncode == 1
        assert ("packstore salvage" in done.stderr) == hinted, done.stderr


def test_a_size_without_a_unit_is_a_slip(photos: Path, tmp_path: Path) -> None:
    done = run("convert", photos, tmp_path / "a.lmdb", "--shard-size", 12)
    assert done.returncode == 2
    assert "12MB or 12GB" in done.stderr
    assert not (tmp_path / "a.lmdb").exists()


@pytest.mark.slow
def test_the_summary_says_that_there_are_no_labels(photos: Path, tmp_path: Path) -> None:
    done = run("convert", photos / "train" / "ant", tmp_path / "a.lmdb")
    assert "labels   none" in done.stdout, done.stdout + done.stderr
    assert "labels" not in run("convert", photos, tmp_path / "b.lmdb").stdout


@pytest.mark.slow
def test_boxes_and_their_classes_are_told(tmp_path: Path) -> None:
    source = annotated.coco(tmp_path / "coco")
    said = run("convert", source, tmp_path / "a.lmdb").stdout
    assert "  boxes    boxes: left, top, right, bottom in pixels" in said
    assert "  labels   labels: classes " in said
    assert "labels   none" not in said
    for said in (run("info", tmp_path / "a.lmdb").stdout, run("convert", source, tmp_path / "b.lmdb", "-n").stdout):
        assert "JSON" in said
        assert "_valid" not in said
        assert "uint8, ragged" not in said


@pytest.mark.slow
def test_json_also_of_what_does_not_open(tmp_path: Path) -> None:
    done = run("verify", tmp_path, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert str(tmp_path) in report["problems"][0]["what"]


@pytest.mark.slow
def test_labels_without_a_source_are_a_mistake(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.h5")
    assert run("verify", tmp_path / "a.h5", "--labels", tmp_path / "labels.csv").returncode == 2


@pytest.mark.slow
def test_labels_that_verify_has_not_been_told_of(tmp_path: Path) -> None:
    write_image(tmp_path / "photos" / "a.png", 9, 9, 1)
    csv = tmp_path / "labels.csv"
    csv.write_text("file,label\na.png,0\n")
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb", labels=csv)
    done = run("verify", tmp_path / "a.lmdb", "--against", tmp_path / "photos")
    assert done.returncode == 1
    assert "--labels CSV" in done.stdout
    assert "repair" not in done.stdout  # nothing is damaged
    assert run("verify", tmp_path / "a.lmdb", "--against", tmp_path / "photos", "--labels", csv).returncode == 0


@pytest.mark.slow
def test_a_whole_store_that_is_not_of_the_source(tmp_path: Path) -> None:
    for i in range(2):
        write_image(tmp_path / "photos" / "a" / f"{i}.png", 9, 9, i)
    packstore.convert(tmp_path / "photos", tmp_path / "a.lmdb")
    write_image(tmp_path / "photos" / "a" / "new.png", 9, 9, 5)
    done = run("verify", tmp_path / "a.lmdb", "--against", tmp_path / "photos")
    assert done.returncode == 1
    assert "the source has a/new.png" in done.stdout
    assert "undamaged" in done.stdout
    assert "DAMAGED" not in done.stdout
    assert "repair" not in done.stdout
    report = json.loads(run("verify", tmp_path / "a.lmdb", "--against", tmp_path / "photos", "--json").stdout)
    assert (report["problem_count"], report["differences"]) == (2, 2)


@pytest.mark.slow
def test_of_another_dataset_a_few_differences_are_enough(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for i in range(9):
            write_image(tmp_path / name / "x" / f"{i}.png", 9, 9, i + 20 * (name == "b"))
    packstore.convert(tmp_path / "a", tmp_path / "a.lmdb")
    done = run("verify", tmp_path / "a.lmdb", "--against", tmp_path / "b")
    assert done.returncode == 1
    assert done.stdout.count("problem  record") == 5
    assert "problem  … and 4 more" in done.stdout
    assert "every record differs" in done.stdout
    # Not so of one that holds all of its records, and more.
    for i in range(9, 30):
        write_image(tmp_path / "a" / "x" / f"{i}.png", 9, 9, i)
    done = run("verify", tmp_path / "a.lmdb", "--against", tmp_path / "a")
    assert done.stdout.count("problem  the source has x/") == 21
    assert "every record differs" not in done.stdout


@pytest.mark.slow
def test_commands_that_are_shown_can_be_pasted(tmp_path: Path) -> None:
    """Also where a path has a space: the shell gets from the printed line what it needs."""
    done = run("demo", "my demo", cwd=tmp_path)
    command = shlex.split(done.stdout.partition("now try: packstore ")[2])
    assert command == ["convert", "my demo", "demo.lmdb"]
    packed = run(*command[:2], "my store.h5", cwd=tmp_path)
    assert shlex.split(packed.stdout.partition("prove it with: packstore ")[2]) == [
        *("verify", "my store.h5", "--against", "my demo")
    ]


@pytest.mark.slow
def test_what_arguments_name_and_is_not_there_is_wrong_usage(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.lmdb"
    assert "no split 'nope'" in one_line(run("convert", photos, out, "--split", "nope"), 2)
    assert "no such file" in one_line(run("convert", photos, out, "--labels", tmp_path / "no.csv"), 2)
    repaired = run("repair", out, "--from", photos, "--out", tmp_path / "b.lmdb")
    assert "does not exist" in one_line(repaired, 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_labels_that_are_numbers_are_told(photos: Path, tmp_path: Path) -> None:
    files = sorted((photos / "train" / "ant").iterdir())
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{f.name},{i}\n" for i, f in enumerate(files)))
    done = run("convert", photos / "train" / "ant", tmp_path / "a.lmdb", "--labels", tmp_path / "labels.csv")
    assert "labels   numbers, without class names" in done.stdout
    (tmp_path / "labels.csv").write_text("file;label\n")
    done = run("convert", photos / "train" / "ant", tmp_path / "b.lmdb", "--labels", tmp_path / "labels.csv")
    assert "expected file,label or file,label,split, with commas" in done.stderr


@pytest.mark.slow
def test_clean_of_what_never_was(tmp_path: Path) -> None:
    for place in (tmp_path / "missing", tmp_path / "missing.lmdb"):
        done = run("clean", place)
        assert done.returncode == 2
        assert place.name in done.stderr
    assert run("clean", tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
def test_closed_standard_streams_do_no_harm(tmp_path: Path, closed: str, suffix: str) -> None:
    """A C library that prints to a closed standard error must not print into the store."""
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for i in range(6):
        path = tmp_path / "photos" / f"{i}.tif"
        Image.fromarray(pixels(30, 30, i)).save(path, compression="tiff_deflate")
        data = bytearray(path.read_bytes())
        if i % 2:
            data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    out = tmp_path / f"a.{suffix}"
    command = (
        f"{sys.executable} -m packstore convert {tmp_path}/photos {out} --encoding uint8 --size 16 --on-error skip"
    )
    done = subprocess.run(f"{command} {closed}", shell=True, check=False)
    assert done.returncode in (0, 3)
    assert packstore.verify(out).ok


@pytest.mark.slow
def test_a_store_may_lie_about_its_labels(tmp_path: Path) -> None:
    from packstore.stores import StoreBuilder
    from tests.internals import Column, Origin

    columns = (
        Column("image", "ragged", "uint8", type="image"),
        Column("label", "fixed", "int64", classes=("a", "b"), type="label"),
        Column("key", "ragged", "uint8", type="text"),
        Column("checksum", "fixed", "uint64"),
    )
    with StoreBuilder(
        tmp_path / "a.h5", Manifest("hdf5", "original", 0, tuple(columns), Origin("flat", "\x1b[31mevil\x1b[0m"))
    ) as builder:
        builder.append([b"x"] * 4, {"label": [0, 0, 1, 1], "key": ["1", "2", "3", "4"]}, "")
        builder.commit()
    import h5py

    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["label"][0], file["label"][2] = -5, 2**40
    done = run("info", tmp_path / "a.h5")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert not packstore.verify(tmp_path / "a.h5").ok
    assert json.loads(run("info", tmp_path / "a.h5", "--json").stdout)["class_counts"] == {"a": 1, "b": 1}


@pytest.mark.slow
def test_what_the_library_logs_is_a_line_of_its_own() -> None:
    code = (
        "import logging\nfrom packstore.cli.common import progress_bar\nwith progress_bar(False): pass\n"
        "logging.getLogger('packstore.packing.run').warning('starting %s', 'a\\x1bfresh')\n"
        "logging.getLogger('packstore.packing.run').info('not shown')\n"
        "from packstore.core.progress import Progress, progress_callback\n"
        "import os; os.get_terminal_size = lambda _: os.terminal_size((80, 24))\n"
        "with progress_callback(True) as report:\n"
        "    report(Progress('scan', 1, 2, 0))\n"
        "    logging.getLogger('packstore.packing.run').warning('again')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, rest = done.stderr.split("\n", 1)
    assert first == "packstore: starting a\\x1bfresh"
    assert "\npackstore: again\n" in rest  # where the bar stood
    assert "not shown" not in done.stderr


@pytest.mark.slow
def test_labels_that_are_lists_or_text_are_no_class_numbers(tmp_path: Path) -> None:
    """Info and audit take them as they are, and drawing by class is refused in one line."""
    kinds: dict[str, tuple[object, list[object]]] = {
        "lists": (packstore.Labels(("x", "y", "z"), of=False), [["x"], ["y", "z"], []]),
        "text": ("text", ["a", "b", "a"]),
    }
    for kind, (field, values) in kinds.items():
        store = tmp_path / f"{kind}.lmdb"
        with packstore.Writer(store, {"image": "image", "label": field}) as writer:
            for n, value in enumerate(values):
                writer.add(image=tiny(n), label=value, key=str(n))
        for name in ("targets", "samples"):
            with pytest.raises(UsageError, match="'label' is not one class a record"):
                getattr(packstore.PackedDataset(store), name)
        info = run("info", store)
        assert info.returncode == 0, info.stderr
        assert ("not counted" in info.stdout) == (kind == "lists")
        counts = json.loads(run("info", store, "--json").stdout)["class_counts"]
        assert counts is None
        audit = run("audit", store)
        assert "error" not in audit.stderr, audit.stderr
        assert "has no record" not in audit.stdout
        chosen = run("select", store, "-o", tmp_path / "some.lmdb", "--per-class", "1")
        assert chosen.returncode == 2
        assert "not one class a record" in chosen.stderr
