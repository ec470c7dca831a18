"""The native handles of a context."""

from __future__ import annotations

import threading

from ..errors import ArgumentError, DecodeError
from ..util.closable import Closing
from .abilities import Abilities
from .ffi import calls
from .ffi.load import llama, native, require_not_forked


class ContextHandle(Closing):
    """A llama.cpp context and this package's session on it. Closing twice is fine.

    context: the address of the llama.cpp context.
    is_owned: whether closing frees that context; False leaves it to its owner.

    Raises DecodeError where memory is short (an owned context is freed then), LibraryError in a
    process that was forked after the library was loaded.
    """

    def __init__(self, context: int, *, is_owned: bool) -> None:
        require_not_forked()
        self.is_owned = is_owned
        self._context: int | None = context
        self._in_session = threading.RLock()  # no other thread may stop passes while it is freed
        self._session: int | None = native.selfspec_init(context)
        if not self._session:
            self._free_context()
            raise DecodeError("not enough memory for a context")

    @property
    def closed(self) -> bool:
        return self._context is None

    @property
    def context(self) -> int:
        """The address of the llama.cpp context. Raises ArgumentError when closed."""
        if self._context is None:
            raise ArgumentError("the context is closed")
        return self._context

    @property
    def session(self) -> int:
        """The address of the session. Raises ArgumentError when closed."""
        if self._session is None:
            raise ArgumentError("the context is closed")
        return self._session

    def abilities(self, architecture: str, n_batch: int) -> Abilities:
        """Ask the library for the abilities of the context.

        architecture: of the model. n_batch: most rows of a pass.
        """
        bits, exact_width = calls.session_memory(self.session), calls.exact_width(self.session)
        return Abilities(
            architecture=architecture,
            is_causal=bool(bits & calls.MEMORY_CAUSAL),
            has_memory=bool(llama.llama_get_memory(self.context)),
            can_rollback=bool(bits & calls.MEMORY_ROLLBACK),
            max_rollback=calls.max_rollback(self.session),
            has_states=bool(bits & calls.MEMORY_STATES),
            has_flash_attn=bool(bits & calls.MEMORY_SCATTER),
            exact_width=exact_width,
            exact_prompts=calls.exact_prompts(self.session),
            pass_width=exact_width or n_batch,
        )

    def stop_passes(self, stopped: bool) -> None:
        """Stop passes, or let them run again, from any thread; True raises ArgumentError when
        closed."""
        with self._in_session:
            if stopped:
                native.selfspec_stop_passes(self.session, True)
            elif self._session is not None:
                native.selfspec_stop_passes(self._session, False)

    def close(self) -> None:
        with self._in_session:
            session, self._session = self._session, None
            if session is None:
                return
            # freeing waits for the devices, and ends the process where one is lost
            is_lost = self.is_owned and calls.is_lost(session)
            native.selfspec_free(session)
        if is_lost:
            self._context = None
        else:
            self._free_context()

    def _free_context(self) -> None:
        context, self._context = self._context, None
        if context is not None and self.is_owned:
            llama.llama_free(context)
