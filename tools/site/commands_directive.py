"""The directive ``{commands}``: the reference of all commands, made while the site is built."""

from __future__ import annotations

from typing import Any

from command_reference import reference
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective


class Commands(SphinxDirective):
    """Puts the reference in its place, as sections of the page."""

    def run(self) -> list[nodes.Node]:
        """Parse the Markdown of the reference as the page's own."""
        lines = StringList(reference().splitlines(), source=self.env.doc2path(self.env.docname))
        parent = nodes.section()
        parent.document = self.state.document
        self.state.nested_parse(lines, self.content_offset, parent, match_titles=True)
        return list(parent.children)


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
