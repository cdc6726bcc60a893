"""The lookup of token embeddings by index, with gradients that are added up in float32."""

from __future__ import annotations

from typing import Any

from praxis import pax_fiddle
from praxis.layers import base_ops

from rosetta.nn import embedding_lookup
from rosetta.nn.mesh_axes import list_axis_names
from rosetta.pax import current_mesh

EXACT = "exact"  # the value of EMBEDDING_LOOKUP_STYLE


class ExactLookup(base_ops.ArrayLookup):
    """Look up rows of a table. The gradient of a row is a sum in float32, rounded once.

    Attributes:
      table_split: The axes of the mesh that split each dimension of the table [vocabulary,
        features]; None if there is no mesh.
      batch_split: Those that split the first dimension of the ids.
    """

    table_split: Any = None
    batch_split: Any = None

    def __call__(self, table: Any, ids: tuple[Any]) -> Any:
        """Return table[ids], [..., features].

        Args:
          table: [vocabulary, features].
          ids: The ids [...], in a tuple of one.
        """
        return embedding_lookup.look_up_rows(self._find_layout(), table, ids[0])

    def _find_layout(self) -> embedding_lookup.Layout | None:
        """Return how the arrays lie on the mesh of Praxis, None without a mesh."""
        mesh = current_mesh.find_mesh()
        if self.table_split is None or mesh is None:
            return None
        return embedding_lookup.Layout(
            mesh,
            *(list_axis_names(entry) for entry in (*self.table_split, self.batch_split)),
        )


def set_lookup_style(embedding: Any, style: str) -> None:
    """Set how an embedding looks up rows, in place.

    Args:
      embedding: The configuration of Praxis' SharedEmbeddingSoftmax or Embedding, with its layout.
      style: "exact", or a lookup style of Praxis.
    """
    if style != EXACT:
        embedding.lookup_style = style
        return
    embedding.lookup_style = "index"
    is_shared = hasattr(embedding, "array_lookup_tpl")
    table_split = embedding.weight_split_dims_mapping.wt
    if table_split is not None and is_shared:
        table_split = table_split[::-1]  # the kernel of the softmax is [features, vocabulary]
    output_split = embedding.activation_split_dims_mapping.emb_out_split_dims_mapping
    lookup = pax_fiddle.Config(
        ExactLookup,
        table_split=table_split,
        batch_split=output_split[0] if output_split else None,
    )
    if is_shared:
        embedding.array_lookup_tpl = lookup
    else:
        embedding.array_lookup = lookup
