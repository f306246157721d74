"""Formulas as MathML, which browsers render themselves, so that no font or script is fetched from elsewhere."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator


def mathml(formula: str, display: str) -> str:
    """Converts a formula, `inline` or as a `block`.

    Raises:
        ExtensionError: The converter does not know a command, which a reader would see as text.
    """
    found = convert(formula, display=display)
    if "\\" in found:
        raise ExtensionError(f"a command in this formula has no meaning in MathML: {formula}")
    return found


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    # A formula that is wider than a phone scrolls in its own box.
    translator.body.append(f'<div class="formula">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the renderer with Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
