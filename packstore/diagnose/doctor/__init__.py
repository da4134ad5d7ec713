"""``packstore doctor``: examines the installation and the machine for problems that make loading slow or fail.

Each library is imported in a separate process (:mod:`packstore.diagnose.doctor.probes`), so that a broken library
cannot crash the doctor.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packstore import __version__
from packstore.core.errors import printable
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.diagnose.doctor import machine
from packstore.diagnose.doctor.machine import Fact

__all__ = ["Fact", "Report", "examine"]

PROBE_SECONDS = 120.0
"""A library whose import takes longer is reported as broken."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library to examine.

    Attributes:
        module: Name to import.
        name: Common name.
        needed: packstore requires it.
        install: How to install it.
    """

    module: str
    name: str
    needed: bool
    install: str


LIBRARIES = (
    Library("torch", "torch", True, "pip install torch"),
    Library("lmdb", "lmdb", True, "pip install lmdb"),
    Library("h5py", "h5py", True, "pip install h5py"),
    Library("numpy", "numpy", True, "pip install numpy"),
    Library("PIL", "Pillow", True, "pip install Pillow"),
    Library("xxhash", "xxhash", True, "pip install xxhash"),
    Library("simplejpeg", "simplejpeg", True, "pip install simplejpeg"),
    # Its library is the system's; simplejpeg stands in for it.
    # 2.x takes only libjpeg-turbo 3, which Debian 12 and Ubuntu 24.04 lack
    Library("turbojpeg", "PyTurboJPEG", True, "pip install 'PyTurboJPEG<2'; on Debian: apt install libturbojpeg0"),
    Library("jpeg4py", "jpeg4py", False, "pip install jpeg4py"),
    Library("cv2", "OpenCV", False, "pip install opencv-python-headless"),
    Library("pillow_heif", "pillow-heif", False, "for HEIC: pip install pillow-heif"),
    Library("tifffile", "tifffile", False, "for TIFF of many bits or channels: pip install 'packstore[tiff]'"),
    Library("imagecodecs", "imagecodecs", False, "for JPEG XL, JPEG 2000 of many bits: pip install 'packstore[tiff]'"),
    Library("OpenEXR", "OpenEXR", False, "for OpenEXR: pip install 'packstore[exr]'"),
    Library("pydicom", "pydicom", False, "for DICOM: pip install 'packstore[dicom]'"),
    Library("nibabel", "nibabel", False, "for NIfTI: pip install 'packstore[nifti]'"),
    # PyPI's wheel of it does not work with a CPU build of torch.
    Library(
        "torchvision", "torchvision", False,
        "pip install torchvision, from the index that torch is from: packstore guide troubleshooting",
    ),
    Library("matplotlib", "matplotlib", False, "pip install matplotlib"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The doctor's report.

    Attributes:
        facts: All facts, in order.
    """

    facts: tuple[Fact, ...]

    @property
    def problems(self) -> tuple[Fact, ...]:
        """Facts that have a problem."""
        return tuple(fact for fact in self.facts if fact.problem is not None)

    def __repr__(self) -> str:
        return f"<Report: {len(self.facts)} facts, {len(self.problems)} problems>"


def examine(path: Path | None = None, *, disk: bool = True, progress: ProgressCallback = no_progress) -> Report:
    """Examines the installation and the machine.

    Starts a process for each library. May write a temporary file of 64 MiB.

    Args:
        path: An existing or future store: the disk of its folder is examined. None examines the disk of the working
            directory.
        disk: Measure the speed of the disk with a temporary file. Not measured if ``path`` and its parent do not exist.
        progress: Called when each part begins.
    """
    folder = machine.find_existing_folder(path or Path.cwd())
    progress(Progress("libraries", 0, 3, 0))
    facts = [
        Fact("versions", "packstore", __version__),
        Fact("versions", "Python", platform.python_version(), f"{platform.python_version()} ({sys.executable})"),
        Fact("versions", "system", platform.platform()),
    ]
    names = [*(library.module for library in LIBRARIES), "cuda", "plug-ins"]
    with ThreadPoolExecutor(max(2, min(8, os.cpu_count() or 2))) as pool:
        answers = dict(zip(names, pool.map(_run_probe, names), strict=True))
    answers["decoders"] = _run_probe("decoders")  # alone, since it measures times
    torch_version = str(answers["torch"].get("version", ""))
    facts += [_library_fact(library, answers[library.module], torch_version) for library in LIBRARIES]
    facts += _plug_in_facts(answers["plug-ins"])
    progress(Progress("machine", 1, 3, 0))
    facts += decoder_facts(answers["decoders"])
    facts += _gpu_facts(answers["cuda"], answers["torch"])
    facts += machine.processor_facts()
    facts += machine.memory_facts()
    facts += machine.limit_facts()
    progress(Progress("disk", 2, 3, 0))
    if path is not None:
        facts.append(machine.path_exists_fact(path, folder))
    # If the path does not exist, its folder may be on another disk: then measure nothing.
    there = path is None or path.exists() or path.absolute().parent == folder
    facts += machine.disk_facts(folder, measure=disk and there)
    return Report(tuple(facts))


def find_matching_torchvision(torch_version: str) -> str | None:
    """Returns the releases of torchvision for a release of torch, such as ``torchvision==0.20.*`` for 2.5. Returns None
    if it is no torch 2."""
    release = re.match(r"2\.(\d+)(?:\.|$)", torch_version)
    return f"torchvision==0.{int(release[1]) + 15}.*" if release else None


def _library_fact(library: Library, found: dict[str, Any], torch_version: str = "") -> Fact:
    """Returns the fact about a library from its probe's answer: its version, not installed, or broken."""
    install = library.install
    if library.module == "torchvision" and (matching := find_matching_torchvision(torch_version)):
        install = install.replace("torchvision", f"'{matching}'", 1)
    if "error" not in found:
        text = ", ".join([found["version"], *found.get("details", ())])
        return Fact("versions", library.name, found["version"], text)
    if found.get("missing"):
        text = "not installed" if library.needed else f"not installed (optional: {install})"
        problem = f"packstore needs it: {install}" if library.needed else None
        return Fact("versions", library.name, None, text, problem)
    # Without these options pip does nothing, since the library is installed.
    again = install.replace("pip install", "pip install --force-reinstall --no-deps")
    problem = f"it is installed but does not work: {found['error']}; {again}"
    return Fact("versions", library.name, None, "broken", problem)


def _plug_in_facts(found: dict[str, Any]) -> list[Fact]:
    """Returns a fact for each plug-in, or one with the error if the probe failed."""
    if "error" in found:
        return [Fact("plug-ins", "all", None, "unknown: they do not load", found["error"])]
    return [
        Fact("plug-ins", f"{plug['what']} {printable(plug['name'])}", plug["distribution"], problem=plug["problem"])
        for plug in found["found"]
    ]


def _gpu_facts(cuda: dict[str, Any], torch: dict[str, Any]) -> list[Fact]:
    """Returns facts about the GPUs and the speed of copies to them; a single fact without a GPU."""
    if "error" in cuda:
        text = "unknown, since torch does not work" if "error" in torch else "unknown"
        return [Fact("GPU", "CUDA", None, text, None if "error" in torch else cuda["error"])]
    if not cuda["devices"]:
        built = cuda["built"]
        text = f"none: torch is built for CUDA {built} but finds no device" if built else "none: torch is a CPU build"
        problem = None
        if cuda["driver"] is not None and built is None:
            problem = f"there is an NVIDIA driver ({cuda['driver']}): a CUDA build of torch would use it"
        elif cuda["driver"] is not None:
            problem = (
                f"there is an NVIDIA driver ({cuda['driver']}) that torch cannot use: {cuda['reason'] or 'no device'}"
            )
        return [Fact("GPU", "CUDA", False, text, problem)]
    facts = [Fact("GPU", "CUDA", cuda["built"], f"{cuda['built']}, driver {cuda['driver'] or 'unknown'}")]
    for number, device in enumerate(cuda["devices"]):
        gigabytes = f"{device['free'] / 1e9:.1f} of {device['total'] / 1e9:.1f} GB free"
        facts.append(Fact("GPU", f"cuda:{number}", device, f"{device['name']}, {gigabytes}"))
    pinned = cuda["pinned"]
    if "error" in pinned:
        problem = f"page-locked memory is not available ({pinned['error']}): copies will be slow and block each other"
        facts.append(Fact("GPU", "pinned memory", None, "does not work", problem))
    else:
        text = f"{pinned['pinned'] / 1e9:.1f} GB/s to the GPU, {pinned['pageable'] / 1e9:.1f} GB/s from plain memory"
        facts.append(Fact("GPU", "pinned memory", pinned, text))
    return facts


_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from packstore.diagnose.doctor.probes import probe
found = probe(sys.argv[2])
sys.stdout.write("\\n" + json.dumps(found))
"""


def _run_probe(name: str) -> dict[str, Any]:
    """Runs the probe ``name`` in its own process; returns ``{"error": text}`` if the process fails."""
    command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), name]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it did not finish within {PROBE_SECONDS:.0f} seconds"}
    except OSError as error:
        return {"error": f"no process could be started to import it: {error.strerror or error}"}
    last = done.stdout.decode("utf-8", "replace").rpartition("\n")[2]
    try:
        answer: dict[str, Any] = json.loads(last)
    except ValueError:
        how = f"was killed by signal {-done.returncode}" if done.returncode < 0 else f"ended with {done.returncode}"
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return {"error": f"a process that imported it {how}" + (f": {last[:200]}" if last else "")}
    return answer


FASTER = 1.15
"""A decoder is called faster if its rate is more than so many times the other's."""


def decoder_facts(found: dict[str, Any]) -> list[Fact]:
    """Converts the answer of the probe ``decoders`` to facts. An error becomes one fact with a problem."""
    if "error" in found:
        return [Fact("JPEG", "decoder", None, "unknown", f"the decoders cannot be tried: {found['error']}")]
    return [
        *rate_facts(found["decoders"], found["used"]),
        _crops_fact(found["used"], found["regions"]),
        *_libturbojpeg_facts(found.get("libturbojpeg")),
        _engine_fact(found["engine_problem"]),
    ]


def rate_facts(decoders: dict[str, Any], used: str) -> list[Fact]:
    """Returns a fact for each decoder, the one in use first. This fact has a problem if another decoder is over 1.15
    times as fast."""
    rates = {name: d["images_per_second"] for name, d in decoders.items() if d["available"]}
    fastest = max(rates, key=lambda name: rates[name])
    problem = None
    if rates[fastest] > FASTER * rates[used]:
        gain = rates[fastest] / rates[used]
        problem = f"{fastest} is {gain:.2f} times as fast: use --decoder {fastest}, decoder={fastest!r}"
    facts = [Fact("JPEG", "decoder", used, f"{used}, {_describe_speed(decoders[used])}", problem)]
    for name, decoder in decoders.items():
        if name == used:
            continue
        text = _describe_speed(decoder) if decoder["available"] else f"not available: {decoder['reason']}"
        facts.append(Fact("JPEG", name, decoder, text))
    return facts


def _describe_speed(decoder: dict[str, Any]) -> str:
    """Describes version and rate of an available decoder."""
    return f"{decoder['version']}: {decoder['images_per_second']:,.0f} images/s of 500 x 375 on one core"


def _crops_fact(used: str, regions: str | None) -> Fact:
    """Returns a fact about how much of a file the decoder in use decodes for a crop."""
    if used == "engine":
        text = "little more than the crop is decoded if the file has a seek index, else also all that precedes it"
    elif regions is not None:
        text = f"only the crop's region of ordinary JPEG files is decoded, by {regions}"
    elif used in ("turbojpeg", "simplejpeg"):
        text = (
            "ordinary JPEG files are decoded whole; libturbojpeg 3 or newer decodes only the crop's region "
            "(PACKSTORE_TURBOJPEG can name its file)"
        )
    else:
        text = "ordinary JPEG files are decoded whole"
    return Fact("JPEG", "crops", regions, text)


def _libturbojpeg_facts(version: str | None) -> list[Fact]:
    """Returns a fact that says how to get a newer libjpeg-turbo, if ``version`` is below 3."""
    if version is None or int(version.partition(".")[0]) >= 3:
        return []
    text = (
        f"{version}: version 3 decodes regions of files that the engine does not decode (packstore guide "
        "troubleshooting: how to get it)"
    )
    return [Fact("JPEG", "libjpeg-turbo", version, text)]


def _engine_fact(reason: str | None) -> Fact:
    """Returns a fact about packstore's engine: it loads, or ``reason`` says why not."""
    if reason is None:
        return Fact("JPEG", "engine", True, "loaders decode, crop and resize with it")
    return Fact("JPEG", "engine", False, "not usable", f"loaders need packstore's engine: {reason}")
