"""Pictures that remember what they show, so that a test can tell when they are out of date."""

import io
from pathlib import Path

from PIL import Image, PngImagePlugin


def save(path: Path, png: bytes, texts: dict[str, str]) -> None:
    """Writes a picture in few colours, with texts under their names in its metadata."""
    remembered = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        remembered.add_itxt(name, text)
    image = Image.open(io.BytesIO(png)).convert("P", palette=Image.Palette.ADAPTIVE)
    image.save(path, optimize=True, pnginfo=remembered)
