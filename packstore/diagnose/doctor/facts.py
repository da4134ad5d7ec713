"""One finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fact:
    """A finding about the installation or the machine.

    Attributes:
        section: What it belongs to, for people.
        name: What it is.
        value: For programs: any JSON value; None where it is not known.
        text: For people; the value where empty.
        problem: What is wrong with it and what to do; None where all is well.
    """

    section: str
    name: str
    value: Any
    text: str = ""
    problem: str | None = None
