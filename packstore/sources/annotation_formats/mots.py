"""MOTS (https://www.vision.rwth-aachen.de/page/mots): masks of tracked objects, as in MOTSChallenge and KITTI MOTS.

- MOTSChallenge: ``train/MOTS20-02/img1/000001.jpg`` and ``gt/gt.txt``.
- KITTI MOTS: ``training/image_02/0002/000000.png``, ``instances_txt/0002.txt``, ``instances/0002/000000.png``.

A line is frame, object, class, height and width of the image, and run lengths as COCO's string. The number of an object
is 1000 times its class, plus a number of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from packstore.core.fields import Array, Field
from packstore.core.run_lengths import compute_run_lengths_box, decode_run_lengths
from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.mot import take_frames
from packstore.sources.annotation_formats.objects import Annotation, SizeReader, object_from_run_lengths, split_lines
from packstore.sources.beside import find_file, infer_mask_field, is_file, is_folder, join
from packstore.sources.file_rows import FileRow, InTree
from packstore.sources.listing import IMAGE_SUFFIXES

_IGNORED = 10
_CLASSES = {1: "car", 2: "pedestrian", _IGNORED: "ignored"}
_PLACES = ("training/image_02/{}", "train/images/{}", "image_02/{}", "images/{}", "{}/img1", "{}")
_MASKS = "instances"


class MotsSource(DocumentSource):
    """Source of frames of sequences, with masks of objects. ``track`` is the number of each object. ``instance_mask``
    is the PNG file with the masks of a frame, if there are such files.

    A frame without lines has 0 boxes. Lines of a frame without image are left out, and the frame is counted.
    """

    kind = "mots"
    title = "MOTS"
    name_pattern = re.compile(r"(gt|\d{4}|MOTS\d\d-\d\d)\.txt")
    signature = re.compile(rb"\A\s*\d+ \d+ (1|2|10) [1-9]\d{0,4} [1-9]\d{0,4} [0-o]+ *(\r?\n|$)")
    max_depth = 4
    max_files = 100
    further_fields: ClassVar[Mapping[str, Field]] = {"track": Array("int64", ragged=True, optional=True)}
    per_object = ("track",)
    parse_document = staticmethod(split_lines)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image of the sequence, with the lines of its frame, or ``[]``. Yields nothing if the
        folder of images is missing. Counts frames without an image as left out. Raises :class:`ValueError` for a line
        without a number, and as :func:`take_frames` does."""
        frames: dict[int, list[str]] = {}
        for line in filter(str.strip, document):
            frames.setdefault(int(line.split(" ", 1)[0]), []).append(line.strip())
        folder = self._find_image_folder(file)
        names = self.tree.names(folder).ending(*IMAGE_SUFFIXES) if folder is not None else ()
        above = file.rpartition("/")[0].rpartition("/")[0]
        for image, lines in take_frames(names, frames):
            yield AnnotationEntry(join(folder or "", image)[len(above) + 1 if above else 0 :], lines)
        if frames:
            self.ignored["frames of a video without an image"] += len(frames)

    def _find_image_folder(self, file: str) -> str | None:
        """Finds the folder of images for the file of a sequence; returns None if it is missing."""
        folder, _, name = file.rpartition("/")
        above = folder.rpartition("/")[0]
        sequence = name.removesuffix(".txt")
        places = ["img1"] if sequence == "gt" else [place.format(sequence) for place in _PLACES]
        return next((place for each in places if is_folder(self.tree, place := join(above, each))), None)

    def describing_files(self) -> list[str]:
        """Returns the files of annotations, and ``seqinfo.ini`` of each sequence that has one."""
        heads = [join(file.removesuffix("/gt/gt.txt"), "seqinfo.ini") for file in self._files]
        return [*self._files, *(file for file in heads if is_file(self.tree, file))]

    def fields(self) -> Mapping[str, Field]:
        """Declares the columns of the annotations, and ``instance_mask`` if a frame has a mask file. Opens masks to see
        if they have one channel."""
        rows = (row for split in self.splits() for row in self.file_rows(split))
        masks = [row.values["instance_mask"].file for row in rows if "instance_mask" in row.values]
        columns = dict(super().fields())
        return columns | ({"instance_mask": infer_mask_field(self.tree, masks)} if masks else {})

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split, with the mask file of each frame that has one."""
        for row in super().file_rows(split):
            mask = self._find_mask(row.file)
            yield row if mask is None else row._replace(values={**row.values, "instance_mask": InTree(mask)})

    def _find_mask(self, image: str) -> str | None:
        """Finds the mask file of an image; returns None if it is missing.

        - ``training/image_02/0002/000000.png`` has ``instances/0002/000000.png``.
        - ``img1/000001.jpg`` has ``instances/000001.png``.
        """
        *folders, sequence, name = image.split("/")
        name = f"{name.rpartition('.')[0]}.png"
        tops = ["/".join(folders[:n]) for n in range(len(folders), -1, -1)]
        masks = (join(tops[0], f"{_MASKS}/{name}"), *(join(top, f"{_MASKS}/{sequence}/{name}") for top in tops))
        return next((file for mask in masks if is_file(self.tree, file := find_file(self.tree, mask))), None)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each line to an object with its run lengths, the box around them and its track. A class without a
        name has its number as name. ``json`` has the lines. Raises :class:`ValueError` for a line that does not have 6
        valid values."""
        annotation = Annotation(json=raw)
        for line in raw:
            words = line.split(" ")
            if len(words) != 6:
                raise ValueError(f"a line of its objects has {len(words)} values, expected 6")
            track, number, height, width = map(int, words[1:5])
            box = compute_run_lengths_box(decode_run_lengths(words[5].encode()), height, width)
            label = _CLASSES.get(number, str(number))
            annotation.objects.append(
                object_from_run_lengths(label, (height, width), words[5], box, crowd=number == _IGNORED, track=track)
            )
        return annotation


KIND = make_document_kind(MotsSource, "MOTS: masks of tracked objects, of MOTSChallenge and KITTI")
