"""Buckets, objects, versions and uploads on erasure-coded drives.

The protocol is in docs/engine.md. What the rooms above use::

    engine = open_engine(layout, shared, notify=...)     # see engine/opening.py

Reads (synchronous; microseconds when the index is in memory, so fine on an event loop, except where a thread is asked for):

    engine.bucket(name) -> Bucket                                   NoSuchBucket
    engine.list_buckets() -> list[Bucket]
    engine.find(bucket, key, version_id=None) -> Found       NoSuchBucket, NoSuchKey, NoSuchVersion, MethodNotAllowed
    engine.open(bucket, key, version_id=None) -> Opened      and the content of a small object (`.content`)
    engine.reader(opened, start, stop) -> Reader             when `.content` is None, in a thread: iterate verified memoryviews
    engine.list_objects(bucket, prefix=, delimiter=, after=, limit=) -> ObjectPage
    engine.list_versions(bucket, prefix=, delimiter=, key_marker=, version_marker=, limit=) -> VersionPage
    engine.list_uploads(bucket, prefix=, delimiter=, key_marker=, upload_marker=, limit=) -> UploadPage
    engine.upload(bucket, key, upload_id) -> Upload                  NoSuchUpload
    engine.list_parts(bucket, key, upload_id, after=, limit=) -> (Upload, list[Part], truncated)

Writes return an `Op`: `op.wait()` in a thread (returns the result or raises), or `on_done(op)` through `notify` on a loop:

    engine.put(bucket, key, bytes | WrittenBlob, attributes, condition=None, on_done=None) -> Op[Written]
    engine.delete(bucket, key, version_id=None, condition=None, on_done=None) -> Op[Deleted]
    engine.update(bucket, key, version_id, change, on_done=None) -> Op[str | None]
    engine.create_upload(bucket, key, attributes, ...) -> Op[Upload]
    engine.put_part(bucket, key, upload_id, number, data: WrittenBlob | list[Extent]…, etag, checksums) -> Op[Part]
    engine.complete(bucket, key, upload_id, parts, finish, condition=None) -> Op[Written]
    engine.abort(bucket, key, upload_id) -> Op[None]
    engine.copy(source: Opened, bucket, key, attributes, condition=None) -> Written   # blocking: in a thread

Blocking, in a thread:

    writer = engine.writer(bucket, key)      # large bodies: .buffer() -> memoryview, .filled(n), .finish() -> WrittenBlob, .abort()
    engine.create_bucket(name, owner=…), engine.delete_bucket(name), engine.set_versioning(name, status)

Every method raises StoreError and nothing else on purpose; drive faults are handled inside and surface as ServiceUnavailable,
InsufficientCapacity or InternalError only when too many drives are affected.
"""
