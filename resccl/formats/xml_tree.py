"""XML from strangers, read with expat: no DTD, no entities, bounded depth and number of elements.

expat comes with Python, so nothing has to be installed for this. What makes XML dangerous (entities that expand or
that read other files, external DTDs) needs a document type, and a document that has one is refused at its first line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from resccl.formats.common import FormatError, shortened

MAX_DEPTH = 8
MAX_ELEMENTS = 500_000


@dataclass(slots=True)
class Element:
    """An element: its tag, attributes, children and line."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.root: Element | None = None
        self.open: list[Element] = []
        self.elements = 0
        self.parser = expat.ParserCreate()
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.EntityDeclHandler = self.entity

    def refuse(self, why: str) -> FormatError:
        return FormatError(f"{self.name}, line {self.parser.CurrentLineNumber}: {why}")

    def doctype(self, name: str, system: str | None, public: str | None, internal: bool) -> None:
        raise self.refuse("it declares a document type; schedules need none, remove the DOCTYPE")

    def entity(self, name: str, *_: object) -> None:
        raise self.refuse(f"it declares the entity {shortened(name)!r}; schedules need none")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if self.elements > MAX_ELEMENTS:
            raise self.refuse(f"it has more than {MAX_ELEMENTS} elements")
        if len(self.open) >= MAX_DEPTH:
            raise self.refuse(f"its elements nest deeper than {MAX_DEPTH}")
        element = Element(tag, attributes, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, tag: str) -> None:
        self.open.pop()

    def text(self, data: str) -> None:
        if not data.isspace():
            raise self.refuse(f"it has text between its elements: {shortened(data.strip())!r}")


def read_xml(data: bytes, name: str) -> Element:
    """The root element of the XML document `data`. FormatError names `name`, the line and what is wrong."""
    reader = _Reader(name)
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise FormatError(f"{name}, line {error.lineno}: it is no XML: {expat.ErrorString(error.code)}") from None
    except (LookupError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{name}: its encoding cannot be read: {error}") from None
    if reader.root is None:
        raise FormatError(f"{name}: it holds no element")
    return reader.root
