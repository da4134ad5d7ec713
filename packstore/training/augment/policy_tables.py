"""Tables of AutoAugment's policies: pairs of operations with probabilities and magnitudes.

Source: Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data" (2018), as in torchvision 0.28
(``transforms/v2/_auto_augment.py``) and timm 1.0 (``data/auto_augment.py``).
"""

from __future__ import annotations

from packstore.core.registry import import_and_call

Chain = list[tuple[str, float, int]]
"""Operations that run one after the other: name, probability, and magnitude of 10, which some ignore."""


def _parse_pairs(text: str) -> list[Chain]:
    """Parses pairs from lines such as ``Posterize .4 8, Rotate .6 9``."""
    pairs = []
    for line in text.strip().splitlines():
        parts = [part.split() for part in line.split(",")]
        pairs.append([(name, float(share), int(level)) for name, share, level in parts])
    return pairs


def _rename(policy: list[Chain], name: str, new: str) -> list[Chain]:
    """Returns a policy with the operation ``new`` in place of ``name``."""
    return [[(new if each == name else each, share, level) for each, share, level in chain] for chain in policy]


_ORIGINAL = _parse_pairs("""
    PosterizeOriginal 0.4 8, Rotate 0.6 9
    Solarize 0.6 5, AutoContrast 0.6 5
    Equalize 0.8 8, Equalize 0.6 3
    PosterizeOriginal 0.6 7, PosterizeOriginal 0.6 6
    Equalize 0.4 7, Solarize 0.2 4
    Equalize 0.4 4, Rotate 0.8 8
    Solarize 0.6 3, Equalize 0.6 7
    PosterizeOriginal 0.8 5, Equalize 1.0 2
    Rotate 0.2 3, Solarize 0.6 8
    Equalize 0.6 8, PosterizeOriginal 0.4 6
    Rotate 0.8 8, Color 0.4 0
    Rotate 0.4 9, Equalize 0.6 2
    Equalize 0.0 7, Equalize 0.8 8
    Invert 0.6 4, Equalize 1.0 8
    Color 0.6 4, Contrast 1.0 8
    Rotate 0.8 8, Color 1.0 2
    Color 0.8 8, Solarize 0.8 7
    Sharpness 0.4 7, Invert 0.6 8
    ShearX 0.6 5, Equalize 1.0 9
    Color 0.4 0, Equalize 0.6 3
    Equalize 0.4 7, Solarize 0.2 4
    Solarize 0.6 5, AutoContrast 0.6 5
    Invert 0.6 4, Equalize 1.0 8
    Color 0.6 4, Contrast 1.0 8
    Equalize 0.8 8, Equalize 0.6 3
""")
_V0 = _parse_pairs("""
    Equalize 0.8 1, ShearY 0.8 4
    Color 0.4 9, Equalize 0.6 3
    Color 0.4 1, Rotate 0.6 8
    Solarize 0.8 3, Equalize 0.4 7
    Solarize 0.4 2, Solarize 0.6 2
    Color 0.2 0, Equalize 0.8 8
    Equalize 0.4 8, SolarizeAdd 0.8 3
    ShearX 0.2 9, Rotate 0.6 8
    Color 0.6 1, Equalize 1.0 2
    Invert 0.4 9, Rotate 0.6 0
    Equalize 1.0 9, ShearY 0.6 3
    Color 0.4 7, Equalize 0.6 0
    Posterize 0.4 6, AutoContrast 0.4 7
    Solarize 0.6 8, Color 0.6 9
    Solarize 0.2 4, Rotate 0.8 9
    Rotate 1.0 7, TranslateYRel 0.8 9
    ShearX 0.0 0, Solarize 0.8 4
    ShearY 0.8 0, Color 0.6 4
    Color 1.0 0, Rotate 0.6 2
    Equalize 0.8 4, Equalize 0.0 8
    Equalize 1.0 4, AutoContrast 0.6 2
    ShearY 0.4 7, SolarizeAdd 0.6 7
    Posterize 0.8 2, Solarize 0.6 10
    Solarize 0.6 8, Equalize 0.6 1
    Color 0.8 6, Rotate 0.4 5
""")

POLICIES = {
    "imagenet": _rename(_ORIGINAL, "PosterizeOriginal", "Posterize"),
    "cifar10": _parse_pairs("""
        Invert 0.1 0, Contrast 0.2 6
        Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3
        ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5 0, Equalize 0.9 0
        ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7
        Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6 0, Equalize 0.5 0
        Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8
        Equalize 0.3 0, AutoContrast 0.4 0
        TranslateY 0.4 3, Sharpness 0.2 6
        Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0 0
        Equalize 0.2 0, AutoContrast 0.6 0
        Equalize 0.2 0, Equalize 0.6 0
        Color 0.9 9, Equalize 0.6 0
        AutoContrast 0.8 0, Solarize 0.2 8
        Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9 0
        TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9 0, Solarize 0.8 3
        Equalize 0.8 0, Invert 0.1 0
        TranslateY 0.7 9, AutoContrast 0.9 0
    """),
    "svhn": _parse_pairs("""
        ShearX 0.9 4, Invert 0.2 0
        ShearY 0.9 8, Invert 0.7 0
        Equalize 0.6 0, Solarize 0.6 6
        Invert 0.9 0, Equalize 0.6 0
        Equalize 0.6 0, Rotate 0.9 3
        ShearX 0.9 4, AutoContrast 0.8 0
        ShearY 0.9 8, Invert 0.4 0
        ShearY 0.9 5, Solarize 0.2 6
        Invert 0.9 0, AutoContrast 0.8 0
        Equalize 0.6 0, Rotate 0.9 3
        ShearX 0.9 4, Solarize 0.3 3
        ShearY 0.8 8, Invert 0.7 0
        Equalize 0.9 0, TranslateY 0.6 6
        Invert 0.9 0, Equalize 0.6 0
        Contrast 0.3 3, Rotate 0.8 4
        Invert 0.8 0, TranslateY 0.0 2
        ShearY 0.7 6, Solarize 0.4 8
        Invert 0.6 0, Rotate 0.8 4
        ShearY 0.3 7, TranslateX 0.9 3
        ShearX 0.1 6, Invert 0.6 0
        Solarize 0.7 2, TranslateY 0.6 7
        ShearY 0.8 4, Invert 0.8 0
        ShearX 0.7 9, TranslateY 0.8 3
        ShearY 0.8 5, AutoContrast 0.7 0
        ShearX 0.7 2, Invert 0.1 0
    """),
}
"""Policies of torchvision, by name."""

TIMM_POLICIES = {
    "original": _ORIGINAL,
    "originalr": _rename(_ORIGINAL, "PosterizeOriginal", "PosterizeIncreasing"),
    "v0": _V0,
    "v0r": _rename(_V0, "Posterize", "PosterizeIncreasing"),
    "3a": [[("Solarize", 1.0, 5)], [("Desaturate", 1.0, 10)], [("GaussianBlurRand", 1.0, 10)]],
}
"""Policies of timm, by name."""

TIMM_BEGINNINGS = ("rand", "augmix", *TIMM_POLICIES)
"""Beginnings of a policy in timm's notation."""
make_timm_augment = import_and_call("packstore.training.augment.timm_policies:TimmAugment")
"""Makes the operation of a policy in timm's notation."""
