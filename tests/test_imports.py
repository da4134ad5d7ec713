"""What each room of packstore may import: DESIGN.md's table, held by reading every import in the package.

Imports inside functions and under ``TYPE_CHECKING`` count like any other: a room that needs a higher one only for a
moment needs it all the same.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "packstore"


@dataclass(frozen=True)
class Room:
    """Files (the first room that matches a file has it), and what they may import beyond their own room."""

    name: str
    files: str
    rooms: str = ""
    libraries: str = ""


ROOMS = (
    # name         files                                            other rooms                 libraries
    Room("foundation", "errors.py manifest.py plainjson.py progress.py sniff.py counter.py parallel.py", "", "numpy"),
    # What a store and a source are. It is the vocabulary of all that stands between the two, so encode may use it.
    Room("contracts", "stores/base.py sources/base.py", "foundation", "numpy"),
    Room("pth store", "stores/pth_store.py", "foundation contracts stores", "numpy torch"),
    # formats.py knows every format, and loads the one that is asked for.
    Room("stores", "stores/*.py", "foundation contracts pth-store", "numpy h5py lmdb xxhash"),
    # A store is a source too.
    Room("store source", "sources/store.py", "foundation contracts sources stores", "numpy xxhash"),
    Room("sources", "sources/*.py", "foundation contracts store-source", "numpy xxhash"),
    Room(
        "decoders",
        "decoders.py decoders/*.py seekable/*.py resize.py",
        "foundation",
        "numpy torch PIL turbojpeg simplejpeg jpeg4py cv2",
    ),
    Room("encode", "encode.py encode/*.py", "foundation contracts decoders", "numpy torch PIL simplejpeg"),
    Room(
        "convert",
        "conversion.py packing.py takeover.py verification.py plan.py against.py donor.py repair.py salvage.py",
        "foundation contracts sources store-source stores encode decoders",
        "numpy xxhash",
    ),
    Room("dataset", "dataset.py", "foundation contracts stores decoders", "numpy torch PIL"),
    Room("order", "order.py", "foundation", "numpy torch"),
    Room("augment", "augment.py augment/*.py", "foundation", "numpy torch"),
    Room("ring", "ring.py", "foundation", "numpy torch"),
    Room("loader", "loader.py loader/*.py", "foundation contracts decoders dataset order augment ring", "numpy torch"),
    # It tries other ways of packing, so it converts too.
    Room(
        "bench",
        "bench/*.py",
        "foundation contracts stores decoders encode convert dataset augment loader",
        "numpy torch matplotlib",
    ),
    # It looks at libraries by name, in processes of their own.
    Room("doctor", "doctor/*.py", "foundation decoders", "numpy torch PIL"),
    Room("demo", "demo.py", "foundation", "numpy PIL"),
    # The public names, each loaded on first use.
    Room("package", "__init__.py", "foundation contracts stores convert dataset loader"),
    Room(
        "cli",
        "cli/*.py",
        "package foundation contracts stores sources decoders encode convert dataset loader demo bench doctor",
        "click tqdm numpy torch",
    ),
    Room("main", "__main__.py", "cli"),
)

MAY_PRINT = ("cli", "main")
"""Rooms that talk to a person and end the process; the library raises, logs and reports progress instead."""

HEAVY = "torch h5py lmdb numpy PIL cv2 simplejpeg turbojpeg jpeg4py xxhash"
"""What ``import packstore`` and ``packstore --help`` must not load."""

IMPORT_NAMES = {"pillow": "PIL", "pyturbojpeg": "turbojpeg", "opencv-python-headless": "cv2"}
"""Import names of distributions that are called otherwise."""


def room_of(file: str) -> Room | None:
    return next((room for room in ROOMS if any(fnmatchcase(file, glob) for glob in room.files.split())), None)


def imports(file: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a module imports; names out of packstore with what is taken from it."""
    package = ["packstore", *Path(file).parts[:-1]]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    # `import packstore` says nothing yet; the attributes taken from it do, below.
                    if alias.name != "packstore":
                        yield node.lineno, alias.name
            case ast.Attribute(value=ast.Name(id="packstore"), attr=attr):
                yield node.lineno, f"packstore.{attr}"
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                name = ".".join([*base, *([module] if module else [])])
                for alias in names:
                    yield node.lineno, f"{name}.{alias.name}"
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def file_of(name: str, files: frozenset[str]) -> str:
    """The file that a dotted name in packstore lives in: a module, else the package that has it as an attribute."""
    parts = name.split(".")[1:]
    for count in range(len(parts), 0, -1):
        stem = "/".join(parts[:count])
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if file in files:
                return file
    return "__init__.py"


def violations(file: str, text: str, files: frozenset[str]) -> list[str]:
    """What is wrong with a file of the package: ``file`` relative to it, among ``files``, with the content ``text``."""
    room = room_of(file)
    if room is None:
        return [f"{file}: is in no room; put it into ROOMS, and into DESIGN's table"]
    tree = ast.parse(text)
    found = []
    for line, name in imports(file, tree):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or name == "packstore.__version__":
            continue
        if top == "packstore":
            target = file_of(name, files)
            other = room_of(target)
            allowed = {room.name.replace(" ", "-"), *room.rooms.split()}
            if other is None or other.name.replace(" ", "-") not in allowed:
                found.append(f"{file}:{line}: {room.name} may not import {name} ({target})")
        elif top not in room.libraries.split():
            found.append(f"{file}:{line}: {room.name} may not import the library {top}")
    if room.name not in MAY_PRINT:
        found += [f"{file}:{line}: {what} outside cli/" for line, what in outbursts(tree)]
    return found


def outbursts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a module prints, asks or exits."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print" | "input" | "exit" | "quit" | "breakpoint" as name)):
                yield node.lineno, f"{name}()"
            case ast.Attribute(
                value=ast.Name(id="sys"), attr="exit" | "stdout" | "stderr" | "stdin" | "__stdout__" as attr
            ):
                yield node.lineno, f"sys.{attr}"
            case ast.Attribute(value=ast.Name(id="os"), attr="_exit" | "abort" as attr):
                yield node.lineno, f"os.{attr}"
            case ast.Name(id="SystemExit"):
                yield node.lineno, "SystemExit"


def package_files() -> frozenset[str]:
    return frozenset(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", sorted(package_files()))
def test_a_file_imports_what_its_room_may(file: str) -> None:
    assert violations(file, (PACKAGE / file).read_text("utf-8"), package_files()) == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("manifest.py", "from packstore.stores import open_store", "foundation may not import packstore.stores.open"),
        ("manifest.py", "from packstore import stores", "foundation may not import packstore.stores"),
        ("manifest.py", "from . import stores", "foundation may not import packstore.stores"),
        ("manifest.py", "import packstore.stores.base as b", "foundation may not import packstore.stores.base"),
        ("manifest.py", "import packstore\nx = packstore.convert", "foundation may not import packstore.convert"),
        ("manifest.py", "from packstore import open", "foundation may not import packstore.open (__init__.py)"),
        ("stores/base.py", "from ..sources.base import Source, Gone\nfrom .. import cli", "import packstore.cli"),
        ("stores/lmdb_store.py", "def f():\n    import torch", ":2: stores may not import the library torch"),
        ("stores/lmdb_store.py", "from packstore.sources.folder import X", "stores may not import packstore.sources"),
        ("sources/folder.py", "from packstore.stores import open_store", "sources may not import packstore.stores"),
        ("sources/folder.py", "import importlib\nimportlib.import_module('h5py')", "may not import the library h5py"),
        ("order.py", "from packstore.ring import Ring", "order may not import packstore.ring.Ring"),
        ("conversion.py", "from packstore.cli import main", "convert may not import packstore.cli.main"),
        ("dataset.py", "import requests", "dataset may not import the library requests"),
        ("conversion.py", "if True:\n    print('done')", "conversion.py:2: print() outside cli/"),
        ("conversion.py", "import sys\nsys.exit(1)", "conversion.py:2: sys.exit outside cli/"),
        ("conversion.py", "raise SystemExit(1)", "SystemExit outside cli/"),
        ("misplaced.py", "", "is in no room"),
        ("stores/deep/misplaced.js", "", "is in no room"),
    ],
)
def test_the_check_sees(file: str, text: str, message: str) -> None:
    files = frozenset({"__init__.py", "manifest.py", "conversion.py", "ring.py", "order.py", "dataset.py"})
    files |= {
        "cli/__init__.py",
        "stores/__init__.py",
        "stores/base.py",
        "sources/__init__.py",
        "sources/base.py",
        "sources/folder.py",
    }
    found = violations(file, text, files)
    assert len(found) == 1, found
    assert message in found[0]


def test_the_check_admits() -> None:
    files = package_files() | {"sources/store.py"}
    text = "import json, numpy as np\nfrom packstore import __version__\nfrom packstore.errors import StoreError\n"
    assert violations("stores/lmdb_store.py", text + "import lmdb", files) == []
    assert violations("sources/store.py", text + "from packstore.stores import open_store", files) == []
    assert violations("conversion.py", "import packstore\nversion = packstore.__version__", files) == []
    assert violations("cli/anything.py", text + "import sys\nprint(1)\nsys.exit(2)", files) == []


def test_the_rooms_named_exist() -> None:
    names = {room.name.replace(" ", "-") for room in ROOMS}
    assert {name for room in ROOMS for name in room.rooms.split()} <= names


def test_the_libraries_are_declared() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        lines += [] if extra in ("test", "peers") else requirements  # neither is for the package
    declared = {IMPORT_NAMES.get(name, name) for name in (Requirement(line).name.lower() for line in lines)}
    used = {library for room in ROOMS for library in room.libraries.split()}
    assert used <= declared
    assert declared <= used, "a dependency that no room may import"


def loaded_by(code: str) -> set[str]:
    """The heavy libraries that a fresh interpreter has loaded after running ``code``."""
    report = f"import sys; print('LOADED', *sorted(sys.modules.keys() & set({HEAVY!r}.split())))"
    run = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    found = re.search(r"^LOADED(.*)$", run.stdout, re.MULTILINE)
    assert found is not None, run.stdout
    return set(found[1].split())


def test_the_check_of_loading_sees() -> None:
    assert loaded_by("import xxhash") == {"xxhash"}


def test_importing_packstore_loads_nothing_heavy() -> None:
    assert loaded_by("import packstore") == set()


@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "convert --help", "verify --help", "repair --help", "salvage --help", "info --help"],
)
def test_help_loads_nothing_heavy(arguments: str) -> None:
    code = f"""
import sys
from packstore.cli import main
sys.argv = ["packstore", *{arguments!r}.split()]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
    assert loaded_by(code) == set()


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """``import packstore.x`` binds ``packstore.x``: a module called like a public function would hide it."""
    import packstore

    assert not {path.stem for path in PACKAGE.iterdir()} & set(packstore.__all__)


def test_a_clone_in_the_working_directory_is_not_taken_for_the_package(tmp_path: Path) -> None:
    """Its folder is called packstore, too, and holds no ``__init__.py``."""
    (tmp_path / "packstore").mkdir()
    code = "import packstore; print(packstore.convert.__module__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "packstore.conversion\n", done.stderr
