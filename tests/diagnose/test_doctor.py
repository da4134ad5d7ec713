"""``packstore doctor``: it reports whatever state an installation is in, and crashes in none of them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.internals import (
    LIBRARIES,
    Fact,
    Report,
    _gpu_facts,
    _library_fact,
    decoder_facts,
    doctor_report_rows,
    examine,
    find_matching_torchvision,
    machine,
    rate_facts,
)
from tests.internals import doctor as doctor_package

COMMAND = [sys.executable, "-m", "packstore", "doctor"]


def doctor(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = doctor("--json", tmp_path_factory.mktemp("disk"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.long
def test_all_of_it_is_looked_at(report: dict[str, Any]) -> None:
    sections = report["sections"]
    assert list(sections) == ["versions", "JPEG", "GPU", "processor", "memory", "limits", "disk"]
    assert {library.name for library in LIBRARIES} <= set(sections["versions"])
    assert sections["versions"]["torch"]["value"]
    assert sections["JPEG"]["decoder"]["value"] in {"engine", "turbojpeg", "simplejpeg", "jpeg4py", "opencv", "pillow"}
    assert sections["disk"]["speed"]["value"]["write"] > 0
    assert sections["disk"]["speed"]["value"]["read"] > 0
    for section in sections.values():
        for fact in section.values():
            assert set(fact) == {"value", "text", "problem"}
            assert fact["text"]
    problems = [f for section in sections.values() for f in section.values() if f["problem"]]
    assert len(problems) == report["problem_count"]


@pytest.mark.slow
def test_libraries_that_are_broken_in_any_way_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h5py.py").write_text("raise RuntimeError('two\\nlines')")
    (tmp_path / "lmdb.py").write_text("import os; os.abort()")
    (tmp_path / "jpeg4py.py").write_text("raise SystemExit(0)")
    (tmp_path / "cv2.py").write_text("import a_module_that_is_not_there")
    (tmp_path / "xxhash.py").write_text("__version__ = 7; print('noise', end='')")
    monkeypatch.syspath_prepend(tmp_path)
    asked = ("h5py", "lmdb", "jpeg4py", "cv2", "xxhash", "numpy")
    probe = doctor_package._run_probe  # asking the others takes seconds, which the test before spends
    monkeypatch.setattr(
        doctor_package, "_run_probe", lambda name: probe(name) if name in asked else {"error": "not asked"}
    )
    versions = {fact.name: fact for fact in examine(tmp_path, disk=False).facts if fact.section == "versions"}
    assert "RuntimeError: two lines" in str(versions["h5py"].problem)
    assert "signal 6" in str(versions["lmdb"].problem)
    assert "SystemExit" in str(versions["jpeg4py"].problem)
    assert "a_module_that_is_not_there" in str(versions["OpenCV"].problem)
    assert versions["xxhash"].problem is None
    assert all(versions[name].value is None for name in ("h5py", "lmdb", "jpeg4py", "OpenCV"))
    assert versions["numpy"].value


def test_people_see_a_problem_under_its_fact() -> None:
    broken = _library_fact(LIBRARIES[2], {"error": "ImportError: \x1b[31mred"})
    lines = doctor_report_rows(Report((Fact("versions", "Python", "3.11"), broken))).text.splitlines()
    place = next(i for i, line in enumerate(lines) if line.strip().startswith("h5py"))
    assert lines[place].endswith("broken")
    assert lines[place + 1].strip().startswith("!")
    assert "\x1b" not in "".join(lines)
    assert lines[-1] == "1 problem, marked with !"


def test_a_needed_library_that_is_missing_is_a_problem_and_an_optional_one_is_not() -> None:
    answer = {"error": "No module", "missing": True}
    by_name = {library.name: library for library in LIBRARIES}
    assert "pip install h5py" in str(_library_fact(by_name["h5py"], answer).problem)
    assert _library_fact(by_name["OpenCV"], answer).problem is None
    broken = _library_fact(by_name["torchvision"], {"error": "RuntimeError: operator torchvision::nms does not exist"})
    assert "from the index that torch is from: packstore guide troubleshooting" in str(broken.problem)
    assert "pip install --force-reinstall --no-deps torchvision" in str(broken.problem)
    for version, wanted in {"2.13.0+cpu": "0.28", "2.4.1": "0.19"}.items():
        problem = str(_library_fact(by_name["torchvision"], {"error": "RuntimeError"}, version).problem)
        assert f"pip install --force-reinstall --no-deps 'torchvision=={wanted}.*', from the index" in problem
    missing = _library_fact(by_name["torchvision"], answer, "2.13.0")
    assert "pip install 'torchvision==0.28.*'" in missing.text
    assert all(find_matching_torchvision(version) is None for version in ("", "3.0", "of unknown version"))
    fact = _library_fact(by_name["torch"], {"version": "3.0", "details": ["CPU build"]})
    assert (fact.value, fact.text, fact.problem) == ("3.0", "3.0, CPU build", None)


def decoder(rate: float) -> dict[str, Any]:
    return {"available": True, "version": "v", "images_per_second": rate}


def test_a_faster_decoder_is_named() -> None:
    gone = {"available": False, "reason": "no library"}
    facts = rate_facts({"turbojpeg": decoder(100), "simplejpeg": decoder(120), "pillow": decoder(60)}, "turbojpeg")
    assert "simplejpeg is 1.20 times as fast" in str(facts[0].problem)
    facts = rate_facts({"turbojpeg": decoder(100), "simplejpeg": decoder(110), "opencv": gone}, "turbojpeg")
    assert facts[0].problem is None
    assert facts[2].text == "not available: no library"


@pytest.mark.parametrize(
    ("used", "regions", "text"),
    [
        (
            "simplejpeg",
            "libjpeg-turbo 3.1.3 (x.so)",
            "only the crop's region of ordinary JPEG files is decoded, by libjpeg-turbo 3.1.3 (x.so)",
        ),
        ("engine", "libjpeg-turbo 3.1.3 (x.so)", "little more than the crop is decoded if the file has a seek index"),
        ("turbojpeg", None, "decoded whole; libturbojpeg 3 or newer decodes only the crop's region"),
        ("pillow", None, "decoded whole"),
    ],
)
def test_what_is_decoded_of_a_crop(used: str, regions: str | None, text: str) -> None:
    found: dict[str, Any] = {
        "decoders": {name: decoder(100) for name in ("engine", "turbojpeg", "simplejpeg", "pillow")}
    }
    found |= {"used": used, "regions": regions, "engine_problem": None}
    facts = {fact.name: fact for fact in decoder_facts(found)}
    assert text in facts["crops"].text
    assert facts["crops"].value == regions


@pytest.mark.parametrize(("version", "told"), [(None, False), ("2.1.5", True), ("3.0.3", False), ("10.1", False)])
def test_how_to_get_a_newer_turbojpeg(version: str | None, told: bool) -> None:
    found = {"decoders": {"pillow": decoder(100)}, "used": "pillow", "regions": None, "engine_problem": None}
    facts = {fact.name: fact for fact in decoder_facts(found | {"libturbojpeg": version})}
    assert ("libjpeg-turbo" in facts) is told
    assert not told or "troubleshooting: how to get it" in facts["libjpeg-turbo"].text


@pytest.mark.parametrize("reason", [None, "it was not compiled"])
def test_whether_the_engine_is_usable(reason: str | None) -> None:
    found = {"decoders": {"pillow": decoder(100)}, "used": "pillow", "regions": None, "engine_problem": reason}
    facts = {fact.name: fact for fact in decoder_facts(found)}
    assert facts["engine"].value is (reason is None)
    wanted = None if reason is None else "loaders need packstore's engine: it was not compiled"
    assert facts["engine"].problem == wanted


def test_gpu_facts() -> None:
    works: dict[str, Any] = {"version": "2"}
    nothing: dict[str, Any] = {"built": None, "driver": None, "devices": [], "reason": None, "pinned": {}}
    assert _gpu_facts(nothing, works)[0].text == "none: torch is a CPU build"
    assert "CUDA build of torch" in str(_gpu_facts({**nothing, "driver": "550.1"}, works)[0].problem)
    unusable = {**nothing, "built": "12.8", "driver": "400.1", "reason": "too old"}
    assert "cannot use: too old" in str(_gpu_facts(unusable, works)[0].problem)
    device = {"name": "H200", "free": 10**9, "total": 2 * 10**9}
    good = {**nothing, "built": "12.8", "devices": [device], "pinned": {"pinned": 5e10, "pageable": 1e10}}
    assert [f.problem for f in _gpu_facts(good, works)] == [None, None, None]
    assert _gpu_facts(good, works)[2].text == "50.0 GB/s to the GPU, 10.0 GB/s from plain memory"
    assert "is not available" in str(_gpu_facts({**good, "pinned": {"error": "RuntimeError: no"}}, works)[2].problem)
    assert _gpu_facts({"error": "no torch"}, {"error": "no torch"})[0].problem is None


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({}, None, None),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, None),
        ({"cpu.max": "150000 100000\n", "memory.max": "1000000\n"}, 1.5, 1000000),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5, None),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None, None),
        ({"cpu.max": "", "memory.max": "many"}, None, None),
    ],
)
def test_limits_of_containers(files: dict[str, str], cores: float | None, memory: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.read_cpu_quota(tmp_path) == cores
    assert machine.read_memory_limit(tmp_path) == memory


def test_a_quota_below_the_cores_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "read_cpu_quota", lambda: 2.5)
    monkeypatch.setattr(machine, "default_workers", lambda: 8)
    quota = next(fact for fact in machine.processor_facts() if fact.name == "quota of the container")
    assert "workers=2" in str(quota.problem)


def test_few_open_files_and_a_limited_address_space_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (256, 4096), resource.RLIMIT_AS: (10**9, 10**9)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, (-1, -1)))
    facts = {fact.name: fact for fact in machine.limit_facts()}
    assert "ulimit -n 4096" in str(facts["open files"].problem)
    limits[resource.RLIMIT_NOFILE] = (256, resource.RLIM_INFINITY)
    assert "ulimit -n unlimited" in str(machine.limit_facts()[0].problem)
    limits[resource.RLIMIT_NOFILE] = (256, 256)
    assert "it cannot be raised here" in str(machine.limit_facts()[0].problem)
    assert "ulimit -v unlimited" in str(facts["address space (LMDB's map)"].problem)


def test_the_folder_of_a_store_is_the_one_it_lies_in(tmp_path: Path) -> None:
    (tmp_path / "s.lmdb").mkdir()
    (tmp_path / "s.lmdb" / "data.mdb").touch()
    (tmp_path / "f.h5").touch()
    for path in (tmp_path / "s.lmdb", tmp_path / "f.h5", tmp_path, tmp_path / "a" / "b"):
        assert machine.find_existing_folder(path) == tmp_path


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    there = machine.path_exists_fact(tmp_path, machine.find_existing_folder(tmp_path))
    assert (there.text, there.problem) == (str(tmp_path), None)
    new = machine.path_exists_fact(tmp_path / "new.h5", tmp_path)
    assert (new.text, new.problem) == (f"{tmp_path}/new.h5, which does not exist yet", None)
    lost = tmp_path / "a" / "b.h5"
    assert f"the disk of {tmp_path} is examined instead" in str(
        machine.path_exists_fact(lost, machine.find_existing_folder(lost)).problem
    )


def test_measuring_the_disk_leaves_nothing(tmp_path: Path) -> None:
    written, read = machine.measure_disk_speed(tmp_path, 8 << 20)
    assert written > 0
    assert read > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)
    speed = machine.disk_facts(tmp_path, measure=True)[-1]
    assert speed.text == "not measured: no file can be written there (Permission denied)"
    assert machine.disk_facts(tmp_path, measure=False)[-1].name == "free"


@pytest.mark.slow
def test_the_probes_need_no_library_themselves() -> None:
    """One that is broken would take all of them along."""
    code = (
        "import sys, packstore.diagnose.doctor.probes\n"
        "print({'torch', 'numpy', 'PIL', 'turbojpeg', 'simplejpeg', 'h5py', 'lmdb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
