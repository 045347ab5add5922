"""SVG as PNG."""

from __future__ import annotations

from typing import Any

import pytest
import resvg_py
from elasticjob.errors import ElasticJobError
from elasticjob.views import png

SVG = (
    "<svg xmlns='http://www.w3.org/2000/svg' width='30' height='10'><rect width='100%' height='100%' fill='red'/></svg>"
)


def test_an_image_has_two_pixels_per_unit() -> None:
    content = png.to_png(SVG)
    assert content.startswith(b"\x89PNG")
    assert content[16:24] == (60).to_bytes(4, "big") + (20).to_bytes(4, "big")


def test_a_machine_without_fonts_gets_a_sentence_instead_of_an_image_without_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = resvg_py.svg_to_bytes

    def without_fonts(**options: Any) -> bytes:
        return bytes(draw(**options, skip_system_fonts=True))

    monkeypatch.setattr(resvg_py, "svg_to_bytes", without_fonts)
    with pytest.raises(ElasticJobError, match="no fonts"):
        png.to_png(SVG)
