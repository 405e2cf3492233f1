"""Reads strangers' XML into plain values: no document type, no entities, bounded depth and size."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

MAX_DEPTH = 16
MAX_ELEMENTS = 1 << 16


class XmlError(Exception):
    """Body that is not XML, or XML of a kind that is refused."""


@dataclass
class Element:
    """``text`` is what stands before the first child; attributes are not kept."""

    namespace: str
    name: str
    text: str = ""
    children: list[Element] = field(default_factory=list)


def parse_xml(data: bytes) -> Element:
    """The root element of a document in UTF-8. Raises XmlError."""
    parser = expat.ParserCreate("utf-8", namespace_separator=" ")
    parser.buffer_text = True
    root = Element("", "")
    path = [root]
    count = 0

    def refuse(*_: object) -> None:
        raise XmlError("a document type is not allowed")

    def start(tag: str, _attributes: object) -> None:
        nonlocal count
        count += 1
        if len(path) > MAX_DEPTH or count > MAX_ELEMENTS:
            raise XmlError("too many elements, or too deep")
        namespace, _, name = tag.rpartition(" ")
        made = Element(namespace, name)
        path[-1].children.append(made)
        path.append(made)

    def end(_tag: str) -> None:
        path.pop()

    def text(data: str) -> None:
        if not path[-1].children:
            path[-1].text += data

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise XmlError(f"not XML: {error}") from None
    return root.children[0]
