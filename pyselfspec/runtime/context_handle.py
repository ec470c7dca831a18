"""The native handles of a context."""

from __future__ import annotations

import threading

from ..errors import ArgumentError, DecodeError
from ..util.closable import Closing
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
