"""Facts about the JPEG decoders: the one in use, and whether another is faster."""

from __future__ import annotations

from typing import Any

from packstore.diagnose.doctor.facts import Fact

FASTER = 1.15
"""A decoder is called faster if its rate is more than so many times the other's."""


def decoder_facts(found: dict[str, Any]) -> list[Fact]:
    """Converts the answer of the probe ``decoders`` to facts. An error becomes one fact with a problem."""
    facts = []
    if "error" in found:
        facts.append(Fact("JPEG", "decoder", None, "unknown", f"the decoders cannot be tried: {found['error']}"))
    else:
        facts += rate_facts(found["decoders"], found["used"])
        facts.append(_crops_fact(found["used"], found["regions"]))
        facts += _libturbojpeg_facts(found.get("libturbojpeg"))
        facts.append(_engine_fact(found["engine_problem"]))
    return facts


def rate_facts(decoders: dict[str, Any], used: str) -> list[Fact]:
    """Returns a fact for each decoder, the one in use first. This fact has a problem if another decoder is over 1.15
    times as fast."""
    rates = {name: d["images_per_second"] for name, d in decoders.items() if d["available"]}
    fastest = max(rates, key=lambda name: rates[name])
    problem = None
    if rates[fastest] > FASTER * rates[used]:
        gain = rates[fastest] / rates[used]
        problem = f"{fastest} is {gain:.2f} times as fast: use --decoder {fastest}, decoder={fastest!r}"
    facts = [Fact("JPEG", "decoder", used, f"{used}, {_describe_speed(decoders[used])}", problem)]
    for name, decoder in decoders.items():
        if name == used:
            continue
        if decoder["available"]:
            facts.append(Fact("JPEG", name, decoder, _describe_speed(decoder)))
        else:
            facts.append(Fact("JPEG", name, decoder, f"not available: {decoder['reason']}"))
    return facts


def _describe_speed(decoder: dict[str, Any]) -> str:
    """Describes version and rate of an available decoder."""
    return f"{decoder['version']}: {decoder['images_per_second']:,.0f} images/s of 500 x 375 on one core"


def _crops_fact(used: str, regions: str | None) -> Fact:
    """Returns a fact: the part of a file that the decoder in use decodes for a crop."""
    if used == "engine":
        text = "little more than the crop is decoded if the file has a seek index, else also all that precedes it"
    elif regions is not None:
        text = f"only the crop's region of ordinary JPEG files is decoded, by {regions}"
    elif used in ("turbojpeg", "simplejpeg"):
        text = (
            "ordinary JPEG files are decoded whole; libturbojpeg 3 or newer decodes only the crop's region "
            "(PACKSTORE_TURBOJPEG can name its file)"
        )
    else:
        text = "ordinary JPEG files are decoded whole"
    return Fact("JPEG", "crops", regions, text)


def _libturbojpeg_facts(version: str | None) -> list[Fact]:
    """Returns a fact that names the way to a newer libjpeg-turbo. Returns none for version 3 or later, or if
    ``version`` is None."""
    if version is None or int(version.partition(".")[0]) >= 3:
        return []
    text = (
        f"{version}: version 3 decodes regions of files that the engine does not decode (packstore guide "
        "troubleshooting: how to get it)"
    )
    return [Fact("JPEG", "libjpeg-turbo", version, text)]


def _engine_fact(reason: str | None) -> Fact:
    """Returns a fact: packstore's engine loads, or ``reason`` why it does not."""
    if reason is None:
        return Fact("JPEG", "engine", True, "loaders decode, crop and resize with it")
    return Fact("JPEG", "engine", False, "not usable", f"loaders need packstore's engine: {reason}")
