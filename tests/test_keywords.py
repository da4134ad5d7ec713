"""The public functions: what they take is named, typed and described."""

from __future__ import annotations

import inspect
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import packstore
from tests.internals import BenchOptions, Normalization, Progress, UsageError, bench, progress_callback
from tests.makers.datasets import make_folder
from tests.makers.stores import damage

FUNCTIONS = (
    packstore.convert,
    packstore.append,
    packstore.merge,
    packstore.select,
    packstore.verify,
    packstore.audit,
    packstore.repair,
    packstore.salvage,
)


@pytest.mark.parametrize(
    "function",
    [*FUNCTIONS, packstore.export, packstore.Writer, packstore.PackedLoader, packstore.PackedDataset, packstore.open],
)
def test_every_argument_is_named_typed_and_described(function: Callable[..., Any]) -> None:
    assert get_type_hints(function if inspect.isfunction(function) else vars(function)["__init__"])
    for name, each in inspect.signature(function).parameters.items():
        if each.kind is each.VAR_KEYWORD:
            assert each.annotation == "Never", function
            continue
        assert each.kind is not each.VAR_POSITIONAL, function
        assert each.annotation not in (each.empty, "Any"), name
        assert re.search(rf"^ +{name}: \S", function.__doc__ or "", re.MULTILINE), name


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_misspelt_keyword_is_an_error(function: Callable[..., Any]) -> None:
    paths = [name for name, each in inspect.signature(function).parameters.items() if each.default is each.empty]
    with pytest.raises(TypeError, match="owerwrite"):
        function(*paths, owerwrite=True)


def test_options_are_no_public_names() -> None:
    assert [name for name in packstore.__all__ if name.endswith("Options")] == []


@pytest.mark.slow
def test_lists_are_means_and_standard_deviations(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", splits=())
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.2, 0.2]
    expected = Normalization((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    for number, normalize in enumerate(((mean, std), Normalization(mean, std))):  # type: ignore[arg-type]
        report = packstore.convert(folder, tmp_path / f"{number}.h5", encoding="float16", size=8, normalize=normalize)
        assert report.manifest.normalization == expected


@pytest.mark.slow
def test_progress_true_shows_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "photos", splits=())
    store, fixed = tmp_path / "a.lmdb", tmp_path / "b.lmdb"

    def shown(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        function(*arguments, **options)
        return sys.stderr.getvalue()

    assert "pack: " in shown(packstore.convert, folder, store, progress=True)
    assert "verify: " in shown(packstore.verify, store, progress=True)
    assert shown(packstore.verify, store) == ""
    damage(store, [3], [])
    assert "verify: " in shown(packstore.repair, store, folder, fixed, progress=True)
    assert "salvage: " in shown(packstore.salvage, store, tmp_path / "c.lmdb", progress=True)
    text = shown(bench, fixed, BenchOptions(seconds=0.01, batch_size=4, tries=False), progress=True)
    assert "read: " in text
    assert "stages/s" in text or "s/ stages" in text


def test_a_notebook_has_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Bar:
        def __init__(self, desc: str, **options: Any) -> None:
            made.append(desc)
            self.n, self.format_dict = 0, {"elapsed": 1.0}

        def update(self, count: int) -> None: ...

        def close(self) -> None: ...

    import tqdm.auto

    monkeypatch.setitem(sys.modules, "IPython", tqdm)
    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    with progress_callback(True) as report:
        report(Progress("pack", 1, 2, 0))
    assert made == ["pack"]


NOTEBOOK = """
import sys, types
notebook = types.ModuleType("IPython")
notebook.get_ipython = lambda: None
sys.modules["IPython"] = sys.modules["ipykernel.zmqshell"] = notebook
sys.modules["ipywidgets"] = None
"""
"""What tqdm takes for a notebook without ipywidgets."""


@pytest.mark.slow
def test_a_notebook_without_widgets_has_a_bar_of_text_and_no_warning() -> None:
    ours = """
from packstore.core.progress import Progress, progress_callback
with progress_callback(True) as report:
    report(Progress("pack", 1, 2, 0))
"""

    def run(program: str) -> str:
        command = [sys.executable, "-c", NOTEBOOK + program]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert "TqdmWarning" in run("import tqdm.auto")
    said = run(ours)
    assert "pack: " in said
    assert "Warning" not in said


def test_progress_is_true_false_or_a_function(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="progress should be True, False or a function of a Progress, got 'bar'"), \
            progress_callback("bar"):  # type: ignore[arg-type]  # fmt: skip
        pass


TYPED = Path(__file__).resolve().parent / "typing"


def mypy(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # Re-exports, since tests import the names of rooms from tests.internals.
        [sys.executable, "-m", "mypy", "--strict", "--implicit-reexport", "--no-error-summary", *map(str, files)],
        capture_output=True,
        text=True,
        cwd=TYPED.parent.parent,
        check=False,
    )


def public_callables() -> dict[str, Callable[..., Any]]:
    """All public names that users call, with what they call."""
    import packstore.augment as augment

    found = {f"packstore.{name}": getattr(packstore, name) for name in [*packstore.__all__, "open"]}
    found |= {f"packstore.augment.{name}": getattr(augment, name) for name in augment.__all__}
    others = ("Report", "Error", "Problem", "Manifest", "Reader", ".Draws", ".Operation", ".RECIPES", ".Recipe")
    return {name: value for name, value in found.items() if not name.endswith(others)}


@pytest.mark.slow  # not long: ./tools/test runs mypy meanwhile, whose cache takes four fifths of the time away
def test_mypy_sees_every_keyword_and_accepts_usual_values(tmp_path: Path) -> None:
    program, public = tmp_path / "signatures.py", public_callables()
    lines = [f"reveal_type({name})" for name in public]
    program.write_text("\n".join(["import packstore", "import packstore.augment", *lines, ""]), "utf-8")
    done = mypy(program, TYPED / "values.py")
    assert done.returncode == 0, done.stdout + done.stderr
    for value, seen in zip(public.values(), re.findall(r'Revealed type is "(.*)"$', done.stdout, re.M), strict=True):
        taken = inspect.signature(value).parameters.values()
        expected = {each.name for each in taken if each.kind is not each.VAR_KEYWORD}
        assert expected <= set(re.findall(r"\b(\w+): ", seen)), (value, seen)


@pytest.mark.slow
def test_mypy_refuses_misspelt_keywords() -> None:
    lines = (TYPED / "misspelt.py").read_text("utf-8").splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# WRONG")}
    found = {int(number) for number in re.findall(r"misspelt\.py:(\d+): error: ", mypy(TYPED / "misspelt.py").stdout)}
    assert found == expected
