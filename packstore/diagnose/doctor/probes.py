"""Probes of libraries, each run in a separate process. Answers are JSON values.

An answer has ``version`` and perhaps ``details``; or ``error``, and ``missing`` if the module is not installed.
"""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packstore.core.errors import PackstoreError, error_line, printable
from packstore.core.registry import COLUMN_TYPES, ENCODINGS, EXPORTS, FORMATS, SOURCES

Answer = dict[str, Any]

_TIMED_SECONDS = 0.15
_COPIED_BYTES = 64 << 20
_DISTRIBUTIONS = {"PIL": "pillow", "turbojpeg": "PyTurboJPEG", "cv2": "opencv-python-headless"}


def probe(name: str) -> Answer:
    """Imports and examines a module, or examines ``"decoders"``, ``"cuda"`` or ``"plug-ins"``. Any error becomes the
    answer."""
    try:
        special = _SPECIAL.get(name)
        return special() if special is not None else _examine_library(name)
    except ModuleNotFoundError as error:
        return {"error": _describe_error(error), "missing": error.name == name}
    except BaseException as error:  # a broken library may raise anything, also SystemExit
        return {"error": _describe_error(error)}


def _describe_error(error: BaseException) -> str:
    """Returns an error as one line, which begins with its type unless packstore raised it."""
    line = error_line(error)
    return line if isinstance(error, PackstoreError) else f"{type(error).__name__}: {line}"


def _examine_library(name: str) -> Answer:
    """Imports a library, and returns its version and details."""
    module = importlib.import_module(name)
    text = getattr(module, "__version__", None)
    if not isinstance(text, str):
        try:
            text = version(_DISTRIBUTIONS.get(name, name))
        except PackageNotFoundError:
            text = "of unknown version"
    details = _DETAILS.get(name)
    return {"version": text, "details": details(module) if details is not None else []}


def _describe_pillow(_: Any) -> list[str]:
    """Returns the version of Pillow's JPEG library."""
    features = importlib.import_module("PIL.features")
    turbo = features.version("libjpeg_turbo")
    return [f"libjpeg-turbo {turbo}" if turbo else "libjpeg without turbo"]


def _describe_turbojpeg(module: Any) -> list[str]:
    """Loads PyTurboJPEG's library and returns its version."""
    if not hasattr(module, "TurboJPEG"):
        raise ImportError("the module turbojpeg is not PyTurboJPEG's (pip uninstall turbojpeg)")
    from packstore.images.decoders.backends import library_from_environment, turbo_version

    wanted = library_from_environment() or None
    module.TurboJPEG(wanted)  # without a path it loads the system's library; raises if it cannot
    return [f"libjpeg-turbo {turbo_version(wanted) or 'of unknown version'}"]


_DETAILS: dict[str, Callable[[Any], list[str]]] = {
    "torch": lambda torch: [
        f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build",
        f"{torch.get_num_threads()} threads",
    ],
    "lmdb": lambda lmdb: ["LMDB " + ".".join(map(str, lmdb.version()))],
    "h5py": lambda h5py: [f"HDF5 {h5py.version.hdf5_version}"],
    "PIL": _describe_pillow,
    "turbojpeg": _describe_turbojpeg,
}


def _probe_decoders() -> Answer:
    """Examines all decoders, and measures their speed on a generated photo."""
    from packstore.images.decoders import UNAVAILABLE, available_decoders, get_decoder
    from packstore.images.decoders.backends import find_region_library, library_from_environment, turbo_version
    from packstore.images.engine import engine_problem

    decoders: dict[str, Answer] = {}
    for name, text in available_decoders().items():
        if text.startswith(UNAVAILABLE):
            decoders[name] = {"available": False, "reason": text.removeprefix(UNAVAILABLE)}
        else:
            decoders[name] = {"available": True, "version": text}
    seconds = _measure_best_seconds(
        {name: get_decoder(name) for name in decoders if decoders[name]["available"]}, _make_photo()
    )
    for name, best in seconds.items():
        decoders[name]["images_per_second"] = 1 / best
    used = get_decoder()
    library = find_region_library() if used.has_regions else None
    version_of = None if library is None else turbo_version(library) or "3"
    regions = None if library is None else f"libjpeg-turbo {version_of} ({printable(library)})"
    return {
        "decoders": decoders,
        "used": used.name,
        "regions": regions,  # library that decodes regions; None for none
        "engine_problem": engine_problem(),  # None if the engine loads
        # The version of PyTurboJPEG's library; None if unknown.
        "libturbojpeg": turbo_version(library_from_environment() or None)
        if decoders["turbojpeg"]["available"]
        else None,
    }


def _make_photo() -> bytes:
    """Generates a JPEG of 500 x 375 pixels with the detail of a photo, about 100 kB."""
    np: Any = importlib.import_module("numpy")
    image: Any = importlib.import_module("PIL.Image")
    y, x = np.mgrid[0:375, 0:500]
    noise = np.random.default_rng(0).normal(0, 14, (375, 500, 3))
    pixels = 127 + 60 * np.sin(x / 23 + y / 31)[..., None] + 40 * np.cos(x / 7)[..., None] + noise
    buffer = io.BytesIO()
    image.fromarray(pixels.clip(0, 255).astype("uint8")).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def _measure_best_seconds(decoders: dict[str, Any], data: bytes) -> dict[str, float]:
    """Measures the seconds of each decoder's fastest decode of ``data``."""
    best = dict.fromkeys(decoders, float("inf"))
    until = time.perf_counter() + _TIMED_SECONDS * len(decoders)
    while True:
        # The decoders take turns, so that other work on the machine disturbs all alike.
        for name, decoder in decoders.items():
            start = time.perf_counter()
            decoder.decode(data)
            best[name] = min(best[name], time.perf_counter() - start)
        if time.perf_counter() >= until:
            return best


def _probe_cuda() -> Answer:
    """Examines torch's CUDA, and measures copies to the first GPU."""
    torch: Any = importlib.import_module("torch")
    reason = None
    try:
        available = torch.cuda.is_available()
        if torch.version.cuda and not available:
            torch.cuda.init()  # raises with the reason
    except (RuntimeError, AssertionError) as error:
        available, reason = False, _describe_error(error)
    answer = {
        "built": torch.version.cuda,  # None if torch is built without CUDA
        "driver": _find_driver_version(),  # None without an NVIDIA driver
        "devices": [],
        "reason": reason,  # why torch, built for CUDA, finds no GPU
        "pinned": {},  # bytes per second from each kind of memory, or ``error``; empty without a GPU
    }
    if not available:
        return answer
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        answer["devices"].append({"name": torch.cuda.get_device_name(number), "free": free, "total": total})
    try:
        answer["pinned"] = {
            "pinned": _measure_copy_rate(torch, torch.empty(_COPIED_BYTES, dtype=torch.uint8).pin_memory()),
            "pageable": _measure_copy_rate(torch, torch.ones(_COPIED_BYTES, dtype=torch.uint8)),
        }
    except RuntimeError as error:
        answer["pinned"] = {"error": _describe_error(error)}
    return answer


def _measure_copy_rate(torch: Any, host: Any) -> float:
    """Measures copying ``host`` to the first GPU, in bytes per second of the fastest of four copies."""
    there = torch.empty_like(host, device="cuda")
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return float(host.nbytes) / min(seconds)


def _find_driver_version() -> str | None:
    """Returns the version of the NVIDIA driver, or None if there is none."""
    file = Path("/proc/driver/nvidia/version")
    if file.exists():
        match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", file.read_text())
        return match[1] if match else "of unknown version"
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().partition("\n")[0] or None


def _probe_plug_ins() -> Answer:
    """Loads the plug-ins of all registries, and returns them as the list ``found``."""
    return {
        "found": [
            # ``problem`` is None if the plug-in works.
            {"what": registry.what, "name": name, "distribution": distribution, "problem": problem}
            for registry in (FORMATS, SOURCES, ENCODINGS, EXPORTS, COLUMN_TYPES)
            for name, distribution, problem in registry.check_plugins()
        ]
    }


_SPECIAL: dict[str, Callable[[], Answer]] = {
    "decoders": _probe_decoders,
    "cuda": _probe_cuda,
    "plug-ins": _probe_plug_ins,
}
