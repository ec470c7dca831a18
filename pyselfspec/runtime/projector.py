"""A projector: the file beside a model's own that turns pictures into rows of the model's input."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from ..errors import ArgumentError, ModelFileError, UnsupportedError
from ..gguf import projector as projector_file
from ..util.closable import Closing
from ..util.image_size import FORMATS, PNG, is_webp, size_of
from ..util.machine import usable_cores
from ..util.png_size import unpacks_as_stated
from ..util.webp import as_bmp
from .context_options import N_THREADS_MAX, require_range
from .ffi import pictures as ffi
from .ffi.load import require_not_forked
from .model import Model
from .passes import Hidden, PictureRows
from .pictures import Picture, row_ids

MARKER = "<__media__>"  # of a picture's place in a prompt, as in llama.cpp
N_PIXELS = 1 << 25  # of a picture; 100 MB when decoded
N_KEPT_BYTES = 1 << 28  # of the states of earlier pictures


class Projector(Closing):
    """Reads pictures for one model; thread-safe. Closing the model closes it; closing twice is
    fine.

    path: a GGUF file, often called mmproj. n_threads: CPU threads; default: all cores.

    Raises ModelFileError for a file that is not a projector of this model, UnsupportedError for one
    that reads sounds only.
    """

    def __init__(self, model: Model, path: str | Path, *, n_threads: int | None = None) -> None:
        self.model = model
        self.path = Path(path)
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Picture] = OrderedDict()
        self._handle = None
        projector_file.check(self.path)
        n_threads = min(usable_cores(), N_THREADS_MAX) if n_threads is None else n_threads
        require_range("n_threads", n_threads, 1, N_THREADS_MAX)
        on_gpu = model.n_gpu_layers > 0
        with model.in_use():
            handle = ffi.open_projector(self.path, model.handle, n_threads, on_gpu)
        if not handle:
            reason = ffi.last_error() or "it gives no reason"
            raise ModelFileError(f"{self.path}: libmtmd cannot load this projector: {reason}")
        self._handle = handle
        model.contexts.add(self)  # closed before the model is freed, whose vocabulary it reads
        try:
            if not ffi.sees(handle):
                raise UnsupportedError(f"{path} reads sounds only; give a projector for pictures")
        except BaseException:
            self.close()
            raise

    def read(self, data: bytes) -> Picture:
        """Return the picture in a file's bytes. Pictures that were read before are kept.

        Raises ArgumentError for another format, a picture that is too large, and a broken one,
        LibraryError in a process that was forked after the library was loaded.
        """
        require_not_forked()
        size = size_of(data)
        if size is None:
            raise ArgumentError(f"the picture is in no known format; send {FORMATS}")
        width, height = size
        if not 0 < width * height <= N_PIXELS:
            raise ArgumentError(
                f"the picture has {width} x {height} pixels, allowed are {N_PIXELS}; make it "
                "smaller"
            )
        if data.startswith(PNG) and not unpacks_as_stated(data):
            raise ArgumentError(
                f"the picture cannot be decoded: its data are broken, or unpack to more than its "
                f"{width} x {height} pixels; save it again"
            )
        key = row_ids(data, 0, 1)[0]
        with self.model.in_use(), self._lock:
            if self._handle is None:
                raise ArgumentError("the projector is closed")
            picture = self._kept.pop(key, None) or self._read(data)
            self._kept[key] = picture
            while len(self._kept) > 1 and self._n_kept_bytes > N_KEPT_BYTES:
                self._kept.popitem(last=False)
        return picture

    def prompt(self, text: str, files: Sequence[bytes]) -> tuple[list[int], list[Picture]]:
        """Return the tokens of a prompt with a picture at each MARKER, or with all of them before a
        text without one, and the pictures.

        files: the bytes of each picture's file. Raises ArgumentError where ``read`` does, and for
        another number of markers.
        """
        parts = text.split(MARKER)
        if len(parts) == 1:
            parts = [""] * len(files) + parts
        if len(parts) != len(files) + 1:
            raise ArgumentError(
                f"the number of {MARKER} in the prompt is {len(parts) - 1}, and that of pictures "
                f"is {len(files)}; give a picture for each {MARKER}, or a prompt without any"
            )
        pictures = [self.read(data) for data in files]
        tokens = self.model.tokenize(parts[0])
        for picture, part in zip(pictures, parts[1:], strict=True):
            tokens += [*picture.tokens, *self.model.tokenize(part, add_special=False)]
        return tokens, pictures

    @property
    def _n_kept_bytes(self) -> int:
        return sum(each.n_bytes for each in self._kept.values())

    def _read(self, data: bytes) -> Picture:
        tokens: list[int] = []
        rows = []
        file = as_bmp(data) if is_webp(data) else data
        for i, chunk in enumerate(ffi.read_picture(self._handle, file, self.model.n_embd_in)):
            if chunk.states is None:
                tokens += chunk.tokens
                continue
            ids = row_ids(data, i, len(chunk.states))
            tokens += ids
            rows.append((ids, PictureRows(Hidden(chunk.states), chunk.is_causal, chunk.grid)))
        return Picture(tuple(tokens), tuple(rows))

    def close(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                self.model.contexts.discard(self)
                ffi.free_projector(handle)
