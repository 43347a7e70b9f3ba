"""The page as one file, for a ticket or a chat: what it showed at one moment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from leash.page.server import STATIC


def write(path: Path, view: dict[str, Any]) -> None:
    """`view` as the page's server gives it, with its history."""
    path.write_text(html(view), encoding="utf-8")


def html(view: dict[str, Any]) -> str:
    """Styles, scripts and numbers in one; it fetches nothing."""
    page = (STATIC / "index.html").read_text()
    styles = (STATIC / "uPlot.css").read_text() + (STATIC / "style.css").read_text()
    page = re.sub(r'<link rel="stylesheet".*?>\n', "", page)
    page = page.replace("</head>", f"<style>{styles}</style>\n</head>")
    page = re.sub(r"  <a id=\"certificate\".*?</a>\n", "", page)
    scripts = re.search(r'<script src="uPlot.js">.*</script>\n', page, re.DOTALL)
    assert scripts is not None
    draw = re.sub(r"^export ", "", (STATIC / "draw.js").read_text(), flags=re.MULTILINE)
    numbers = json.dumps(view | {"about": view["about"] | {"actions": False}}).replace("<", "\\u003c")
    made = (
        f"<script>{(STATIC / 'uPlot.js').read_text()}</script>\n"
        f'<script type="application/json" id="view">{numbers}</script>\n'
        f'<script type="module">{draw}\n{_SHOW}</script>\n'
    )
    return page[: scripts.start()] + made + page[scripts.end() :]


_SHOW = """
const view = JSON.parse(document.getElementById("view").textContent);
const when = new Date(view.t * 1000).toString().slice(0, 24);
document.getElementById("state").textContent = `as it was at ${when}`;
const again = () => draw(view, view.history);
document.getElementById("filter").oninput = (event) => { state.filter = event.target.value; again(); };
document.getElementById("all").onclick = () => { state.all = !state.all; again(); };
addEventListener("resize", again);
again();
"""
