"""The JPEG decoders: which one is used, and whether another would be faster."""

from __future__ import annotations

from typing import Any

from packstore.diagnose.doctor.facts import Fact

FASTER = 1.15
"""A decoder is called faster from that many times the rate on."""


def decoder_facts(found: dict[str, Any]) -> list[Fact]:
    """From the answer of the ``decoders`` probe."""
    facts = []
    if "error" in found:
        facts.append(Fact("JPEG", "decoder", None, "unknown", f"the decoders cannot be tried: {found['error']}"))
    else:
        facts += rate_facts(found["decoders"], found["used"])
        facts.append(_crops(found["used"], found["regions"]))
        facts += _libturbojpeg(found.get("libturbojpeg"))
        facts.append(_engine(found["engine_problem"]))
    return facts


def rate_facts(decoders: dict[str, Any], used: str) -> list[Fact]:
    """One fact for the decoder in use, with what would be faster, and one for each other."""
    rates = {name: d["images_per_second"] for name, d in decoders.items() if d["available"]}
    fastest = max(rates, key=lambda name: rates[name])
    problem = None
    if rates[fastest] > FASTER * rates[used]:
        gain = rates[fastest] / rates[used]
        problem = f"{fastest} is {gain:.2f} times as fast: use --decoder {fastest}, decoder={fastest!r}"
    facts = [Fact("JPEG", "decoder", used, f"{used}, {_speed(decoders[used])}", problem)]
    for name, decoder in decoders.items():
        if name == used:
            continue
        if decoder["available"]:
            facts.append(Fact("JPEG", name, decoder, _speed(decoder)))
        else:
            facts.append(Fact("JPEG", name, decoder, f"not available: {decoder['reason']}"))
    return facts


def _speed(decoder: dict[str, Any]) -> str:
    return f"{decoder['version']}: {decoder['images_per_second']:,.0f} images/s of 500 x 375 on one core"


def _crops(used: str, regions: str | None) -> Fact:
    if used == "engine":
        text = "of files with a seek index little more than the crop is decoded, of others what comes before it, too"
    elif regions is not None:
        text = f"of ordinary JPEG files only the crop's region is decoded, by {regions}"
    elif used in ("turbojpeg", "simplejpeg"):
        text = (
            "ordinary JPEG files are decoded whole; only the crop's region with libturbojpeg of version 3 or newer "
            "(PACKSTORE_TURBOJPEG can name its file)"
        )
    else:
        text = "ordinary JPEG files are decoded whole"
    return Fact("JPEG", "crops", regions, text)


def _libturbojpeg(version: str | None) -> list[Fact]:
    """How to get a newer one, where it is older than 3."""
    if version is None or int(version.partition(".")[0]) >= 3:
        return []
    text = (
        f"{version}: what the engine does not decode, 3 decodes in parts (packstore guide troubleshooting says how to "
        "get it)"
    )
    return [Fact("JPEG", "libjpeg-turbo", version, text)]


def _engine(reason: str | None) -> Fact:
    if reason is None:
        return Fact("JPEG", "engine", True, "loaders decode, crop and resize by it")
    return Fact("JPEG", "engine", False, "not usable", f"loaders need packstore's engine: {reason}")
