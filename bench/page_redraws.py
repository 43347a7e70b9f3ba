"""How long the live page takes to redraw a thousand queues, in Chromium."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from leash.page.server import Page

_REDRAW = """
(async () => {
  const { draw, state } = await import("/draw.js");
  const view = await (await fetch("/view.json")).json(), took = [];
  const history = [...Array(300).keys()].map((at) => ({ t: at, rate: at, depth: at, windows: { a: at } }));
  state.all = ROWS > 100;
  for (let turn = 0; turn < 31; turn++) {
    for (const q of view.queues) Object.assign(q, { depth: turn, rate: turn, in_work: turn, window: turn });
    const began = performance.now();
    draw(view, history);
    document.body.offsetHeight;
    took.push(performance.now() - began);
  }
  if (document.querySelectorAll("#queues tbody tr").length !== ROWS) throw new Error("rows are missing");
  return took.slice(1);
})()
"""


def redraws(page: Page, url: str) -> list[dict[str, float]]:
    """Of a page with a thousand queues: a hundred of them shown, as by default, and all. The reports are made
    up.
    """
    from tests.page.browser import CHROMIUM, Browser

    if CHROMIUM is None:
        return []
    found = []
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        try:
            browser.open(url, 1600)
            browser.until("document.documentElement.dataset.drawn")
            for rows in (100, 1000):
                for seconds in (0.0, 1.0):
                    page.heard(time.time(), _report(seconds))
                took = sorted(browser.run(_REDRAW.replace("ROWS", str(rows))))
                found.append({"rows": rows, "median": statistics.median(took), "longest": took[-1]})
        finally:
            browser.stop()
    return found


def _report(seconds: float) -> dict[str, Any]:
    from tests.page import kit

    queues = {
        f"tenant-{n:04d}": kit.queue(handled=int(seconds * n), depth=n, took=[n], waited=[n])
        for n in range(1000)
    }
    return kit.report(seconds=seconds, queues=queues)
