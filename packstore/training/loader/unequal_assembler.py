"""Images whose sizes differ during augmentation: planned for a batch, decoded and augmented one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import PackstoreError, UsageError
from packstore.core.manifest import Column
from packstore.images.decoders.orientation import upright
from packstore.images.engine import Requests
from packstore.training.augment.base import Crops, Size, Step
from packstore.training.augment.detection import Boxes
from packstore.training.augment.unequal import Course
from packstore.training.loader.assemble import Assembler, wrong_header_error
from packstore.training.loader.fields import read_ragged
from packstore.training.loader.finish import Finish
from packstore.training.loader.prepared import Header, Prepared
from packstore.training.loader.rows import SizeError
from packstore.training.random_draws import Draws

_ANY_SIZE = 4096
"""Height and width with which unreadable images are planned."""


class UnequalAssembler(Assembler):
    """Writes images into rows if they end with one size, else into memory of their own; see :class:`Assembler`.

    Attributes:
        as_list: Each image is a tensor of its own.
        made: Final format of the rows.
    """

    def __init__(
        self,
        list_of_operations: Sequence[Step],
        size: Size | None,
        box_columns: Sequence[Column],
        finish: Finish | None,
        *arguments: Any,
        **named: Any,
    ) -> None:
        """
        Args:
            list_of_operations: The user's whole list.
            size: Final height and width of all images; None if they differ.
            box_columns: Columns of boxes by which operations may choose crops.
            finish: Final format of pixels; None for none.
            arguments: Arguments of an :class:`Assembler` without operations.
            named: As ``arguments``.
        """
        super().__init__(*arguments, **named)
        self._list = tuple(list_of_operations)
        self._box_columns = box_columns
        self._finish = finish
        self.made = finish or Finish(self.dtype, self.planes, channels=self._mode.channels)
        self.planes, self.dtype, self.as_list = self.made.planes, self.made.dtype, size is None
        self.shape = self.made.shape(size or (1, 1))  # unused for a list
        self._whole = self._kernel = None

    def _row(self, image: Column) -> tuple[int, ...]:
        return 0, 0, self._mode.channels

    def shape_for(self, records: NDArray[np.int64]) -> tuple[int, ...]:
        return self.shape

    def bytes_made(self, prepared: Prepared) -> int:
        return int(prepared.sizes.prod(1).sum()) * self._mode.channels

    def prepare(
        self,
        out: torch.Tensor,
        ids: NDArray[np.int64],
        seed: int,
        epoch: int,
        errors: dict[int, Exception] | None,
        absent: Set[int] = frozenset(),
        check_all: bool = False,
    ) -> Prepared:
        prepared = super().prepare(out, ids, seed, epoch, errors, absent, check_all)
        start = perf_counter()
        prepared.course = course = Course(
            prepared.sizes, self._list, Draws(seed, epoch, ids), self._boxes(prepared) if self._box_columns else None
        )
        prepared.first_cuts = [course.first_cut(row) for row in range(len(ids))]
        prepared.images = [None] * len(ids)
        if prepared.requests is not None:
            cuts = [cut for cut, _ in prepared.first_cuts]
            pixels = [np.empty((*cut.window[2:], self._mode.channels), np.uint8) for cut in cuts]
            prepared.images = [torch.from_numpy(each).permute(2, 0, 1)[None] for each in pixels]
            names = ("box", "size", "window", "flip", "sampling")
            boxes, sizes, windows, flips, samplings = (np.array([getattr(cut, name) for cut in cuts]) for name in names)
            prepared.requests.want_each(boxes, sizes, windows, flips, samplings, pixels)
        self._stats.add("decode", perf_counter() - start)
        return prepared

    def _want(self, prepared: Prepared, requests: Requests | None, crops: Crops | None) -> Requests | None:
        return requests if len(prepared.ids) else None

    def _sizes(
        self,
        records: Sequence[int],
        views: Sequence[Any],
        turned: Mapping[int, int],
        requests: Requests | None = None,
    ) -> tuple[NDArray[np.int64], Sequence[Header]]:
        sizes, headers = super()._sizes(records, views, turned, requests)
        # Large enough for every operation; decoding will raise.
        sizes[sizes[:, 0] == 0] = np.maximum(sizes.max(0, initial=0), _ANY_SIZE)
        return sizes, headers

    def _boxes(self, prepared: Prepared) -> Boxes:
        """Reads all boxes of a batch. Unreadable records have none; reading their column raises."""
        corners, rows = [], []
        for column in self._box_columns:
            flat, counts = read_ragged(self._reader, column, prepared.numbers, set(prepared.failed), None)
            corners.append(np.asarray(flat, np.float32).reshape(-1, 4))
            rows.append(np.repeat(np.arange(len(counts)), counts))
        order = np.argsort(together := np.concatenate(rows), kind="stable")
        return Boxes(np.concatenate(corners)[order], together[order])

    def fill(
        self,
        prepared: Prepared,
        first: int,
        stop: int,
        errors: dict[int, Exception] | None,
        skip: Set[int] = frozenset(),
    ) -> list[int]:
        start = perf_counter()
        failed = self._damaged(prepared, first, prepared.views[first:stop], errors)
        refused = {*self._run_engine(prepared, first, stop)}
        left_out = {*failed, *prepared.failed, *skip}
        for row in range(first, stop):
            if row in left_out:
                continue
            try:
                self._put(
                    prepared, row, self._refused_image(prepared, row) if row in refused else _run_rest(prepared, row)
                )
            except UsageError:
                raise
            except PackstoreError as error:
                failed.append(self._note(errors, row, prepared.numbers[row], error))
        if self._encoded:
            self._stats.add_decoded(stop - first - len(left_out))
        self._stats.add("decode", perf_counter() - start)
        return failed

    def _refused_image(self, prepared: Prepared, row: int) -> torch.Tensor:
        """Decodes an image that the engine refuses, and runs all operations on it."""
        view, header = prepared.views[row], prepared.headers[row]
        if header is None and self._encoded:
            header = self._header(view)
        pixels = upright(self._pixels(prepared.numbers[row], view, header), prepared.turned.get(row, 1))
        if self._column.layout != "CHW":
            pixels = pixels.transpose(2, 0, 1)
        image = torch.from_numpy(np.array(pixels))[None]
        found, said = image.shape[-2:], prepared.sizes[row].tolist()
        if [*found] == said:
            prepared.images[row] = prepared.first_cuts[row][0](image)
            return _run_rest(prepared, row)
        if not self._alone:
            raise wrong_header_error(said, found)
        # The header has another size than the image: plan again, by the real size.
        draws = Draws(prepared.seed, prepared.epoch, prepared.ids[row : row + 1])
        return Course(np.array([found], np.int64), self._list, draws).run(0, image)

    def _put(self, prepared: Prepared, row: int, image: torch.Tensor) -> None:
        """Writes an image ``(1, C, h, w)`` into its row, or into memory of its own."""
        made, finish, size = self.made, self._finish, (image.shape[-2], image.shape[-1])
        expected = torch.uint8 if finish is not None and finish.normalizer is not None else self.dtype
        if image.dtype != expected:
            raise UsageError(
                f"augment= made {image.dtype} of an image, and {expected} is expected: convert in transform="
            )
        if self.as_list:
            out = torch.empty((1, *made.shape(size)), dtype=self.dtype, device="cpu")
            prepared.images[row] = out[0]
        else:
            out, prepared.images[row] = prepared.out[row : row + 1], None
            if made.size(out.shape[1:]) != size:
                raise SizeError.between(size, made.size(out.shape[1:]))
        if finish is not None and image.dtype == torch.uint8:
            finish.rows(image.permute(0, 2, 3, 1).contiguous(), out)
        else:
            made.as_images(out).copy_(image)


def _run_rest(prepared: Prepared, row: int) -> torch.Tensor:
    """Runs the remaining operations on the image of a row."""
    assert prepared.course is not None
    return prepared.course.run(row, prepared.images[row], prepared.first_cuts[row][1])
