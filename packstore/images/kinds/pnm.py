"""PNM: the formats P1 to P6, after netpbm's pages about them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, mode_of
from packstore.images.header import Data, HeaderError, ImageInfo
from packstore.images.kinds.base import GRAY_TO_COLOUR, ImageFile, damaged_image

# Numbers of at most nine digits after blanks or comments; one blank ends the header.
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_PBM = re.compile(rb"P[14]%s(\d{1,9})%s(\d{1,9})\s" % (_GAP, _GAP))
_PGM = re.compile(rb"P[2356]%s(\d{1,9})%s(\d{1,9})%s(\d{1,9})\s" % (_GAP, _GAP, _GAP))
_PLAIN_HEADER = re.compile(rb"P([2356])((?:\s|#[^\r\n]*[\r\n])+)(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s")


class Netpbm(ImageFile):
    """A netpbm file. Reads more than 8 bits as stored; Pillow would scale them to 16."""

    plugin = "PpmImagePlugin", "PpmImageFile"
    hides_depth = True

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        form = data[1] - 0x30
        header = (_PBM if form in (1, 4) else _PGM).match(data)
        if header is None:
            if len(data) < 4096 and len(data.split()) < 5:
                raise IndexError
            raise HeaderError(f"is not an image (begins with {data[:8]!r}, but has no netpbm header)")
        width, height = int(header[1]), int(header[2])
        limit = 1 if form in (1, 4) else int(header[3])
        if not 1 <= limit <= 65535:
            raise HeaderError(f"is damaged: a netpbm image with the maximum {limit}")
        components = 3 if form in (3, 6) else 1
        samples = width * height * components
        if whole:
            found = len(data) - header.end()
            if form == 4:
                need = (width + 7) // 8 * height
            elif form >= 5:
                need = samples * (1 if limit < 256 else 2)
            else:  # plain text: values between blanks, or in P1 digits that need none
                need, rest = samples, data[header.end() :]
                found = sum(map(len, rest.split())) if form == 1 else len(rest.split())
            if found < need:
                unit = "bytes" if form >= 4 else "values"
                raise HeaderError(f"is truncated: netpbm pixels take {need} {unit}, the file has {found}")
        return ImageInfo("pnm", width, height, components, limit.bit_length())

    @staticmethod
    def find_conversion_to_rgb(data: Data, info: ImageInfo) -> tuple[str, ...] | None:
        return None if info.precision > 8 else GRAY_TO_COLOUR if info.components == 1 else ()

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        info = self.info
        if info.precision <= 8 or frame:
            return super().read_frame(frame, gray=gray)
        data, count = bytes(self.data), info.width * info.height * info.components
        match = _PLAIN_HEADER.match(data)
        if match is None:
            raise DecodeError("damaged image: a netpbm header with comments between its numbers; write it without them")
        with damaged_image():
            if match[1] in b"56":
                values = np.frombuffer(data, ">u2", count, match.end()).astype(np.uint16)
            else:
                values = np.array(data[match.end() :].split()[:count], np.uint16)
            values = values.reshape(info.height, info.width, info.components)
        return values, mode_of(info.components, "uint16")
