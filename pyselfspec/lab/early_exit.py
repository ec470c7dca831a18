"""The base of drafters that leave the model early. They draft in the sequence of the text, and the
verification pass does not run the first blocks again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from ..costs.lookup import costs_with_mask
from ..costs.table import CostTable
from ..errors import UnsupportedError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.passes import Rows
from ..speculate.drafters import Drafter
from ..speculate.drafters._chain import Chain
from ..speculate.drafters.layer_skip.shared_blocks import SharedBlocks
from ..speculate.limits import DraftLimit, Pick
from ..speculate.pass_requests import PassRequest, Work
from ..speculate.types import Draft


class EarlyExitDrafter(Drafter):
    """Drafts token by token after an exit.

    Raises UnsupportedError where passes cannot enter after the blocks that come before it.
    """

    def __init__(self, context: Context, exit_layer: int) -> None:
        super().__init__(context)
        self._exit = LayerMask.early_exit(context.model.n_layer, exit_layer)
        if not SharedBlocks.possible(context, self._exit):
            raise UnsupportedError(
                f"architecture {context.model.file.architecture}: passes cannot enter after block "
                f"{exit_layer}; draft with layer-skip"
            )
        self._seq = context.sequence()

    @property
    def mask(self) -> LayerMask:
        return self._exit

    def costs(self) -> CostTable:
        return costs_with_mask(self._context, self._exit, shares=True)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._seq = seq

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        return Draft() if limit.n_max == 0 else self._drafted(history, limit)

    def _drafted(self, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        n_past, shared = len(history) - 1, SharedBlocks(self._exit)
        chain = Chain(Draft(), limit, self._context.model.is_eog, self.name)
        text, n_run = [history[-1]], 0  # and the draft; tokens of it that went through a pass
        self.start()
        with ExitStack() as stack:
            stack.callback(self._seq.rollback_if_open, n_past)
            while chain.is_open:
                pick = yield from self.pick(n_past, text, n_run, shared, limit)
                n_run = len(text)
                chain.add(pick)
                if chain.dropped is None:
                    text.append(pick.token)
            if chain.dropped is None:
                rows = Rows.of(self._seq.seq_id, n_past + n_run, text[n_run:], "none")
                shared.keep((yield PassRequest(rows, shared.below())).hidden)
            stack.pop_all()
        return replace(chain.draft(), verification=shared.verification())

    def start(self) -> None:
        """Begin a draft."""

    @abstractmethod
    def pick(
        self, pos: int, text: Sequence[int], n_run: int, shared: SharedBlocks, limit: DraftLimit
    ) -> Work[Pick]:
        """Run the tokens of text from n_run on, keep their hidden states, and return the token
        that is drafted after them.

        pos: of the first token of text. text: the last token of the text, and the draft so far.
        """
