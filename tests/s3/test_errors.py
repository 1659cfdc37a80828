"""Error documents, as botocore reads them, and a table that covers what the code raises."""

import ast
from pathlib import Path

import botocore.parsers
import pytest

import forebay.s3
from forebay.errors import StoreError
from forebay.s3.errors import ERRORS, error_document, status_of


def read(answer):
    response = {"status_code": answer.status, "headers": answer.headers, "body": answer.body}
    return botocore.parsers.create_parser("rest-xml").parse(response, None)["Error"]


def test_document():
    error = StoreError("NoSuchKey", headers={"X-Extra": "1"}, Key="a<&>\x01", BucketName="b")
    answer = error_document(error, "/b/a<&>", "REQ", "HOST")
    assert answer.status == 404
    assert answer.headers == {"Content-Type": "application/xml", "X-Extra": "1"}
    assert answer.body.startswith(b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code>')
    assert b"<Key>a&lt;&amp;&gt;&#x1;</Key>" in answer.body
    answer = error_document(StoreError("NoSuchKey"), "/b/k&", "REQ", "HOST")
    assert read(answer) == {
        "Code": "NoSuchKey",
        "Message": "The specified key does not exist.",
        "Resource": "/b/k&",
    }
    assert answer.body.endswith(b"<RequestId>REQ</RequestId><HostId>HOST</HostId></Error>")


def test_own_message_and_unknown_codes():
    assert read(error_document(StoreError("InvalidArgument", "mine"), "/", "r", "h"))["Message"] == "mine"
    answer = error_document(StoreError("Surprise"), "/", "r", "h")
    assert answer.status == 500
    assert read(answer)["Code"] == "Surprise"


def test_not_modified_has_no_body():
    answer = error_document(StoreError("NotModified", headers={"ETag": '"e"'}), "/b/k", "r", "h")
    assert answer == (304, {"ETag": '"e"'}, b"")


@pytest.mark.parametrize(
    ("code", "status"),
    [("SlowDown", 503), ("InvalidRange", 416), ("PreconditionFailed", 412), ("NotImplemented", 501), ("InsufficientCapacity", 507)],
)
def test_statuses(code, status):
    assert status_of(code) == status


def raised_codes():
    """Every literal first argument of StoreError(...) in the store's rooms."""
    for path in Path(forebay.s3.__file__).parent.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "StoreError" and node.args:
                argument = node.args[0]
                if isinstance(argument, ast.Constant):
                    yield path.name, argument.value


def test_every_code_that_is_raised_is_in_the_table():
    codes = list(raised_codes())
    assert len(codes) > 50
    assert [(name, code) for name, code in codes if code not in ERRORS] == []


def test_messages_are_sentences():
    assert [code for code, kind in ERRORS.items() if not kind.message or not 300 <= kind.status < 600] == []
