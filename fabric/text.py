"""Texts that UTF-8 can encode: JSON, YAML and Python know others, which nothing could write or send again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

#: What controls a terminal, or the order in which it shows characters; not ends of lines and tabs.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: Half of a character of UTF-16, as JSON writes it.
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


class HalfCharacterError(json.JSONDecodeError):
    """A text in JSON that UTF-8 cannot encode."""


def is_text(text: str) -> bool:
    """Return whether UTF-8 can encode it: it has no surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises HalfCharacterError for a text in it that UTF-8 cannot encode, JSONDecodeError for what is no JSON,
    UnicodeDecodeError, and RecursionError.
    """
    document = json.loads(text)
    if isinstance(text, str):
        suspect = "\\u" in text or not is_text(text)
    else:
        # Python takes UTF-16, and surrogates that are encoded as if they were characters.
        suspect = b"\\u" in text or not _is_utf8(text)
    if suspect and (where := next(_halves(document, ""), None)) is not None:
        whole = text if isinstance(text, str) else text.decode("utf-8", "replace")
        half = _HALF.search(whole)
        what = f"{where or 'the text'}: half of a character, which UTF-8 cannot encode"
        raise HalfCharacterError(what, whole, half.start() if half else 0)
    return document


def cleaned(value: Any) -> Any:
    """Return a JSON document in which every text can be encoded: U+FFFD stands for what cannot."""
    match value:
        case str():
            return (
                value
                if is_text(value)
                else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            )
        case dict():
            return {cleaned(key): cleaned(inner) for key, inner in value.items()}
        case list():
            return [cleaned(inner) for inner in value]
    return value


def visible(text: str) -> str:
    """Return a text for a terminal, in which Python's escapes stand for what would control that."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _halves(value: Any, where: str) -> Iterator[str]:
    """Yield dotted paths of the texts that cannot be encoded; of a key, the path of what has it."""
    match value:
        case str():
            if not is_text(value):
                yield where
        case dict():
            for key, inner in value.items():
                if not is_text(key):
                    yield where
                yield from _halves(inner, f"{where}.{key}" if where else key)
        case list():
            for index, inner in enumerate(value):
                yield from _halves(inner, f"{where}.{index}" if where else str(index))
