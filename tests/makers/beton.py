"""``.beton`` files in the layout of ffcv 1.0, but that data begin where rows end and not with a page of 2 MiB."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PAGE = 1 << 21
TYPES = {"float": 0, "int": 1, "image": 2, "bytes": 3, "array": 4, "json": 5, "own": 255}
IMAGE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
ROW: dict[str, Any] = {
    "float": "<f8",
    "int": "<i8",
    "image": IMAGE,
    "array": "<u8",
    **dict.fromkeys(("bytes", "json"), np.dtype([("ptr", "<u8"), ("size", "<u8")])),
}


def write_beton(path: Path, fields: Mapping[str, str], samples: Sequence[Mapping[str, Any]]) -> Path:
    """A file of samples. An image is the bytes of a JPEG file with its height and width, or pixels."""
    described = b""
    for name, kind in fields.items():
        arguments = b""
        if kind == "array":
            first = samples[0][name]
            form = json.dumps([["", first.dtype.str]]).encode()
            arguments = np.array([*first.shape, *[0] * (32 - first.ndim), len(form)], "<u8").tobytes() + form
        described += struct.pack("<B16s1024s", TYPES[kind], name.encode(), arguments)
    row = np.dtype([(name, ROW[kind]) for name, kind in fields.items()], align=True)
    rows = np.zeros(len(samples), row)
    start = 24 + len(described) + rows.nbytes
    data, table = b"", []
    for n, sample in enumerate(samples):
        for name, kind in fields.items():
            value = sample[name]
            if kind in ("float", "int"):
                rows[n][name] = value
                continue
            if kind == "image":
                raw = isinstance(value, np.ndarray)
                content, height, width = (value.tobytes(), *value.shape[:2]) if raw else value
                rows[n][name] = (int(raw), width, height, start + len(data))
            elif kind == "array":
                content = value.tobytes()
                rows[n][name] = start + len(data)
            else:
                content = json.dumps(value).encode() + b"\0" if kind == "json" else value
                rows[n][name] = (start + len(data), len(content))
            table.append((n, start + len(data), len(content)))
            data += content
    at = start + len(data)
    header = struct.pack("<HHIQQ", 2, len(fields), PAGE, len(samples), at)
    head = header + described + rows.tobytes()
    path.write_bytes(head + data + np.array(table, "<u8").tobytes())
    return path
