"""Functions and commands whose arguments are the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import click
import pytest
from click.testing import CliRunner

from tests.internals import (
    Command,
    OptionsOf,
    UsageError,
    argument,
    check_options,
    describes,
    initializes,
    option,
    takes,
)

if TYPE_CHECKING:
    from somewhere import Anything


@dataclass(frozen=True, kw_only=True)
class PaintOptions:
    colour: Literal["red", "blue"] = option("red", "Colour of the ``layers``.")
    layers: int | None = option(None, "Number of layers.", none="one per wall", metavar="N", least=1, most=9)
    wide: bool = option(False, "Use a wide brush.", "Wide brush.", group="Run")
    ladder: bool | None = option(None, "Climb.")
    rooms: Sequence[str] = option((), "Rooms.", flag="--room", metavar="NAME")
    thickness: float = option(1.0, "Thickness.", None, least=1)
    style: str | Anything | None = option(None, "Style.", None)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PaintArguments(PaintOptions):
    house: str = field(metadata=argument("The house. " + "It is large. " * 12))
    _: KW_ONLY
    again: bool = option(False, "Paint it twice.")


@takes(PaintArguments)
def paint(arguments: PaintArguments) -> tuple[str, PaintOptions]:
    """Paints a house.

    Slowly.

    Returns:
        Both.
    """
    return arguments.house, arguments


@describes(PaintArguments)
class Painter:
    """Paints houses."""

    @initializes(PaintArguments, unknown=lambda name: KeyError(f"no {name} here"))
    def __init__(self, arguments: PaintArguments) -> None:
        self.house = arguments.house


def test_a_function_takes_the_fields() -> None:
    house, options = paint("mine", colour="blue")
    assert (house, options.colour, options.layers) == ("mine", "blue", None)
    assert paint(house="mine", again=True)[1] == PaintArguments("mine", again=True)
    assert Painter("mine", wide=True).house == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "green"}, "colour should be 'red' or 'blue', got 'green'"),
        ({"layers": 0}, "layers should be a whole number from 1 to 9, got 0"),
        ({"layers": 1.5}, "layers should be a whole number of at least 1, got 1.5"),
        ({"wide": "yes"}, "wide should be True or False, got 'yes'"),
        ({"ladder": 3}, "ladder should be True or False, got 3"),
        ({"thickness": 0.5}, "thickness should be a number of at least 1, got 0.5"),
    ],
)
def test_values_are_checked_by_type_and_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        paint("mine", **options)


def test_signature_and_docstring_are_those_of_the_fields() -> None:
    assert str(inspect.signature(paint)) == (
        "(house: 'str', *, colour: \"Literal['red', 'blue']\" = 'red', layers: 'int | None' = None, "
        "wide: 'bool' = False, ladder: 'bool | None' = None, rooms: 'Sequence[str]' = (), "
        "thickness: 'float' = 1.0, style: 'str | Anything | None' = None, again: 'bool' = False) "
        "-> 'tuple[str, PaintOptions]'"
    )
    assert [*inspect.signature(Painter).parameters] == [*inspect.signature(paint).parameters]
    lines = (paint.__doc__ or "").splitlines()
    assert lines[:5] == ["Paints a house.", "", "Slowly.", "", "Args:"]
    assert lines[5].startswith("    house: The house. It is large.")
    assert lines[6].startswith("        is large. It is large.")
    assert "    layers: Number of layers. From 1 to 9. None for one per wall." in lines
    assert lines[-3:] == ["", "Returns:", "    Both."]
    assert (Painter.__doc__ or "").splitlines()[:4] == ["Paints houses.", "", "Args:", lines[5]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paint("mine", colours="red"), r"paint\(\) got an unexpected keyword argument 'colours'"),
        (lambda: paint(), r"paint\(\) missing a required argument: 'house'"),
        (lambda: paint("mine", "yours"), r"paint\(\) too many positional arguments"),
        (lambda: Painter(), r"Painter\.__init__\(\) missing a required argument: 'house'"),
    ],
)
def test_wrong_arguments_are_told_as_python_does(call: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()  # type: ignore[operator]


def test_an_unknown_keyword_may_have_an_error_of_its_own() -> None:
    with pytest.raises(KeyError, match="no color here"):
        Painter("mine", colours="red", color="blue")  # type: ignore[call-arg]


def test_a_command_has_the_options() -> None:
    given: list[PaintOptions] = []

    @click.command(cls=Command)
    @click.argument("house")
    @OptionsOf(f"{__name__}:PaintOptions", without=("style",))
    def command(house: str, **options: object) -> None:
        given.append(PaintOptions(**options))  # type: ignore[arg-type]

    run = CliRunner().invoke(command, ["h", "--colour", "blue", "--room", "a", "--room", "b", "--no-ladder"])
    assert run.exit_code == 0, run.output
    assert given == [PaintOptions(colour="blue", rooms=("a", "b"), ladder=False)]
    assert "1<=x<=9" in CliRunner().invoke(command, ["h", "--layers", "10"]).output
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "--colour [red|blue] Colour of the --layers. [default: red]" in text
    assert "--layers N Number of layers. [default: one per wall] [1<=x<=9]" in text
    assert "Run: --wide Wide brush." in text
    assert "--style" not in text
