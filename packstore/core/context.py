"""Sets context variables within a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def set_within(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Sets a variable within the block; afterwards it has its former value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
