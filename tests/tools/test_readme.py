"""README and guide: the commands and examples run as they stand there, and what the text names exists.

Each page runs by itself, in order, in a directory that holds what the README's first commands make.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from packstore import PackedLoader, __version__, convert
from packstore.cli import cli
from packstore.stores import open_store
from tests.internals import COLUMN_TYPES, ENCODINGS, FORMATS, SOURCES, Column, doctor, from_stored, to_stored
from tests.internals import base as column_module
from tests.makers.command import commands
from tests.makers.torchvision import import_torchvision
from tests.makers.typed import COLUMNS, SHAPES, make_typed

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in sorted((ROOT / "packstore" / "guide").glob("*.md"))}
TEXTS = {"readme": ROOT / "README.md", **PAGES}
WRITTEN = {**TEXTS, "contributing": ROOT / ".github" / "CONTRIBUTING.md"}
QUICKER = {"bench": ["--seconds", "0.01", "--no-tries"], "doctor": ["--no-disk"]}
"""What these commands are given here beside what the text says."""
SLOW = ("readme", "measuring")
"""Pages that run them all the same."""
MARKS = {**dict.fromkeys(SLOW, pytest.mark.slow), "integrations": pytest.mark.filterwarnings("ignore")}
"""Marks of pages. Other frameworks warn of each other's changes."""
WITHOUT_PACKSTORE = "formats"
"""The page whose Python does without packstore."""
NOT_ASKED = {"error": "not asked"}
"""What libraries answer here when ``doctor`` asks them: asking them takes seconds, which its own tests spend."""


def text_of(name: str) -> str:
    return WRITTEN[name].read_text("utf-8")


def blocks(name: str) -> Iterator[tuple[str, str]]:
    """Language and content of each block of code, in order."""
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", text_of(name), re.DOTALL | re.MULTILINE)


def library_of(code: str) -> str:
    """The library with which a block of the page on formats reads a store; "objects": one with columns of all types."""
    known = ("lmdb", "h5py", "torch", "json", "numpy")
    library = next(each for each in known if re.search(rf"^import .*{each}", code, re.MULTILINE))
    return library + (" objects" if "objects." in code else " shapes" if "def shapes" in code else "")


def packstore(line: str) -> None:
    """Runs a command of the text, in this process: a new one would take a second to import torch."""
    program, *arguments = shlex.split(line, comments=True)
    assert program == "packstore", line
    arguments += QUICKER.get(arguments[0], [])
    try:
        code = cli.main(arguments, prog_name="packstore", standalone_mode=False)
    except click.exceptions.Exit as end:
        code = end.exit_code
    assert not code, line


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``packstore-demo`` and ``demo.lmdb``, as the README's first commands make them: for reading only."""
    place = tmp_path_factory.mktemp("guide")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        packstore("packstore demo packstore-demo")
        packstore("packstore convert packstore-demo demo.lmdb -q")
    return place


FACTS = {
    "lmdb": "from PIL import Image; Image.open(io.BytesIO(image_file)).load(); assert '\"records\"' in manifest; "
    "assert labels[0] == 0 and len(labels) > 3",
    "h5py": "import io; from PIL import Image; Image.open(io.BytesIO(image_file)).load(); "
    "assert label == 0 and pixels.shape == (64, 64, 3) and pixels.dtype == 'uint8'",
    "torch": "assert images.dtype == torch.float16 and images.shape[1:] == (3, 64, 64); "
    "assert labels.dtype == torch.int64 and len(labels) == len(images) and '/' in key",
    **{
        f"{library} objects": "assert len(ragged('mask', 0)) > 9 and not fixed('caption_valid', 1)"
        for library in ("lmdb", "h5py", "torch")
    },
    "numpy": "assert files(bytes(8)) == []",
    "numpy shapes": "assert shapes(b'') == []",
    "json": "import pathlib; files = sorted(pathlib.Path('many.h5').glob('shard-*')); assert len(files) > 1; "
    "assert table['nbytes'].tolist() == [file.stat().st_size for file in files]",
}


@pytest.mark.long
@pytest.mark.sampled(fast=0)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[MARKS[name]] if name in MARKS else []) for name in TEXTS])
def test_a_page_runs(
    name: str,
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    if "s3://bucket" in text_of(name):
        request.getfixturevalue("s3")
    if "torchvision" in text_of(name):
        import_torchvision()
    monkeypatch.setattr(doctor, "_run_probe", lambda name: NOT_ASKED)
    for registry in (FORMATS, SOURCES, ENCODINGS, COLUMN_TYPES):
        monkeypatch.setattr(registry, "_objects", {**registry._objects})
    if name != "readme":
        for path in demo.iterdir():
            (tmp_path / path.name).symlink_to(path)
    if name == WITHOUT_PACKSTORE:
        make_typed(tmp_path / "objects.lmdb", [column.name for column in COLUMNS])
    plain = []
    for language, code in blocks(name):
        if language == "sh":
            for line in code.splitlines():
                # The README's first block is the set-up itself.
                if line.startswith("./tools/"):
                    assert name in ("readme", "contributing")
                else:
                    packstore(line)
        elif name == WITHOUT_PACKSTORE:
            plain.append(code)
        elif language == "python":
            capsys.readouterr()
            exec(compile(code, f"{name}.md", "exec", dont_inherit=True), {"__name__": "page"})
            assert capsys.readouterr().out, code
    assert len(plain) == (len(FACTS) if name == WITHOUT_PACKSTORE else 0)
    if plain:  # all in one process: importing torch takes longer than all else
        program = "import sys; sys.modules['packstore'] = None\nfor code in sys.argv[1:]: exec(code, {})"
        codes = [f"{code}\n{FACTS[library_of(code)]}" for code in plain]
        done = subprocess.run([sys.executable, "-c", program, *codes], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("library", "large"), [("lmdb", False), ("lmdb", True), ("h5py", False), ("torch", False)])
def test_a_column_of_each_type_is_read_by_plain_libraries(
    library: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the table of the page says, compared with what packstore reads; also of an LMDB whose columns are so large
    that they lie record by record."""
    if large:
        monkeypatch.setattr(column_module, "_WHOLE_BYTES", 0)
    made = make_typed(tmp_path / "objects.lmdb", [column.name for column in COLUMNS])
    for suffix in (".h5", ".pth"):
        convert(made.path, tmp_path / f"objects{suffix}", encoding="original")
    (code,) = (
        code for kind, code in blocks("formats") if kind == "python" and library_of(code) == f"{library} objects"
    )
    rows = re.findall(r"^\| [^|]+ \| `([^`]*0\)[^`]*)` \|$", text_of("formats"), re.MULTILINE)
    columns = [re.search(r'"(\w+)", 0', row)[1] for row in rows]  # type: ignore[index]
    assert len(rows) == 11
    program = (
        "import sys; sys.modules['packstore'] = None\n"
        f"{code}\nfor value in ({', '.join(rows)}):\n    print(repr(getattr(value, 'tolist', lambda: value)()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    with open_store(made.path) as reader:
        assert reader.manifest.column("vector").one_by_one is large
        wanted = [reader.item(name, 0) for name in columns]
    for line, value in zip(done.stdout.splitlines(), wanted, strict=True):
        assert ast.literal_eval(line) == getattr(value, "tolist", lambda value=value: value)()


def test_the_page_reads_segments_as_packstore_does() -> None:
    read: dict[str, Any] = {}
    exec(next(code for _, code in blocks("formats") if "def shapes" in code), read)
    column = Column("shapes", "ragged", "uint8", type="segments", coordinates="pixels")
    for value in SHAPES:
        stored = to_stored(column, value)
        assert read["shapes"](stored) == from_stored(column, stored) == value


def test_the_pages_show_much() -> None:
    """That blocks are found at all."""
    found = [(language, code) for name in TEXTS for language, code in blocks(name)]
    assert sum(len(code.splitlines()) for language, code in found if language == "sh") >= 25
    assert sum(language == "python" for language, _ in found) >= 8


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_a_title_and_a_sentence(name: str) -> None:
    """The list of topics shows the sentence."""
    title, sentence, _ = text_of(name).split("\n\n", 2)
    assert re.fullmatch(r"# \S.*", title)
    assert re.fullmatch(r"[A-Z][^\n]*[.]", sentence)
    assert len(sentence) <= 64


@pytest.mark.parametrize("name", WRITTEN)
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)", text_of(name)):
        assert link.startswith("https://") or (WRITTEN[name].parent / link).exists(), link


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    readme = text_of("readme")
    assert len(readme.splitlines()) <= 130
    for name in PAGES:
        assert f"(packstore/guide/{name}.md)" in readme
    assert "NVIDIA H200" in readme[:2000]


def test_each_version_has_a_section_of_changes() -> None:
    """The version stands in one place, the newest first; each release has a tag."""
    sections = re.findall(r"^## (\d+\.\d+\.\d+), (\d{4}-\d\d-\d\d|not released yet)$", text_of("changes"), re.MULTILINE)
    versions = [version for version, _ in sections]
    assert versions[0] == __version__
    assert versions == sorted(set(versions), key=lambda v: [int(part) for part in v.split(".")], reverse=True)
    assert len(sections) == text_of("changes").count("\n## ")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "packstore.__version__"}
    listed = subprocess.run(["git", "tag", "--list", "v*"], cwd=ROOT, capture_output=True, text=True, check=False)
    released = [version for version, date in sections if date != "not released yet"]
    assert set(listed.stdout.split()) <= {f"v{version}" for version in released}


def test_every_command_is_named() -> None:
    texts = "\n".join(text_of(name) for name in TEXTS)
    for command in commands():
        assert f"packstore {command}" in texts


def test_every_option_is_explained() -> None:
    for option in [option for each in commands()["convert"].params for option in each.opts]:
        assert f"`{option}" in text_of("packing") or not option.startswith("--"), option
    for name, argument in inspect.signature(PackedLoader).parameters.items():
        if argument.kind is argument.KEYWORD_ONLY:
            assert re.search(rf"\b{name}=", text_of("loading")), name


OTHERS = {
    "--address",
    "--arm",
    "--block",
    "--cases",
    "--cpu",
    "--cpus-per-task",
    "--extra-index-url",
    "--force-reinstall",
    "--multi",
    "--num",
    "--salt",
    "--gpus-per-node",
    "--head",
    "--index-url",
    "--minutes",
    "--nnodes",
    "--no-cache-dir",
    "--no-deps",
    "--nodes",
    "--nproc-per-node",
    "--ntasks-per-node",
    "--num-cpus",
    "--only-binary",
    "--python-version",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--sdist",
    "--strict",
}
"""Options of pip, mypy, ray, torchrun, SLURM and the shell scripts in ``tools/``."""

SCRIPTS = {
    option
    for path in (ROOT / "tools").rglob("*.py")
    for option in re.findall(r"add_argument\(\s*\"(--[a-z-]+)\"", path.read_text("utf-8"))
}
"""Options of the examples and of the other Python scripts in ``tools/``."""


@pytest.mark.parametrize("name", WRITTEN)
def test_options_and_files_that_are_named_exist(name: str) -> None:
    parameters = [each for command in [cli, *commands().values()] for each in command.params]
    options = {option for each in parameters for option in (*each.opts, *each.secondary_opts)}
    text = text_of(name)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= options | OTHERS | SCRIPTS | {"--help", "--version"}
    for path in re.findall(r"\b((?:packstore|tools|tests)/[\w./-]*\w)", text):
        assert (ROOT / path).exists(), path


def test_contributing_has_a_row_for_each_room() -> None:
    rooms = {path.parent.name for path in (ROOT / "packstore").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/` \|", text_of("contributing"), re.MULTILINE)) == rooms


def test_the_walks_of_contributing_name_what_exists_in_at_most_fourteen_files() -> None:
    walks = text_of("contributing").partition("## Three walks")[2].partition("\n## ")[0].split("\n\n**")[1:]
    assert len(walks) == 3
    for walk in walks:
        rows = re.findall(r"^\| `([\w/]+\.(?:py|c))` \| ([^|]+) \|", walk, re.MULTILINE)
        assert 6 <= len({file for file, _ in rows if file.endswith(".py")}) <= 14
        for file, names in rows:
            code = (ROOT / "packstore" / file).read_text("utf-8")
            for name in re.findall(r"`(\w+)`", names):
                assert re.search(rf"^ *def {name}\(|^[a-z].* {name}\(", code, re.MULTILINE), f"{file}: {name}"


@pytest.mark.slow
def test_an_installation_has_the_pages(tmp_path: Path) -> None:
    """A source distribution of the repository, and a wheel of that, both by setuptools alone."""
    pytest.importorskip("setuptools", "77")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "tools").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/build_backend.py"):
        shutil.copy2(ROOT / name, tree / name)
    shutil.copytree(ROOT / "packstore", tree / "packstore", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    build = "import sys; from setuptools import build_meta; print(build_meta.build_{}(sys.argv[1]))"
    compiler = tmp_path / "compiler"  # compiling takes long
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: >"$2"\n')
    compiler.chmod(0o755)
    env = {**os.environ, "CC": str(compiler)}

    def run(kind: str, cwd: Path) -> Path:
        command = [sys.executable, "-c", build.format(kind), str(tmp_path)]
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return tmp_path / done.stdout.splitlines()[-1]

    sdist = run("sdist", tree)
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    shutil.unpack_archive(run("wheel", unpacked), tmp_path / "wheel", "zip")
    for place in (unpacked, tmp_path / "wheel"):
        assert {path.name for path in (place / "packstore" / "guide").iterdir()} == {
            path.name for path in PAGES.values()
        }
