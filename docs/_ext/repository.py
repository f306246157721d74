"""A Sphinx extension for links to what is in the repository and not in the site.

A link to a file leads to a copy of that file: MyST sees to it. A folder cannot be copied: its name stays, as text.
"""

from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def name_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Puts its text in the place of each link to a folder; a link to nothing is left, to be reported as broken."""
    for link in list(doctree.findall(pending_xref)):
        # MyST gives a domain to what it takes for a page.
        is_path = link["reftype"] == "myst" and link["refdomain"] is None
        if is_path and Path(app.srcdir, link["refdoc"]).parent.joinpath(link["reftarget"]).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the extension with Sphinx."""
    app.connect("doctree-read", name_folders)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
