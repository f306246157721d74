"""Formulas become MathML, or the build of the site fails."""

import pytest
from sphinx.errors import ExtensionError

from mathml import mathml


def test_a_command_without_meaning_is_found() -> None:
    """The converter itself would write it as text."""
    assert "max" in mathml(r"\argmax_{a} Q(s, a)", "block")
    with pytest.raises(ExtensionError, match="has no meaning"):
        mathml(r"\arg\max_{a} Q(s, a)", "inline")
