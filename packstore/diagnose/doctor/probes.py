"""Questions about each library, asked in a process that does nothing else. Answers are JSON values.

An answer has ``version`` and perhaps ``details``, or ``error`` and, where there is just no such module, ``missing``.
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

from packstore.core.errors import PackstoreError, printable
from packstore.core.registry import ENCODINGS, EXPORTS, FORMATS, SOURCES

Answer = dict[str, Any]

_TIMED_SECONDS = 0.15
_COPIED_BYTES = 64 << 20
_DISTRIBUTIONS = {"PIL": "pillow", "turbojpeg": "PyTurboJPEG", "cv2": "opencv-python-headless"}


def probe(name: str) -> Answer:
    """The answer for a module, or for ``"decoders"``, ``"cuda"`` or ``"plug-ins"``. Never raises."""
    try:
        special = _SPECIAL.get(name)
        return special() if special is not None else _library(name)
    except ModuleNotFoundError as error:
        return {"error": _line(error), "missing": error.name == name}
    except BaseException as error:  # whatever a broken library does, SystemExit too
        return {"error": _line(error)}


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return (words if isinstance(error, PackstoreError) else f"{type(error).__name__}: {words}")[:300]


def _library(name: str) -> Answer:
    module = importlib.import_module(name)
    found = getattr(module, "__version__", None)
    if not isinstance(found, str):
        try:
            found = version(_DISTRIBUTIONS.get(name, name))
        except PackageNotFoundError:
            found = "of unknown version"
    details = _DETAILS.get(name)
    return {"version": found, "details": details(module) if details is not None else []}


def _torch(torch: Any) -> list[str]:
    return [f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build", f"{torch.get_num_threads()} threads"]


def _lmdb(lmdb: Any) -> list[str]:
    return ["LMDB " + ".".join(map(str, lmdb.version()))]


def _h5py(h5py: Any) -> list[str]:
    return [f"HDF5 {h5py.version.hdf5_version}"]


def _pillow(_: Any) -> list[str]:
    features = importlib.import_module("PIL.features")
    found = features.version("libjpeg_turbo")
    return [f"libjpeg-turbo {found}" if found else "libjpeg without turbo"]


def _turbojpeg(module: Any) -> list[str]:
    if not hasattr(module, "TurboJPEG"):
        raise ImportError("the module turbojpeg is not PyTurboJPEG's (pip uninstall turbojpeg)")
    from packstore.images.turbojpeg_library import turbo_version, wanted_library

    wanted = wanted_library() or None
    module.TurboJPEG(wanted)  # without a path it finds and loads the system's library; or it raises
    return [f"libjpeg-turbo {turbo_version(wanted) or 'of unknown version'}"]


_DETAILS: dict[str, Callable[[Any], list[str]]] = {
    "torch": _torch,
    "lmdb": _lmdb,
    "h5py": _h5py,
    "PIL": _pillow,
    "turbojpeg": _turbojpeg,
}


def _decoders() -> Answer:
    """Every decoder with its version or why it is not there, images a second on a drawn photo, which is used, and
    whether it decodes regions alone, and why the engine cannot be used."""
    from packstore.images.decoders import UNAVAILABLE, available_decoders, get_decoder
    from packstore.images.decoders.region import region_library
    from packstore.images.engine import engine_problem
    from packstore.images.turbojpeg_library import turbo_version, wanted_library

    found: dict[str, Answer] = {}
    for name, text in available_decoders().items():
        if text.startswith(UNAVAILABLE):
            found[name] = {"available": False, "reason": text.removeprefix(UNAVAILABLE)}
        else:
            found[name] = {"available": True, "version": text}
    seconds = _best_seconds({name: get_decoder(name) for name in found if found[name]["available"]}, _photo())
    for name, best in seconds.items():
        found[name]["images_per_second"] = 1 / best
    used = get_decoder()
    library = region_library() if used.has_regions else None
    version_of = None if library is None else turbo_version(library) or "3"
    regions = None if library is None else f"libjpeg-turbo {version_of} ({printable(library)})"
    return {
        "decoders": found,
        "used": used.name,
        "regions": regions,
        "engine_problem": engine_problem(),
        "libturbojpeg": turbo_version(wanted_library() or None) if found["turbojpeg"]["available"] else None,
    }


def _photo() -> bytes:
    """A JPEG of ImageNet's usual size with as much detail as a photo has (about 100 kB)."""
    np: Any = importlib.import_module("numpy")
    image: Any = importlib.import_module("PIL.Image")
    y, x = np.mgrid[0:375, 0:500]
    noise = np.random.default_rng(0).normal(0, 14, (375, 500, 3))
    pixels = 127 + 60 * np.sin(x / 23 + y / 31)[..., None] + 40 * np.cos(x / 7)[..., None] + noise
    buffer = io.BytesIO()
    image.fromarray(pixels.clip(0, 255).astype("uint8")).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def _best_seconds(decoders: dict[str, Any], data: bytes) -> dict[str, float]:
    """The fastest of many decodes, taken in turn: least disturbed by other work of the machine."""
    best = dict.fromkeys(decoders, float("inf"))
    until = time.perf_counter() + _TIMED_SECONDS * len(decoders)
    while True:
        for name, decoder in decoders.items():
            start = time.perf_counter()
            decoder.decode(data)
            best[name] = min(best[name], time.perf_counter() - start)
        if time.perf_counter() >= until:
            return best


def _cuda() -> Answer:
    torch: Any = importlib.import_module("torch")
    reason = None
    try:
        available = torch.cuda.is_available()
        if torch.version.cuda and not available:
            torch.cuda.init()  # says why not
    except (RuntimeError, AssertionError) as error:
        available, reason = False, _line(error)
    answer = {"built": torch.version.cuda, "driver": _driver(), "devices": [], "reason": reason, "pinned": {}}
    if not available:
        return answer
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        answer["devices"].append({"name": torch.cuda.get_device_name(number), "free": free, "total": total})
    try:
        answer["pinned"] = {
            "pinned": _copy_rate(torch, torch.empty(_COPIED_BYTES, dtype=torch.uint8).pin_memory()),
            "pageable": _copy_rate(torch, torch.ones(_COPIED_BYTES, dtype=torch.uint8)),
        }
    except RuntimeError as error:
        answer["pinned"] = {"error": _line(error)}
    return answer


def _copy_rate(torch: Any, host: Any) -> float:
    """Bytes a second from ``host`` to the first GPU."""
    there = torch.empty_like(host, device="cuda")
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return float(host.nbytes) / min(seconds)


def _driver() -> str | None:
    """Version of the NVIDIA driver; None without one."""
    file = Path("/proc/driver/nvidia/version")
    if file.exists():
        found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", file.read_text())
        return found[1] if found else "of unknown version"
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().partition("\n")[0] or None


def _plug_ins() -> Answer:
    return {
        "found": [
            {"what": registry.what, "name": name, "distribution": distribution, "problem": problem}
            for registry in (FORMATS, SOURCES, ENCODINGS, EXPORTS)
            for name, distribution, problem in registry.examine()
        ]
    }


_SPECIAL: dict[str, Callable[[], Answer]] = {"decoders": _decoders, "cuda": _cuda, "plug-ins": _plug_ins}
