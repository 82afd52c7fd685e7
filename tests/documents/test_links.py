"""Every link of the documents leads somewhere, and the site's navigation has every page.

``make docs`` checks the same, and more, with Sphinx; this takes a second and needs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from documents import CHECKOUT, DOCS, blocks
from markdown_it import MarkdownIt
from markdown_it.token import Token

PAGES = [
    *sorted(DOCS.glob("*.md")),
    *(CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md", "experiments/README.md")),
]
_PARSER = MarkdownIt("gfm-like", {"linkify": False})
_NOT_ALWAYS = "*"  # ends the name of a page that need not exist


def tokens(page: Path) -> Iterator[Token]:
    for token in _PARSER.parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


@cache
def anchors(page: Path) -> frozenset[str]:
    """Those of headings, as GitHub and MyST make them."""
    found: list[str] = []
    parsed = list(tokens(page))
    for before, token in pairwise(parsed):
        if before.type == "heading_open":
            text = "".join(each.content for each in token.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            again = sum(re.sub(r"-\d+$", "", one) == slug for one in found)
            found.append(f"{slug}-{again}" if again else slug)
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(CHECKOUT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = [
        str(token.attrs.get("href", token.attrs.get("src")))
        for token in tokens(page)
        if token.type in ("link_open", "image")
    ]
    for link in links:
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.is_file(), f"{page.name}: {link}: there is no such file"
        if target.parent == DOCS and page.parent == DOCS:
            assert target.suffix in (".md", ".png"), f"{page.name}: {link}: not a part of the site"
        if page.parent == DOCS and target.suffix == ".md":
            assert target.parent == DOCS, f"{page.name}: {link}: the site has no such page"
        if parts.fragment:
            assert parts.fragment in anchors(target), f"{page.name}: {link}: no such heading"


def test_the_navigation_has_every_page_once() -> None:
    lines = [
        line.strip()
        for block in blocks(DOCS / "index.md")
        if block.language == "{toctree}"
        for line in block.text.splitlines()
    ]
    entries = [line for line in lines if line and not line.startswith(":")]
    assert len(entries) == len(set(entries))
    listed = {entry.removesuffix(_NOT_ALWAYS) for entry in entries}
    always = {entry for entry in entries if not entry.endswith(_NOT_ALWAYS)}
    exist = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert always <= exist
    assert exist <= listed, "write these pages into a toctree of docs/index.md"
