"""Checkpoints that other programs wrote, made readable like ours.

Each reader describes what it finds as a `Manifest` over a place that `fetch` can read by ranges; so subtrees, `like`,
resharding and partial reads work alike. Such a manifest has no checksums, because the others store none.
"""
