"""A Sphinx extension for links to files in the repository that are not in the site.

A file that a page links to gets its own page, with coloured and numbered lines. A folder gets none: its name stays as
text.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import find_lexer_class_for_filename
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.typing import ExtensionMetadata

from line_breaks import breakable

# The folder in the site for the pages of files
FOLDER = "source"


class OpenFiles(SphinxTransform):
    """Points each link to a file outside docs/ to that file's page; MyST would offer a copy to download."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Processes each link in a document."""
        docs = Path(self.env.srcdir).resolve()
        for link in list(self.document.findall(download_reference)):
            path = (docs / self.env.docname).parent.joinpath(link["reftarget"]).resolve()
            if not path.is_relative_to(docs):
                name = path.relative_to(docs.parent).as_posix()
                uri = self.app.builder.get_relative_uri(self.env.docname, f"{FOLDER}/{name}")
                link.replace_self(nodes.reference("", "", *link.children, internal=True, refuri=uri, opens=name))


def pages_of_files(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields the page of each file that some page links to."""
    doctrees = map(app.env.get_doctree, app.env.found_docs)
    links = [link for doctree in doctrees for link in doctree.findall(nodes.reference)]
    for name in sorted({link["opens"] for link in links if "opens" in link}):
        lexer = find_lexer_class_for_filename(name)
        language = lexer.aliases[0] if lexer else "text"
        text = Path(app.srcdir).parent.joinpath(name).read_text(encoding="utf-8")
        code = app.builder.highlighter.highlight_block(text, language, location=name, linespans="L")
        body = (
            f'<h1 class="path">{breakable(escape(name))}</h1>\n<div class="numbered highlight-{language}">{code}</div>'
        )
        yield f"{FOLDER}/{name}", {"title": name, "body": body}, "page.html"


def name_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Replaces each link to a folder by its text; a broken link is left, so that it is reported."""
    for link in list(doctree.findall(pending_xref)):
        # MyST sets a domain for links that it takes for pages.
        is_path = link["reftype"] == "myst" and link["refdomain"] is None
        if is_path and Path(app.srcdir, link["refdoc"]).parent.joinpath(link["reftarget"]).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the extension with Sphinx."""
    app.add_transform(OpenFiles)
    app.connect("doctree-read", name_folders)
    app.connect("html-collect-pages", pages_of_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
