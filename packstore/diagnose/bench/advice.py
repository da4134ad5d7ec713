"""From measured rates to what limits training: pure arithmetic, without a clock or a file.

The model is plain. Reading from the disk, copying to the device and the training step are ceilings, whatever the number
of cores. Reading from memory, decoding and augmenting cost processor time an image, and share the cores. The lowest of
the ceilings and the cores' rate is the limit; how much of it the loader reaches end to end is measured, and every
extrapolation to another number of cores is scaled by that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from packstore.core.registry import FORMATS

WORTHWHILE = 1.15
"""A way of packing is advised when the loader was that many times as fast with it."""

FROM_DISK = 0.2
"""Reading is taken to come from the disk where at least this share of its bytes did."""

REACHED = 0.7
"""Below this share of what its stages allow, the loader is held back by something else, which is said."""

WASTEFUL = 1.5
"""A store is called wasteful when it takes that many times the bytes of what it holds."""

CPU_STAGES = ("read", "decode", "augment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured. All rates are images a second.

    Attributes:
        threads: Threads that the loader used.
        cores: Cores that the process may use.
        read_first: With all threads, of records in random order that were not read before in this run.
        read_again: The same records once more: from the page cache.
        read: The same with one thread.
        decode: With one thread; None for stores of pixels, which are not decoded.
        augment: Crop, resize and flip with one thread; None where there are none.
        copy: Batches to the device; on the CPU one pass over memory.
        loader: End to end, with ``threads``.
        resident: Whether the loader held all images in device memory, so that nothing was read or decoded.
        disk_share: Share of the first pass's bytes that came from the disk, 0 … 1 (and more where a disk reads ahead).
        held: Whether the page cache can hold all records, so that only the first epoch waits for the disk.
        target: What training takes, or None when that is not known.
        on_gpu: Whether the device is a GPU.
    """

    threads: int
    cores: int
    read_first: float
    read_again: float
    read: float
    decode: float | None
    augment: float | None
    copy: float
    loader: float
    resident: bool = False
    disk_share: float = 0.0
    held: bool = False
    target: float | None = None
    on_gpu: bool = False

    @property
    def from_disk(self) -> bool:
        """Whether the first pass waited for the disk."""
        return self.disk_share >= FROM_DISK and self.read_first < self.read_again

    @property
    def disk_limits(self) -> bool:
        """Whether every epoch will wait for the disk."""
        return self.from_disk and not self.held


@dataclass(frozen=True, slots=True)
class Trial:
    """The loader's rate with a sample of the images packed in another way.

    Attributes:
        how: Options of ``packstore convert``; empty for the sample as it is, which the others are compared with.
        images_per_second: End to end, with the threads of the whole run.
        record_bytes: Mean size of an image's record.
        mode: ``resident`` or ``streaming``.
        changes: What becomes of the images, in words; empty when they stay as they are.
        augment: What was done with them, in words, where that is something else than with the others.
    """

    how: str
    images_per_second: float
    record_bytes: float
    mode: str = "streaming"
    changes: str = ""
    augment: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do: what, the measurement that speaks for it, and the options of ``packstore convert``, if any."""

    what: str
    why: str
    options: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The stage that limits training.

    Attributes:
        stage: ``read``, ``decode``, ``augment``, ``copy``, ``model`` (training itself) or ``loader`` (the work of
            putting batches together, where everything is resident).
        why: The figures behind it, in words.
        shares: Share of the processor's time by stage, 0 … 1, adding up to 1; empty when resident.
        cores: Cores from which on the processor's work is not the limit any more; None when resident.
        then: What is the limit from there on: ``read``, ``copy`` or ``model``; None when resident.
        then_rate: Its images a second; None when resident.
    """

    stage: str
    why: str
    shares: dict[str, float]
    cores: int | None
    then: str | None
    then_rate: float | None


def core_seconds(rates: Rates) -> dict[str, float]:
    """Seconds of one core that an image costs, by stage."""
    found = {name: getattr(rates, name) for name in CPU_STAGES}
    return {name: 1 / rate for name, rate in found.items() if rate}


def ceilings(rates: Rates) -> dict[str, float]:
    """Rates that more cores do not raise, images a second."""
    found = {"copy": rates.copy}
    if rates.disk_limits:
        found["read"] = rates.read_first
    if rates.target is not None:
        found["model"] = rates.target
    return found


def efficiency(rates: Rates) -> float:
    """The loader's rate as a share of what its stages allow, 0.05 … 1 (never 0, since others divide by it)."""
    allowed = min(_cores_rate(rates), *(rate for name, rate in ceilings(rates).items() if name != "model"))
    return min(1.0, max(0.05, rates.loader / allowed))


def cores_for(rate: float, rates: Rates) -> int:
    """Cores that the processor's work needs for ``rate`` images a second, at the loader's measured efficiency."""
    return max(1, math.ceil(rate * sum(core_seconds(rates).values()) / efficiency(rates) - 1e-9))


def judge(rates: Rates) -> Verdict:
    """The stage that limits training, and the number of cores from which on it is not the processor's work."""
    if rates.resident:
        enough = rates.target is not None and rates.loader >= rates.target
        where = "device memory" if rates.on_gpu else "memory"
        why = f"all images lie in {where}: nothing is read or decoded, {rates.loader:,.0f} images/s"
        return Verdict("model" if enough else "loader", why, {}, None, None, None)
    costs = core_seconds(rates)
    total = sum(costs.values())
    shares = {name: cost / total for name, cost in costs.items()}
    limits = ceilings(rates)
    then = min(limits, key=lambda name: limits[name])
    if rates.target is not None and rates.loader >= rates.target:
        why = f"the loader gives {rates.loader:,.0f} images/s and training takes {rates.target:,.0f}"
        return Verdict("model", why, shares, cores_for(limits[then], rates), then, limits[then])
    busiest = max(shares, key=lambda name: shares[name])
    fixed = {name: rate for name, rate in limits.items() if name != "model"}
    lowest = min(fixed, key=lambda name: fixed[name])
    if fixed[lowest] < _cores_rate(rates):
        what = "the disk gives" if lowest == "read" else "copying allows" if rates.on_gpu else "memory allows"
        why = f"{what} {fixed[lowest]:,.0f} images/s, the processor's work {_cores_rate(rates):,.0f}"
        stage = lowest
    else:
        why = f"{shares[busiest]:.0%} of the {total * 1e3:.2g} ms of one core that an image costs"
        stage = busiest
    return Verdict(stage, why, shares, cores_for(limits[then], rates), then, limits[then])


def advise(
    rates: Rates, verdict: Verdict, trials: Sequence[Trial], *, format: str, payload_bytes: float, disk_bytes: float
) -> list[Advice]:
    """Advice that the figures support, the most useful first; may be empty.

    Args:
        rates: What was measured.
        verdict: What :func:`judge` says of it.
        trials: Other ways of packing that were tried; the first one is the sample as it is.
        format: Name of the store's format.
        payload_bytes: Mean bytes of a record's image.
        disk_bytes: Mean bytes that a record takes on disk.
    """
    found: list[Advice] = []
    if verdict.stage == "model":
        found.append(Advice("nothing has to be done for loading: a faster model step is what would help", verdict.why))
    else:
        found += _more_threads(rates, verdict)
        found += _other_packing(rates, verdict, trials)
        found += _reading(rates, verdict)
        if not rates.resident and efficiency(rates) < REACHED:
            why = f"end to end it is {efficiency(rates):.0%} of what the stages allow by themselves"
            found.append(
                Advice("measure again while nothing else runs: something beside the stages holds loading up", why)
            )
        if verdict.stage == "copy" and rates.on_gpu:
            what = "a store of one image size that fits into device memory can stay there: resident=True"
            found.append(Advice(what, verdict.why))
    padding = FORMATS[format].padding
    if padding and disk_bytes > WASTEFUL * payload_bytes:
        why = f"{disk_bytes:,.0f} bytes on disk for {payload_bytes:,.0f} of image: {padding}"
        found.append(Advice("pack such small images into HDF5 or .pth", why))
    return found


def _cores_rate(rates: Rates) -> float:
    return min(rates.threads, rates.cores) / sum(core_seconds(rates).values())


def _more_threads(rates: Rates, verdict: Verdict) -> list[Advice]:
    if verdict.stage not in CPU_STAGES or ceilings(rates).get(verdict.stage) is not None:
        return []
    per_thread = rates.loader / rates.threads
    if rates.threads < rates.cores:
        why = f"{rates.threads} of {rates.cores} cores were used, at {per_thread:,.0f} images/s each"
        return [Advice(f"use more threads: workers={rates.cores}", why)]
    needed = None if rates.target is None else cores_for(rates.target, rates)
    if rates.target is None or needed is None or needed <= rates.cores:
        return []
    why = f"{rates.target:,.0f} images/s are wanted, and a core gives {per_thread:,.0f} with the store as it is"
    return [Advice(f"use a machine with {needed} cores, or pack the store so that an image is less work", why)]


def _other_packing(rates: Rates, verdict: Verdict, trials: Sequence[Trial]) -> list[Advice]:
    if len(trials) < 2 or verdict.stage not in (*CPU_STAGES, "loader"):
        return []
    now, others = trials[0], trials[1:]
    found: list[tuple[float, Advice]] = []
    for trial in others:
        gain = trial.images_per_second / now.images_per_second
        size = trial.record_bytes / now.record_bytes
        faster = f"{gain:.1f} times as fast on a sample, "
        if verdict.stage == "read" and rates.disk_limits:
            gain, faster = 1 / size, ""  # what comes from a disk comes as fast as its bytes do
        if gain < WORTHWHILE:
            continue
        kept = f"; {trial.changes}" if trial.changes else "; the pixels stay the same"
        if trial.augment:
            kept += f"; with a {trial.augment}"
        why = f"{faster}{_times(size)}{kept}"
        what = f"pack it with {trial.how}" + (", to be held in device memory" if trial.mode == "resident" else "")
        found.append((gain, Advice(what, why, trial.how)))
    return [advice for _, advice in sorted(found, key=lambda pair: -pair[0])]


def _reading(rates: Rates, verdict: Verdict) -> list[Advice]:
    if verdict.stage != "read" or not rates.disk_limits:
        return []
    why = f"{rates.read_first:,.0f} images/s at first, {rates.read_again:,.0f} when they were read again"
    return [
        Advice("give the machine enough RAM to keep the store in its page cache, or put it on a faster disk", why),
        Advice("shuffle in blocks (PackedLoader: block=1024), which reads neighbouring records together", why),
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.2g} times the bytes" if ratio < 0.95 or ratio > 1.05 else "about the same bytes"
