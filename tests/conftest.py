"""Fixtures for all tests, tiers of tests, Hypothesis profiles."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.makers.tiers import (
    CHANGED,
    FAST_SECONDS,
    SALT,
    SEED,
    assign_tiers,
    drop_soak_cases,
    import_suites,
    is_drawn,
    limit_extra_cases,
    longest_first,
    processor_time,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from tests.makers.real_cuda import RealDevice
    from tests.makers.s3 import Double
    from tests.makers.simulated_cuda import Simulation

ROOT = Path(__file__).resolve().parent.parent

# Threads of torch that wait for each other and turn in circles meanwhile: on a busy machine four fifths of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

UNTIL = int(os.environ.get("PACKSTORE_TEST_UNTIL", "0"))
"""When the time of this run is over, in seconds since 1970; 0: never."""

MOST = int(os.environ.get("PACKSTORE_TEST_MOST", "0"))
"""Tests that are drawn; 0: all. If the time is limited, more than there is time for, since each that is skipped takes
some."""

# No deadlines and no complaints of slowness: the machines are shared, so time says nothing about the code.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", _COMMON, max_examples=8)
settings.register_profile("dev", _COMMON, max_examples=25)
# The same examples each time, so that a red CI run means that a change broke something.
settings.register_profile("ci", _COMMON, max_examples=25, derandomize=True, print_blob=True)
settings.register_profile("soak", _COMMON, max_examples=1000, print_blob=True)
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
settings.load_profile(_PROFILE)
if _PROFILE != "soak":
    # Hypothesis tries constants of the modules that happen to be loaded, so examples would depend on the tests before.
    # It takes 8 s to find them where no earlier run has left them.
    with contextlib.suppress(ImportError):  # an older version does not
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants = lambda: providers._local_constants

# A shell that starts the tests in the background may have these ignored, and so would all that the tests start.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


def pytest_report_header() -> list[str]:
    changed = " ".join(sorted(CHANGED))
    return [f"PACKSTORE_TEST_SEED={SEED} PACKSTORE_TEST_SALT={SALT}", f"PACKSTORE_TEST_CHANGED={changed!r}"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker of pytest-xdist begins with another file. Pytest rewrites the assertions of a file once, which takes
    12 s for all of them: each worker rewrites some files, and finds the others in the cache."""
    if session.config.getoption("dist", "no") != "no":
        return  # the process that starts the workers collects nothing
    gc.disable()  # until tests begin, since what is made here stays: a fifth less time
    if "PYTEST_XDIST_WORKER" in os.environ and all(map(os.path.isdir, session.config.args)):
        files = sorted({str(file) for place in session.config.args for file in Path(place).rglob("test_*.py")})
        worker, workers = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = len(files) * worker // workers
        session.config.args = files[first:] + files[:first]
    if _is_drawing(session.config):
        import_suites(session.config.args)


def _is_drawing(config: pytest.Config) -> bool:
    """Returns whether cases are drawn. They are not for ``soak``, nor where a test is named."""
    return "not soak" in config.option.markexpr and not any("::" in name for name in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str) -> list[pytest.Item] | None:
    if isinstance(collector, pytest.Class) and _is_drawing(collector.config) and not is_drawn(collector.obj, name):
        return []
    return None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    yield
    if metafunc._calls and _is_drawing(metafunc.config):
        drop_soak_cases(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    items.sort(key=lambda item: item.path)  # all workers have to have the same order
    assign_tiers(items)
    limit_extra_cases(items)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    yield  # deselects
    if MOST:
        random.Random(SEED).shuffle(items)
        del items[MOST:]
    if not UNTIL:
        items[:] = longest_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_collection_finish() -> None:
    """What is there when tests begin stays: a test that collects garbage need not look through all of it."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if 0 < UNTIL < time.time():
        pytest.skip("the time of this run is over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = processor_time()
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor time", processor_time() - before))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Lists what has come into the fast tier and is slow: the tier keeps its promise only if somebody marks it."""
    if "not slow" in config.option.markexpr:
        calls = [report for report in terminalreporter.stats.get("passed", []) if report.when == "call"]
        spent = [(dict(report.user_properties).get("processor time", 0), report.nodeid) for report in calls]
        slow = sorted((pair for pair in spent if pair[0] > FAST_SECONDS), reverse=True)
        if slow:
            terminalreporter.section(f"more than {FAST_SECONDS} s of processor time: mark them `slow`?")
            for seconds, test in slow:
                terminalreporter.write_line(f"{seconds:.2f} s {test}")


Need = Callable[[str, bool], None]


class SharedData:
    """The folder of real data beside the repository; what is asked for and absent skips the test, by its name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __truediv__(self, name: str) -> Path:
        path = self.root / name
        if not path.exists():
            pytest.skip(f"no real data: {name} is not in {self.root} (PACKSTORE_TEST_DATA names another folder)")
        return path

    __call__ = __truediv__


@pytest.fixture(scope="session")
def shared_data() -> SharedData:
    """Real data: ``shared_data / "imagenet-600"`` is its path, or skips the test where it is not present."""
    return SharedData(Path(os.environ.get("PACKSTORE_TEST_DATA") or ROOT.parent / "shared" / "data"))


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the engine one that cannot be loaded, when it is called."""

    def remove() -> None:
        monkeypatch.setattr("packstore.core.compiled.load_once", lambda: (None, "it is gone; fetch it"))
        monkeypatch.setattr("packstore.core.compiled.load_with_gil", lambda: None)
        monkeypatch.setattr("packstore.images.decoders._loaded", {})

    return remove


@pytest.fixture(scope="session")
def need() -> Need:
    """``need("turbojpeg", available)`` skips the test when that is not available, or fails it where it is promised.

    The environment variable ``PACKSTORE_TEST_REQUIRE`` lists with commas what is promised; ``tools/test`` sets it
    when the system's packages are installed, so that a test for them cannot quietly stop running.
    """
    promised = os.environ.get("PACKSTORE_TEST_REQUIRE", "").split(",")

    def check(name: str, available: bool) -> None:
        if not available and name in promised:
            pytest.fail(f"{name} is not available, and PACKSTORE_TEST_REQUIRE says that it must be")
        if not available:
            pytest.skip(f"{name} is not available here")

    return check


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that depend on the seed of the run and the name of the test."""
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image folder of ``packstore demo``, made once a session: for reading only."""
    from tests.internals import make_demo

    path = tmp_path_factory.mktemp("demo") / "images"
    make_demo(path)
    return path


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images in two splits and three classes, made once a session: for reading only."""
    from tests.makers.datasets import make_folder

    return make_folder(tmp_path_factory.mktemp("folder") / "photos")


Stores = Callable[[str], Path]


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Small stores by kind and suffix, ``stores("files.lmdb")``, each made once: for reading only.

    ``files`` (image files of differing sizes), ``pixels`` (ragged uint8), ``square``; of CIFAR: ``cifar`` (uint8),
    ``floats``, ``bfloats``, ``shards``.
    """
    import packstore
    from tests.makers.datasets import make_cifar10, make_folder

    root = tmp_path_factory.mktemp("stores")
    folder, cifar = make_folder(root / "photos", per_class=7), make_cifar10(root)
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = root / name
            source, options = {
                "files": (folder, {"encoding": "original"}),
                "pixels": (folder, {"encoding": "uint8"}),
                "square": (folder, {"encoding": "uint8", "size": 32}),
                "cifar": (cifar, {"encoding": "uint8"}),
                "floats": (cifar, {"encoding": "float16"}),
                "bfloats": (cifar, {"encoding": "bfloat16"}),
                "shards": (cifar, {"encoding": "uint8", "shard_size": 50_000}),
            }[name.partition(".")[0]]
            packstore.convert(source, made[name], **options)
        return made[name]

    return get


@pytest.fixture(scope="session")
def _moto_port() -> Iterator[int]:
    from tests.makers.s3 import moto_process

    with moto_process() as port:
        yield port


@pytest.fixture
def s3(_moto_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL below which nothing lies yet, in a bucket of a real S3 server on this machine: moto, one a session."""
    from tests.makers.s3 import BUCKET, environment

    _set_aws(monkeypatch, environment(_moto_port))
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def s3_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    """An empty S3 with faults, at ``s3://bucket``; see :class:`tests.makers.s3.Double`."""
    from tests.makers.s3 import double, environment

    with double() as state:
        _set_aws(monkeypatch, environment(state.port))
        yield state


def _set_aws(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


Simulate = Callable[["str | int"], "AbstractContextManager[Simulation | RealDevice]"]


@pytest.fixture
def simulate(need: Need) -> Simulate:
    """:func:`tests.makers.simulated_cuda.simulated_cuda`; skips where torch forbids it. Where there is a real device,
    :func:`tests.makers.real_cuda.real_cuda`."""
    import torch

    from tests.makers.real_cuda import real_cuda
    from tests.makers.simulated_cuda import is_possible, simulated_cuda

    if torch.cuda.is_available():
        return real_cuda
    need("simulated-cuda", is_possible())
    return simulated_cuda


@pytest.fixture(params=["device", "late", "ahead"])
def cuda(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A CUDA device: the machine's own, or the simulated one in two orders of its work.

    Without a real one those tests are skipped, or fail where PACKSTORE_REQUIRE_CUDA=1 promises it.
    """
    import torch

    if request.param != "device":
        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device: nothing is simulated")
        with request.getfixturevalue("simulate")(request.param):
            yield torch.device("cuda", 0)
        return
    if not torch.cuda.is_available():
        if os.environ.get("PACKSTORE_REQUIRE_CUDA") == "1":
            pytest.fail("PACKSTORE_REQUIRE_CUDA=1, but torch sees no CUDA device")
        pytest.skip("no CUDA device")
    yield torch.device("cuda", torch.cuda.current_device())
