"""Reads strangers' XML into elements: no document type, no entities, bounded depth and size."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

MAX_DEPTH = 16
MAX_ELEMENTS = 1 << 16


class XmlError(Exception):
    """Body that is not XML, or XML of a kind that is refused."""


class _Bounded(ElementTree.TreeBuilder):
    _depth = _count = 0

    def doctype(self, *_: str | None) -> None:
        raise XmlError("a document type is not allowed")

    def start(self, tag: str, attrs: object) -> Element:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise XmlError("too many elements, or too deep")
        return super().start(tag, {})

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(tag)


def parse_xml(data: bytes) -> Element:
    """Return the root element of a document in UTF-8, without attributes. Raises XmlError."""
    try:
        return ElementTree.fromstring(
            data, ElementTree.XMLParser(target=_Bounded(), encoding="utf-8")
        )
    except ElementTree.ParseError as error:
        raise XmlError(f"not XML: {error}") from None


def local_name(element: Element) -> str:
    """Return an element's name without its namespace."""
    return element.tag.rpartition("}")[2]


def namespace(element: Element) -> str:
    """Return the namespace of an element's name, empty without one."""
    return element.tag.rpartition("}")[0].removeprefix("{")
