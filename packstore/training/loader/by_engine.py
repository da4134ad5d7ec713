"""Crops and finishes resident images on the CPU, with the engine in threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch

from packstore.core.parallel import default_workers
from packstore.images.engine import Requests, get_engine
from packstore.training.loader.looks import Look
from packstore.training.loader.pipeline import Pipeline
from packstore.training.ring import HostTransport
from packstore.training.values import as_numpy

_LEAST = 1 << 15
"""Minimum number of pixels per thread."""


class EngineGatherer:
    """Gathers resident images by index. In the same pass, the engine crops, resizes, mirrors and normalises them.

    Small batches take the calling thread alone. Threads start with the first batch that has enough pixels for two.

    Attributes:
        pixels: Number of pixels of an image, or of its result if that is larger.
    """

    def __init__(self, pipeline: Pipeline, look: Look, images: torch.Tensor) -> None:
        """``images``: all images, ``(N, C, H, W)``. Bytes are channels-last, floating point is contiguous."""
        self._look = look
        self._size = np.array([images.shape[2:]], np.int64)
        self._shape = look.row_shape((images.shape[2], images.shape[3]))
        self._images = as_numpy(images.permute(0, 2, 3, 1) if images.dtype == torch.uint8 else images)
        self._seed = pipeline.options.draws_seed
        self._threads = pipeline.options.workers or default_workers()
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._memory = HostTransport()
        self.pixels = max(images.shape[2] * images.shape[3], int(np.prod(self._shape)) // images.shape[1])

    def __call__(self, places: torch.Tensor, ids: torch.Tensor, epoch: int) -> torch.Tensor:
        """Returns the images at ``places``, int64 ``(B,)``, of records ``ids``, cropped and finished: ``(B, C, h, w)``.
        Raises :class:`MemoryError` if the engine has no memory."""
        form = self._look.form
        with torch.inference_mode(False):
            rows = self._memory.allocate((len(places), *self._shape), form.dtype)
        requests = Requests.of_array(self._images, places.numpy())
        sizes = np.repeat(self._size, len(places), 0)
        self._look.draw(sizes, ids.numpy(), self._seed, epoch, rows).set_outputs(requests)
        parts = max(1, min(self._threads, len(places), len(places) * self.pixels // _LEAST))
        bounds = [len(places) * part // parts for part in range(parts + 1)]
        if self._pool is None and parts > 1:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="packstore-resident")
        others = (
            [self._pool.submit(_run_requests, requests, *pair) for pair in list(pairwise(bounds))[1:]]
            if self._pool
            else []
        )
        _run_requests(requests, bounds[0], bounds[1])
        for other in others:
            other.result()
        return form.as_images(rows)

    def close(self) -> None:
        """Waits for the threads and stops them; larger batches then fail. Does nothing in a forked child."""
        if self._pool is not None and os.getpid() == self._process:
            self._pool.shutdown()


def _run_requests(requests: Requests, first: int, stop: int) -> None:
    """Lets the engine process images ``first`` … ``stop - 1``. Raises :class:`MemoryError` if it refuses any."""
    if get_engine().run(requests, first, stop, 0).any():
        raise MemoryError("the engine has no memory for what is made of resident images")
