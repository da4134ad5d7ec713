"""Oxford 102 Flower (https://www.robots.ox.ac.uk/~vgg/data/flowers/102/): ``jpg/``, ``imagelabels.mat``, ``setid.mat``.

Labels begin at 1 in the file and at 0 here; names of classes are torchvision's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from numpy import int64
from numpy.typing import NDArray

from packstore.core.errors import SourceError
from packstore.core.fields import Field, Image, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, make_named_kind
from packstore.sources.named.mat import to_whole_numbers

_SETS = {"train": "trnid", "val": "valid", "test": "tstid"}


class Flowers102(NamedSource):
    """Source of the flowers' images, in the order of ``setid.mat``. Listing them raises :class:`SourceError` for an
    image without a label, and for a label that is no class."""

    kind = "flowers102"
    title = "Flowers-102"
    markers = ("imagelabels.mat", "setid.mat")
    required = ("jpg",)

    def splits(self) -> tuple[str, ...]:
        """Returns ``train``, ``val`` and ``test``."""
        return tuple(_SETS)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image and label."""
        return {"image": Image(), "label": Label(CLASSES)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split. Raises :class:`SourceError` for an image without a label, and for a label that
        is no class."""
        labels = self._labels
        for image in self._split_images[split].tolist():
            if not 1 <= image <= len(labels):
                raise SourceError(f"{self.file_name('setid.mat')} names image {image}; labels exist for {len(labels)}")
            yield FileRow(self.tree_path(f"jpg/image_{image:05}.jpg"), {"label": int(labels[image - 1]) - 1})

    @cached_property
    def _labels(self) -> NDArray[int64]:
        """Labels of all images, from 1. Raises :class:`SourceError` if a label is no class."""
        name, values = self.read_mat("imagelabels.mat", "labels")
        labels = to_whole_numbers(name, values)
        if len(labels) and not 1 <= labels.min() <= labels.max() <= len(CLASSES):
            raise SourceError(f"{name} has labels from {labels.min()} to {labels.max()}; expected 1 to {len(CLASSES)}")
        return labels

    @cached_property
    def _split_images(self) -> dict[str, NDArray[int64]]:
        """Numbers of the images of each split, from 1. Raises :class:`SourceError` if they are not whole."""
        return {split: to_whole_numbers(*self.read_mat("setid.mat", key)) for split, key in _SETS.items()}


_NAMES = (
    "pink primrose|hard-leaved pocket orchid|canterbury bells|sweet pea|english marigold|tiger lily|moon "
    "orchid|bird of paradise|monkshood|globe thistle|snapdragon|colt's foot|king protea|spear thistle|yellow "
    "iris|globe-flower|purple coneflower|peruvian lily|balloon flower|giant white arum lily|fire lily|pincushion "
    "flower|fritillary|red ginger|grape hyacinth|corn poppy|prince of wales feathers|stemless "
    "gentian|artichoke|sweet william|carnation|garden phlox|love in the mist|mexican aster|alpine sea "
    "holly|ruby-lipped cattleya|cape flower|great masterwort|siam tulip|lenten rose|barbeton daisy|daffodil|sword"
    " lily|poinsettia|bolero deep blue|wallflower|marigold|buttercup|oxeye daisy|common dandelion|petunia|wild "
    "pansy|primula|sunflower|pelargonium|bishop of llandaff|gaura|geranium|orange dahlia|pink-yellow "
    "dahlia?|cautleya spicata|japanese anemone|black-eyed susan|silverbush|californian poppy|osteospermum|spring "
    "crocus|bearded iris|windflower|tree poppy|gazania|azalea|water lily|rose|thorn apple|morning glory|passion "
    "flower|lotus|toad lily|anthurium|frangipani|clematis|hibiscus|columbine|desert-rose|tree "
    "mallow|magnolia|cyclamen|watercress|canna lily|hippeastrum|bee balm|ball "
    "moss|foxglove|bougainvillea|camellia|mallow|mexican petunia|bromelia|blanket flower|trumpet "
    "creeper|blackberry lily"
)
CLASSES = tuple(_NAMES.split("|"))
"""``torchvision.datasets.Flowers102.classes``."""

KIND = make_named_kind(Flowers102)
