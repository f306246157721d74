"""A Sphinx extension that removes files that a build leaves in the site for other builds, and no reader needs."""

import shutil
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

LEFTOVERS = (".buildinfo", "objects.inv")


def remove(app: Sphinx, _: Exception | None) -> None:
    """Removes them after the site is built."""
    for name in LEFTOVERS:
        Path(app.outdir, name).unlink(missing_ok=True)
    shutil.rmtree(Path(app.outdir, "_sources"), ignore_errors=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the extension with Sphinx."""
    app.connect("build-finished", remove)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
