"""WebP pictures, which libmtmd does not read. Pillow decodes them."""

from __future__ import annotations

from io import BytesIO

from ..errors import ArgumentError
from .extras import install_command
from .image_size import FORMATS


def as_bmp(data: bytes) -> bytes:
    """Return the first picture of a WebP file as a BMP file, without transparency, which others
    lose too. Raises ArgumentError for broken data, and without Pillow."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ArgumentError(
            f"the picture is a WebP file, which needs Pillow: {install_command('pictures')}; or "
            f"send {FORMATS}"
        ) from None
    made = BytesIO()
    try:
        with Image.open(BytesIO(data), formats=["WEBP"]) as image:
            image.convert("RGB").save(made, "BMP")
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the picture cannot be decoded: Pillow says {str(error).splitlines()[0]!r}; save it "
            f"again, or as {FORMATS}"
        ) from None
    return made.getvalue()
