"""What other programs look for beside a checkpoint's data: views that refer to the same bytes. Written after the commit.

Which view serves whom: `ocdbt` (TensorStore, and under Orbax and Levanter), `orbax`, `levanter`, `huggingface`. Losing a view loses
nothing: all of them follow from the manifest, and `write` may be called again at any time.
"""

from forebay.checkpoint.views.write import encode_manifest, view_objects, write

__all__ = ["encode_manifest", "view_objects", "write"]
