"""The README's commands and examples, run as they stand there, in order, in an empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from packstore.cli import cli

README = (Path(__file__).parents[2] / "README.md").read_text()
WITHOUT_PACKSTORE = "## What a store looks like without packstore"


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Every packstore command of the README. The first block is the set-up itself, with a placeholder in it."""
    lines = [line for block in blocks("sh", README)[1:] for line in block.splitlines()]
    return [line.replace("./tools/packstore", "packstore") for line in lines if line.strip()]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which all commands of the README have been run."""
    place = tmp_path_factory.mktemp("readme")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert len(commands()) >= 13
    for command in commands():
        done = subprocess.run(
            command,
            shell=True,
            cwd=place,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    return place


def run_python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def test_the_commands_run(workplace: Path) -> None:
    for name in ("demo.lmdb", "files.h5", "small.lmdb", "pixels.h5", "tensors.pth", "files.pth", "parts.lmdb"):
        assert (workplace / name).exists(), name
    assert (workplace / "parts.lmdb" / "manifest.json").exists()


@pytest.mark.parametrize("number", range(3))
def test_the_library_examples_run(workplace: Path, number: int) -> None:
    code = blocks("python", README.split(WITHOUT_PACKSTORE)[0])[number]
    # Worker processes import the main module, which a script guards; an example need not.
    done = run_python(code.replace("num_workers=2", "num_workers=0"), workplace)
    assert done.returncode == 0, done.stderr
    assert done.stdout


FACTS = {
    "lmdb": "from PIL import Image; Image.open(io.BytesIO(image_file)).load(); assert '\"records\"' in manifest; "
    "assert labels[0] == 0 and len(labels) > 3",
    "h5py": "import io; from PIL import Image; Image.open(io.BytesIO(image_file)).load(); "
    "assert label == 0 and pixels.shape == (64, 64, 3) and pixels.dtype == 'uint8'",
    "torch": "assert images.dtype == torch.float16 and images.shape[1:] == (3, 64, 64); "
    "assert labels.dtype == torch.int64 and len(labels) == len(images) and '/' in key",
}


@pytest.mark.parametrize("library", sorted(FACTS))
def test_the_reading_examples_run_without_packstore(workplace: Path, library: str) -> None:
    (code,) = (
        b for b in blocks("python", README.split(WITHOUT_PACKSTORE)[1]) if re.search(rf"^import .*{library}", b, re.M)
    )
    code = f"import sys; sys.modules['packstore'] = None\n{code}\n{FACTS[library]}\nprint('done')"
    done = run_python(code, workplace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


def test_every_command_is_in_the_readme() -> None:
    for name in cli.commands:
        assert f"packstore {name}" in README
