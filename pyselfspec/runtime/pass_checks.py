"""Refuses arguments that a pass cannot take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..util.sizes import INT32_MAX
from .passes import Hidden, PictureRows, Rows

if TYPE_CHECKING:
    from .context import Context
    from .model import Model


def require_positions(context: Context, rows: Rows) -> None:
    """Raise ArgumentError for sequences and positions that a context does not have."""
    n_positions = context.model.n_positions
    for _, seq_id, pos in rows.places():
        if not 0 <= seq_id < context.n_seq_max:
            raise ArgumentError(
                f"sequence id {seq_id} is not allowed, the context has 0 to {context.n_seq_max - 1}"
            )
        if not -INT32_MAX <= pos <= INT32_MAX:
            raise ArgumentError(
                f"position {pos} is not allowed, the next batch of sequence {seq_id} "
                f"starts at {context.sequence(seq_id).n_past}"
            )
        if n_positions is not None and pos >= n_positions:
            raise ArgumentError(
                f"position {pos} is not allowed, the model has positions 0 to "
                f"{n_positions - 1}; end the text there"
            )


def states_width(model: Model, blocks: Sequence[int]) -> int:
    """Return the number of values per token in the states that enter these blocks.
    Raises ArgumentError for blocks that the model does not have."""
    n_layer, n_last = model.n_layer, model.last_states_width
    last = n_layer + bool(n_last)
    for block in blocks:
        if not 1 <= block <= last:
            raise ArgumentError(f"hidden_at is 1 to {last}, got {block}")
    return sum(model.n_embd if block <= n_layer else n_last for block in blocks)


def require_states(
    model: Model, hidden: Hidden, n_rows: int, *, n_values: int | None = None
) -> None:
    """Raise ArgumentError for states that are not one row of n_values per token, by default of the
    model's width."""
    n_values = model.n_embd if n_values is None else n_values
    shape = hidden.numpy().shape
    if shape[1] != n_values:
        raise ArgumentError(f"hidden states have shape [n_tokens, {n_values}], got {list(shape)}")
    if len(hidden) != n_rows:
        raise ArgumentError(f"{n_rows} tokens do not go with {len(hidden)} hidden states")


def require_picture(context: Context, picture: PictureRows, n_rows: int) -> None:
    """Raise ArgumentError for rows of a picture that are not n_rows of the width of the model's
    input, each with a row and a column or none with them, and for none or too many."""
    if not n_rows:
        raise ArgumentError("a pass over a picture needs its rows, got none")
    if n_rows > context.n_batch:
        raise ArgumentError(
            f"{n_rows} rows of a picture do not fit into a pass of {context.n_batch}; give a "
            "larger n_batch"
        )
    model = context.model
    require_states(model, picture.states, n_rows, n_values=model.n_embd_in)
    if picture.grid is not None and picture.grid.shape != (n_rows, 2):
        raise ArgumentError(
            f"a grid has shape [{n_rows}, 2] for {n_rows} rows, got {list(picture.grid.shape)}"
        )
