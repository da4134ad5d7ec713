"""``packstore bench``: finds what limits training with a store on this machine, and how to pack it for more speed.

Here are its options, which import nothing heavy: ``packstore bench --help`` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from packstore.core.errors import UsageError
from packstore.core.options import check_options, option

AUGMENTS = ("crop", "none")


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of :func:`packstore.diagnose.bench.run.bench`.

    Raises :class:`UsageError` for numbers out of range and for unknown operations. Raises it also for ``size`` together
    with operations: these have their own sizes.
    """

    split: str | None = option(
        None,
        "Split to load; None if the store has at most one.",
        "Split to load, if there are several.  [default: train]",
        metavar="NAME",
    )
    batch_size: int = option(256, "Batch size.", metavar="N", least=1)
    size: int | None = option(
        None,
        "Side of the crops in pixels.",
        "Side of the crops.",
        none="the images' shorter side if all have one size, else 224",
        metavar="PX",
        least=1,
    )
    augment: str = option(
        "crop",
        '``crop``, ``none``, or operations as text, such as ``"RandomResizedCrop(160), RandomHorizontalFlip()"``, see '
        ":func:`packstore.seeing.loaded.parse_augment`. ``crop`` is a random resized crop and flip. For images "
        "that have the size already, ``crop`` is a random crop with padding and flip. ``none`` takes whole images, "
        "resized if their sizes may differ.",
        "crop: random resized crop and flip; if all images have the size already, padded random crop and flip. none: "
        "whole images. Or operations of packstore.augment, such as 'RandomResizedCrop(160), RandomHorizontalFlip()'.",
        metavar="HOW",
    )
    workers: int | None = option(None, "Threads of the loader.", none="one per core", metavar="N", least=1)
    seconds: float = option(
        2.0,
        "Time for each stage; some take half of it.",
        "Time for each of about ten stages.",
        metavar="S",
        least=0,
        most=86_400,
    )
    device: str = option("cpu", "Device of the batches.", None)
    target: float | None = option(None, "Images a second that the model takes.", metavar="IMG/S")
    cold: bool = option(
        False,
        "First drop the store's files from the page cache.",
        "First drop the store's files from the page cache, to measure the disk.",
    )
    tries: bool = option(True, "Also pack samples with other options and load them.", None)

    def __post_init__(self) -> None:
        from packstore.seeing.loaded import parse_options

        check_options(self)
        for name in ("seconds", "target"):
            value = getattr(self, name)
            if value is not None and not (0 < value < float("inf")):
                raise UsageError(f"{name} should be above 0, got {value!r}")
        if self.augment not in AUGMENTS:
            try:
                parse_options(self.augment)
            except UsageError as error:
                raise UsageError(f"augment should be crop, none or operations: {error}") from None
            if self.size is not None:
                raise UsageError("size= is for augment='crop' and 'none': operations have their own sizes")
