"""A fact that the doctor reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the installation or the machine.

    Attributes:
        section: Heading of the section.
        name: Name of the fact.
        value: Its value for programs, any JSON value; None if unknown.
        text: Its value for people; empty: ``value`` is shown.
        problem: The problem and its remedy; None for no problem.
    """

    section: str
    name: str
    value: Any
    text: str = ""
    problem: str | None = None
