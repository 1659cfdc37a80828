"""From a request head to the operation that serves it: decode, authenticate, authorise, dispatch, and turn errors into answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from forebay.errors import StoreError
from forebay.s3.errors import error_document
from forebay.s3.request import Hosts, Request, parse_request
from forebay.s3.routing import IMPLEMENTED, Operation, check_headers, not_implemented, preflight_error, route
from forebay.s3.sigv4 import Verified, Verifier
from forebay.server.admin import ADMIN_BUCKET, Admin
from forebay.server.authorisation import authorise
from forebay.server.config import Config
from forebay.server.exchange import Answer, Exchange
from forebay.server.head import BadHead
from forebay.server.message import Response
from forebay.server.metrics import Counters
from forebay.server.operations import acls, bucket_config, buckets, copying, deleting, listing, multipart, reading, tagging, writing
from forebay.server.services import ANONYMOUS, Call, Identity, Services

_log = logging.getLogger("forebay.server")

Handler = Callable[[Services, Call], Answer]

HANDLERS: dict[Operation, Handler] = {
    Operation.LIST_BUCKETS: buckets.list_buckets,
    Operation.CREATE_BUCKET: buckets.create_bucket,
    Operation.HEAD_BUCKET: buckets.head_bucket,
    Operation.DELETE_BUCKET: buckets.delete_bucket,
    Operation.GET_BUCKET_LOCATION: buckets.get_bucket_location,
    Operation.GET_BUCKET_VERSIONING: buckets.get_bucket_versioning,
    Operation.PUT_BUCKET_VERSIONING: buckets.put_bucket_versioning,
    Operation.LIST_OBJECTS: listing.list_objects,
    Operation.LIST_OBJECTS_V2: listing.list_objects_v2,
    Operation.LIST_OBJECT_VERSIONS: listing.list_object_versions,
    Operation.LIST_MULTIPART_UPLOADS: multipart.list_multipart_uploads,
    Operation.DELETE_OBJECTS: deleting.delete_objects,
    Operation.PUT_OBJECT: writing.put_object,
    Operation.COPY_OBJECT: copying.copy_object,
    Operation.GET_OBJECT: reading.get_object,
    Operation.HEAD_OBJECT: reading.head_object,
    Operation.DELETE_OBJECT: deleting.delete_object,
    Operation.GET_OBJECT_ATTRIBUTES: reading.get_object_attributes,
    Operation.GET_OBJECT_TAGGING: tagging.get_object_tagging,
    Operation.PUT_OBJECT_TAGGING: tagging.put_object_tagging,
    Operation.DELETE_OBJECT_TAGGING: tagging.delete_object_tagging,
    Operation.CREATE_MULTIPART_UPLOAD: multipart.create_multipart_upload,
    Operation.UPLOAD_PART: multipart.upload_part,
    Operation.UPLOAD_PART_COPY: copying.upload_part_copy,
    Operation.LIST_PARTS: multipart.list_parts,
    Operation.COMPLETE_MULTIPART_UPLOAD: multipart.complete_multipart_upload,
    Operation.ABORT_MULTIPART_UPLOAD: multipart.abort_multipart_upload,
    Operation.GET_BUCKET_TAGGING: bucket_config.get_bucket_tagging,
    Operation.PUT_BUCKET_TAGGING: bucket_config.put_bucket_tagging,
    Operation.DELETE_BUCKET_TAGGING: bucket_config.delete_bucket_tagging,
    Operation.GET_PUBLIC_ACCESS_BLOCK: bucket_config.get_public_access_block,
    Operation.PUT_PUBLIC_ACCESS_BLOCK: bucket_config.put_public_access_block,
    Operation.DELETE_PUBLIC_ACCESS_BLOCK: bucket_config.delete_public_access_block,
    Operation.GET_BUCKET_ACL: acls.get_bucket_acl,
    Operation.PUT_BUCKET_ACL: acls.put_bucket_acl,
    Operation.GET_OBJECT_ACL: acls.get_object_acl,
    Operation.PUT_OBJECT_ACL: acls.put_object_acl,
}
assert HANDLERS.keys() == IMPLEMENTED


class Identities:
    """Who may sign: the credentials of the configuration."""

    def __init__(self, config: Config) -> None:
        secrets = {pair.access_key: pair.secret_key for pair in config.credentials}
        self._root = config.root.access_key
        self._verifier = Verifier(secrets.get, config.region)

    def identify(self, request: Request) -> tuple[Identity, Verified]:
        """Verify the signature; the identity of an unsigned request is ANONYMOUS. Raises StoreError."""
        verified = self._verifier.verify(request, time.time())
        if verified.access_key is None:
            return ANONYMOUS, verified
        return Identity(verified.access_key, verified.access_key == self._root), verified


class Gateway:
    """The application that a worker's listener serves."""

    def __init__(self, services: Services, identities: Identities, admin: Admin, counters: Counters) -> None:
        self._services = services
        self._identities = identities
        self._admin = admin
        self._counters = counters
        self._hosts = Hosts(services.config.domains)

    def handle(self, exchange: Exchange) -> Answer:
        """See Application."""
        head = exchange.head
        request = parse_request(head.method, head.target, head.headers, self._hosts)
        exchange.resource = request.resource
        if request.bucket == ADMIN_BUCKET and not request.virtual_hosted:
            exchange.operation = "Admin"
            return self._admin.handle(exchange, request)
        operation = route(request)
        exchange.operation = operation
        if operation is Operation.PREFLIGHT:
            raise preflight_error(request)
        identity, verified = self._identities.identify(request)
        authorise(self._services.engine, identity, operation, request)
        handler = HANDLERS.get(operation)
        if handler is None:
            raise not_implemented(operation, request)
        check_headers(request)
        return handler(self._services, Call(exchange, request, verified, identity, operation))

    def failed(self, exchange: Exchange, error: Exception) -> Response:
        """See Application."""
        if not isinstance(error, StoreError):
            _log.error("%s %s: %r", exchange.request_id, exchange.operation, error, exc_info=error)
            error = StoreError("InternalError")
        return _refusal(error, exchange.resource, exchange.request_id, exchange.host_id)

    def refused(self, error: BadHead | StoreError, request_id: str, host_id: str) -> Response:
        """See Application."""
        status = None
        if isinstance(error, BadHead):
            status, error = error.status, StoreError(error.code, error.message)
        response = _refusal(error, "", request_id, host_id)
        response.status = status or response.status
        self._counters.refused()
        return response

    def completed(self, exchange: Exchange, response: Response, sent_bytes: int) -> None:
        """See Application."""
        elapsed_s = time.perf_counter() - exchange.started_s
        self._counters.completed(exchange.operation, response.status, elapsed_s, exchange.received_bytes, sent_bytes)


def _refusal(error: StoreError, resource: str, request_id: str, host_id: str) -> Response:
    document = error_document(error, resource, request_id, host_id)
    return Response(document.status, document.headers, document.body, error_code=error.code)
