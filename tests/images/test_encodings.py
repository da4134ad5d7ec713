"""Each encoding keeps the contract."""

from __future__ import annotations

from itertools import islice

from packstore.testing import EncodingSuite
from tests.internals import NORMALIZATIONS
from tests.makers.images import all_images

IMAGENET = NORMALIZATIONS["imagenet"]
ONE_SIZE = ({"size": 30, "fit": "pad", "normalization": IMAGENET}, {"size": (20, 24)})


class Suite(EncodingSuite):
    def files(self) -> dict[str, bytes]:
        return dict(islice(all_images().items(), 12)) | super().files()


class TestOriginal(Suite):
    encoding = "original"
    variants = ({}, {"check": "decode"}, {"progressive": "baseline"})


class TestJpeg(Suite):
    encoding = "jpeg"
    variants = ({}, {"resize": 30, "quality": 40})
    tolerance = 6


class TestUint8(Suite):
    encoding = "uint8"
    variants = ({}, {"size": 30})


class TestFloat16(Suite):
    encoding = "float16"
    variants = ONE_SIZE


class TestBFloat16(Suite):
    encoding = "bfloat16"
    variants = ONE_SIZE
    tolerance = 0.5


class TestFloat32(Suite):
    encoding = "float32"
    variants = ONE_SIZE
