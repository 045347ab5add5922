"""What a page of the site would load from other hosts. Nothing, so that it works without a network."""

from __future__ import annotations

import re

LOADED = re.compile(r"""<(?:script|img|iframe|source|video)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)""")
LINKED = re.compile(r"""<link\b(?![^>]*\brel=["']?canonical)[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)""")


def from_other_hosts(html: str) -> list[str]:
    """Addresses of scripts, styles, fonts and images on other hosts. Links that readers follow do not count."""
    return LOADED.findall(html) + LINKED.findall(html)
