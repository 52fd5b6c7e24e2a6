"""Write the notebook of a tutorial: each block of Python code becomes a cell, the text between becomes Markdown cells.

    python scripts/make_notebook.py docs/tutorials/new-classes.md

A test compares the notebook in the repository with the page. People download the notebook alone, so it contains the
pictures of the page, and names other pages of the documentation instead of linking to them.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)

PICTURE = re.compile(r"!\[([^]]*)\]\(([^)]+\.png)\)")
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?:\.\./)?([\w/-]+)\.(?:md|ipynb)(?:#[\w-]+)?\)")


def notebook(page: Path) -> str:
    """The notebook of a page, as JSON."""
    cells = []
    for number, part in enumerate(BLOCK.split(page.read_text(encoding="utf-8"))):
        text = part.strip("\n")
        if text:
            cells.append(_cell(text, is_code=number % 2 == 1, number=len(cells), folder=page.parent))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cell(text: str, is_code: bool, number: int, folder: Path) -> dict[str, Any]:
    common = {"id": f"cell-{number}", "metadata": {}}
    if is_code:
        source = text.splitlines(keepends=True)
        return {"cell_type": "code", "execution_count": None, "outputs": [], **common, "source": source}
    pictures = {
        Path(file).name: {"image/png": b64encode((folder / file).read_bytes()).decode()}
        for _, file in PICTURE.findall(text)
    }
    text = PICTURE.sub(lambda found: f"![{found[1]}](attachment:{Path(found[2]).name})", text)
    text = LINK.sub(lambda found: f"{found[1]} (page {found[2]} of the documentation)", text)
    more = {"attachments": pictures} if pictures else {}
    return {"cell_type": "markdown", **common, **more, "source": text.splitlines(keepends=True)}


if __name__ == "__main__":
    given = Path(sys.argv[1])
    given.with_suffix(".ipynb").write_text(notebook(given), encoding="utf-8")
