"""The XML documents that clients send: a safe parser and one function a document.

A document type (which could define entities), deep nesting and unknown roots are MalformedXML; so are elements that
come twice where one is meant. Elements that S3 does not know are ignored, as S3 does. Sizes are limited per document.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple
from xml.parsers import expat

from forebay.errors import StoreError
from forebay.s3.checksums import Algorithm, Checksum, parse_checksum
from forebay.s3.conditions import WriteCondition, make_delete_condition
from forebay.s3.names import PART_NUMBER_MAX, check_tags

COMPLETE_BYTES_MAX = 4 * 1024 * 1024  # 10,000 parts with checksums take 2 MiB
DELETE_BYTES_MAX = 4 * 1024 * 1024  # 1,000 keys of 1,024 bytes, some of them escaped
SMALL_DOCUMENT_BYTES_MAX = 64 * 1024
DELETE_OBJECTS_MAX = 1000
DEPTH_MAX = 8  # the deepest document, Tagging, has 4
ELEMENTS_MAX = 65_536  # 10,000 parts with checksums have 40,001
TEXT_CHARS_MAX = 8192  # no field is longer than a key

_CHECKSUMS = {f"Checksum{algorithm}": algorithm for algorithm in Algorithm}


class CompletedPart(NamedTuple):
    """One part of CompleteMultipartUpload."""

    number: int
    etag: str
    checksum: Checksum | None


def parse_complete_multipart(body: bytes) -> list[CompletedPart]:
    """1 … 10,000 parts in ascending order.

    Raises StoreError: MalformedXML, InvalidPartOrder, InvalidArgument (part number), InvalidRequest (checksum).
    """
    root = parse_document(body, "CompleteMultipartUpload", COMPLETE_BYTES_MAX)
    parts = [_completed_part(element) for element in root.all("Part")]
    if not 1 <= len(parts) <= PART_NUMBER_MAX:
        raise malformed()
    if any(later.number <= part.number for part, later in itertools.pairwise(parts)):
        raise StoreError("InvalidPartOrder")
    return parts


def _completed_part(element: Element) -> CompletedPart:
    fields = element.fields()
    number = _required(fields, "PartNumber").strip()
    if not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise malformed()
    if not 1 <= int(number) <= PART_NUMBER_MAX:
        raise StoreError(
            "InvalidArgument",
            f"PartNumber must be an integer between 1 and {PART_NUMBER_MAX}, inclusive",
            ArgumentName="PartNumber",
            ArgumentValue=number,
        )
    checksums = [name for name in fields if name in _CHECKSUMS and fields[name]]
    if len(checksums) > 1:
        raise StoreError("InvalidRequest", "A part has more than one checksum.")
    checksum = parse_checksum(_CHECKSUMS[checksums[0]], fields[checksums[0]].strip()) if checksums else None
    return CompletedPart(int(number), _required(fields, "ETag").strip().strip('"'), checksum)


class ObjectToDelete(NamedTuple):
    """One entry of DeleteObjects. `condition` is None if it is deleted whatever it is."""

    key: str
    version_id: str | None
    condition: WriteCondition | None = None


class DeleteRequest(NamedTuple):
    """DeleteObjects' document."""

    objects: list[ObjectToDelete]
    quiet: bool


def parse_delete(body: bytes) -> DeleteRequest:
    """1 … 1,000 objects. Keys over S3's length are not refused here: they fail one by one.

    Raises StoreError: MalformedXML, InvalidArgument (a condition that cannot be read).
    """
    root = parse_document(body, "Delete", DELETE_BYTES_MAX)
    objects = [_object_to_delete(element.fields()) for element in root.all("Object")]
    if not 1 <= len(objects) <= DELETE_OBJECTS_MAX:
        raise malformed()
    return DeleteRequest(objects, root.text_of("Quiet").strip().lower() == "true")


def _object_to_delete(fields: dict[str, str]) -> ObjectToDelete:
    condition = make_delete_condition(fields.get("ETag"), fields.get("Size"), fields.get("LastModifiedTime"))
    return ObjectToDelete(_required(fields, "Key"), fields.get("VersionId") or None, condition)


def parse_create_bucket(body: bytes) -> str | None:
    """LocationConstraint, or None (an empty body too).

    Raises StoreError: MalformedXML, NotImplemented (directory buckets, tags).
    """
    if not body.strip():
        return None
    root = parse_document(body, "CreateBucketConfiguration", SMALL_DOCUMENT_BYTES_MAX)
    for name in ("Location", "Bucket", "Tags"):
        if root.first(name) is not None:
            raise StoreError("NotImplemented", f"The element {name} of CreateBucketConfiguration is not implemented.")
    return root.text_of("LocationConstraint").strip() or None


def parse_versioning(body: bytes) -> str:
    """`Enabled` or `Suspended`.

    Raises StoreError: MalformedXML, IllegalVersioningConfigurationException, NotImplemented (MFA delete).
    """
    root = parse_document(body, "VersioningConfiguration", SMALL_DOCUMENT_BYTES_MAX)
    if root.text_of("MfaDelete").strip() not in ("", "Disabled"):
        raise StoreError("NotImplemented", "MFA delete is not implemented.")
    if root.first("Status") is None:
        raise StoreError("IllegalVersioningConfigurationException", "The Versioning element must be specified")
    status = root.text_of("Status").strip()
    if status not in ("Enabled", "Suspended"):
        raise malformed()
    return status


def parse_tagging(body: bytes) -> list[tuple[str, str]]:
    """Tags in order, checked. Raises StoreError: MalformedXML, InvalidTag."""
    tag_set = parse_document(body, "Tagging", SMALL_DOCUMENT_BYTES_MAX).first("TagSet")
    if tag_set is None:
        raise malformed()
    fields = [element.fields() for element in tag_set.all("Tag")]
    tags = [(_required(tag, "Key"), tag.get("Value", "")) for tag in fields]
    check_tags(tags)
    return tags


BLOCK_PUBLIC_ACLS, IGNORE_PUBLIC_ACLS = "BlockPublicAcls", "IgnorePublicAcls"
PUBLIC_ACCESS_SETTINGS = (BLOCK_PUBLIC_ACLS, IGNORE_PUBLIC_ACLS, "BlockPublicPolicy", "RestrictPublicBuckets")


def parse_public_access_block(body: bytes) -> dict[str, bool]:
    """The four settings; one that is not given is false. Raises StoreError MalformedXML."""
    fields = parse_document(body, "PublicAccessBlockConfiguration", SMALL_DOCUMENT_BYTES_MAX).fields()
    values = {name: fields.get(name, "").strip().lower() for name in PUBLIC_ACCESS_SETTINGS}
    if not set(values.values()) <= {"", "true", "false"}:
        raise malformed()
    return {name: value == "true" for name, value in values.items()}


class Element:
    """An element of a parsed document: its name without prefix, its text, its children."""

    __slots__ = ("children", "name", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.children: list[Element] = []

    def all(self, name: str) -> Iterator[Element]:
        """The children of that name."""
        return (child for child in self.children if child.name == name)

    def first(self, name: str) -> Element | None:
        """The first child of that name."""
        return next(self.all(name), None)

    def text_of(self, name: str) -> str:
        """The text of the only child of that name, empty without one. Raises StoreError MalformedXML if there are two."""
        found = list(self.all(name))
        if len(found) > 1 or (found and found[0].children):
            raise malformed()
        return found[0].text if found else ""

    def fields(self) -> dict[str, str]:
        """The texts of all children. Raises StoreError MalformedXML if a name comes twice or a child has children."""
        fields = {child.name: child.text for child in self.children}
        if len(fields) != len(self.children) or any(child.children for child in self.children):
            raise malformed()
        return fields


def _required(fields: dict[str, str], name: str) -> str:
    text = fields.get(name)
    if not text:
        raise malformed()
    return text


class _TreeBuilder:
    """Builds elements from expat's events; a document type, which could define entities, ends it."""

    def __init__(self, bytes_max: int) -> None:
        self.root: Element | None = None
        self._bytes_max = bytes_max
        self._open: list[Element] = []
        self._count = 0

    def parse(self, body: bytes) -> None:
        if len(body) > self._bytes_max:
            raise StoreError("MaxMessageLengthExceeded", MaxMessageLengthBytes=str(self._bytes_max))
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(body, True)
        except (expat.ExpatError, ValueError, LookupError):  # the last two: encodings that Python cannot decode
            raise malformed() from None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= DEPTH_MAX or self._count > ELEMENTS_MAX:
            raise malformed()
        element = Element(name.rpartition(":")[2] if ":" in name else name)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _characters(self, text: str) -> None:
        element = self._open[-1]
        element.text += text
        if len(element.text) > TEXT_CHARS_MAX:
            raise malformed()

    def _doctype(self, *_: object) -> None:
        raise malformed()


def parse_document(body: bytes, root_name: str, bytes_max: int) -> Element:
    """A whole document. Raises StoreError MalformedXML, also if its root is another or it is too large."""
    builder = _TreeBuilder(bytes_max)
    builder.parse(body)
    if builder.root is None or builder.root.name != root_name:
        raise malformed()
    return builder.root


def malformed() -> StoreError:
    """For a document that is not what it should be."""
    return StoreError("MalformedXML")
