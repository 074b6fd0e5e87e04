"""The documents of the command as dataclasses, a module each.

They have the fields of the schemas in docs/reference/schema. Fields that a later version of the
command adds are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, TypeVar

from uzswap.documents.stats import Stats

T = TypeVar("T")


def from_json(kind: type[T], document: dict[str, Any]) -> T:
    """Makes a dataclass of a document that was read from JSON.

    Raises TypeError where a field is missing.
    """
    made: T = _value(kind, document)
    return made


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ValueStats:
    """Values, and the store below them."""

    #: Values held.
    values: int
    #: Sum of their lengths.
    value_bytes: int
    #: Bytes of the table that leads from keys to values; a part of the limit.
    table_bytes: int
    #: The store with their pages.
    store: Stats


def value_stats_of_json(text: str) -> ValueStats:
    """The statistics of values."""
    return from_json(ValueStats, json.loads(text))


def stats_of_json(text: str) -> Stats:
    """The statistics of a store."""
    return from_json(Stats, json.loads(text))


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    return typing.get_type_hints(kind)


@functools.cache
def _needed(kind: Any) -> frozenset[str]:
    """The fields of a dataclass without a default."""
    fields = dataclasses.fields(kind)
    return frozenset(field.name for field in fields if field.default is dataclasses.MISSING)


def _value(kind: Any, value: Any) -> Any:
    """A value of JSON as `kind`: what is no object and no list is as it is."""
    if isinstance(value, dict):
        kinds: list[Any] = [one for one in _parts(kind) if dataclasses.is_dataclass(one)]
        made = next((one for one in kinds if _needed(one) <= value.keys()), kinds[0])
        known = _types(made).items()
        return made(**{name: _value(of, value[name]) for name, of in known if name in value})
    if isinstance(value, list):
        (of_list,) = [one for one in _parts(kind) if typing.get_origin(one) is list]
        (item,) = typing.get_args(of_list)
        return [_value(item, one) for one in value]
    return value


def _parts(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return typing.get_args(kind) if is_union else (kind,)
