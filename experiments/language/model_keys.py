"""Look up in the models of a scenario file which keys a section may have, and which entries it names."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Tag

from ringlight.experiments.language.job_sources import job_source
from ringlight.experiments.language.spec import JobSpec, Names, TrainingSpec
from ringlight.fabric.extension import entries

#: Keys of one mapping that say the same in two ways: who writes the one over the other means it instead.
EITHER = {
    key: other
    for a, b in (
        ("gpu", "compute"),
        ("samples", "iterations"),
        ("ranks", "gpus"),
        ("uplink_rate", "oversubscription"),
    )
    for key, other in ((a, b), (b, a))
}


def keys_of(kind: Any) -> tuple[str, ...]:
    """Return the keys that a section of this type may have; () if they are names of its own."""
    return tuple(
        dict.fromkeys(key for model in _models(kind) for key in model.model_fields)
    )


def inside(kind: Any, key: str | int) -> Any:
    """Return the type of the value under a key of a section; None if nothing can be there."""
    if key == "training" and JobSpec in _types(kind):
        return TrainingSpec
    for member in _types(kind):
        if (
            key in entries("jobs")
            and get_origin(member) is dict
            and JobSpec in get_args(member)
        ):
            return JobSpec | job_source(str(key)).spec
        if get_origin(member) in (dict, tuple, list):
            return get_args(member)[1 if get_origin(member) is dict else 0]
        if _is_model(member) and key in member.model_fields:
            return member.model_fields[key].annotation
    return None


def tagged(kind: Any, tag: str | int) -> Any:
    """Return the member of a union that has a tag of pydantic's; None if there is none."""
    marks = getattr(kind, "__metadata__", ())
    if any(isinstance(mark, Tag) and mark.tag == tag for mark in marks):
        return kind
    return next(filter(None, (tagged(member, tag) for member in get_args(kind))), None)


def may_be_made(kind: Any, key: str) -> bool:
    """Return whether a section may be left out of another and is made when something is put into it."""
    return bool(_models(kind)) and bool(_models(inside(kind, key)))


def _models(kind: Any) -> list[type[BaseModel]]:
    """The sections that something may be: several where its ``kind`` decides."""
    return [member for member in _types(kind) if _is_model(member)]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _types(kind: Any) -> list[Any]:
    """Return the types that a value may have, without Annotated."""
    if get_origin(kind) is Annotated:
        return _types(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [member for argument in get_args(kind) for member in _types(argument)]
    return [kind]


def references(section: BaseModel, where: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the names of other entries in a section (``Names``): each with its key and what it names.

    The order is key, kind of the named entry, name.
    """
    for key, field in type(section).model_fields.items():
        value, here = getattr(section, key), f"{where}.{key}" if where else key
        inner = [
            mark
            for kind in get_args(field.annotation)
            for mark in getattr(kind, "__metadata__", ())
        ]
        what = next(
            (
                mark.what
                for mark in (*field.metadata, *inner)
                if isinstance(mark, Names)
            ),
            None,
        )
        if what is not None:
            for name in [value] if isinstance(value, str) else value or ():
                yield here, what, name
        elif isinstance(value, BaseModel):
            yield from references(value, here)
        elif isinstance(value, tuple):
            for index, entry in enumerate(value):
                if isinstance(entry, BaseModel):
                    yield from references(entry, f"{here}[{index}]")
