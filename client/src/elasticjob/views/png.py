"""SVG images as PNG, without a browser. Pure, except that it reads the fonts of this machine."""

from __future__ import annotations

import resvg_py

from elasticjob.errors import ElasticJobError
from elasticjob.views.svg import FONTS

_SIZE = "xmlns='http://www.w3.org/2000/svg' width='40' height='20'"
_NOTHING = f"<svg {_SIZE}/>"
_TEXT = f"<svg {_SIZE}><text x='2' y='15' font-family='{FONTS}' font-size='12'>text</text></svg>"


def to_png(svg: str) -> bytes:
    """With two pixels per unit of the SVG. Raises ElasticJobError if this machine has no font: the image would have no
    text."""
    if resvg_py.svg_to_bytes(svg_string=_TEXT) == resvg_py.svg_to_bytes(svg_string=_NOTHING):
        raise ElasticJobError(
            "Cannot draw a PNG: this machine has no fonts.",
            "Install some (on Debian: apt-get install fonts-dejavu-core), or write .svg or .html instead.",
        )
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2))
