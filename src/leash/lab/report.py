"""One HTML file that opens offline: plots, each figure beside the published one, machine and versions."""

from __future__ import annotations

import html
import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import leash
from leash.errors import ConfigError
from leash.lab import glossary
from leash.lab.figures import Claim, Result, bounds, number
from leash.lab.plots import plots

_WORDS = [word for word in glossary.WORDS if word != "stream"]
_TEMPLATE = Path(__file__).with_name("report.html")


def about(rabbitmq: str | None = None, broker: str = "") -> dict[str, Any]:
    """The machine and the versions, without anything that identifies the owner."""
    found = {
        "leash": leash.__version__,
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    if rabbitmq:
        found |= {"rabbitmq": rabbitmq, "broker": broker}
    return found


def write(path: Path, results: Sequence[Result], machine: dict[str, Any]) -> None:
    """The report of a lab run."""
    sections = [section(result) for result in results]
    drawn = [plot for result in results for plot in plots(result)]
    faults = [fault for result in results for fault in result.faults()]
    verdict = counted(results)
    of_documents = any(result.experiment.name != "tenants" for result in results)
    lead = "Five documents about RabbitMQ, every claim run again" if of_documents else "A noisy tenant"
    write_page(
        path,
        "Leash lab",
        f"{lead}: in virtual time, and on a real broker.",
        [_verdict(verdict, faults), *sections, glossary.section(_WORDS)],
        drawn,
        machine,
    )


def counted(results: Sequence[Result]) -> str:
    """Passes and misses of all figures, in words."""
    passes, misses = (sum(column) for column in zip(*[result.counted() for result in results], strict=True))
    return f"{passes} figures passed, {misses} missed"


def write_page(
    path: Path,
    title: str,
    lead: str,
    sections: list[str],
    drawn: list[dict[str, Any]],
    machine: dict[str, Any],
) -> None:
    """Write the page: sections with `<div class="plot" data-plot="n">` for the n-th of `drawn`."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError("report", str(path), "plotly, which the extra `leash[lab]` installs") from None
    numbered = _number(sections)
    specs = json.dumps([{"data": plot["data"], "layout": plot["layout"]} for plot in drawn]).replace(
        "</", "<\\/"
    )
    page = _TEMPLATE.read_text()
    for name, value in {
        "title": html.escape(title),
        "lead": html.escape(lead),
        "sections": "\n".join(numbered),
        "machine": _machine(machine),
        "plots": specs,
        "plotly": get_plotlyjs(),
    }.items():
        page = page.replace(f"{{{{{name}}}}}", value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)


def section(result: Result) -> str:
    experiment = result.experiment
    figures = "\n".join(figure(plot) for plot in plots(result))
    rows = "\n".join(_row(*row) for row in result.rows())
    return f"""<section id="{experiment.name}">
<h2>{html.escape(experiment.title)}</h2>
<p>{html.escape(experiment.about)}</p>
{see(experiment.see)}
<div class="plots">{figures}</div>
<div class="scroll"><table>
<thead><tr><th>figure</th><th>published</th><th>simulated</th><th>measured</th><th>bounds</th></tr></thead>
<tbody>{rows}</tbody></table></div>
</section>"""


def see(sentence: str) -> str:
    """The HTML for what to see in a section."""
    return f'<p class="see"><b>What to see:</b> {html.escape(sentence)}</p>' if sentence else ""


def figure(plot: dict[str, Any]) -> str:
    """The HTML for a plot; `write_page` numbers the plots in order."""
    title, caption = html.escape(plot["title"]), html.escape(plot["caption"])
    return (
        f"<figure><figcaption><b>{title}</b><span>{caption}</span></figcaption>"
        f'<div class="plot" data-plot="#"></div></figure>'
    )


def _number(sections: list[str]) -> list[str]:
    parts = "\x00".join(sections).split('data-plot="#"')
    joined = parts[0] + "".join(f'data-plot="{index}"{part}' for index, part in enumerate(parts[1:]))
    return joined.split("\x00")


def _row(claim: Claim, simulated: float | None, measured: float | None) -> str:
    cells = []
    for value in (simulated, measured):
        bad = value is not None and not claim.low <= value <= claim.high
        cells.append(
            f'<td class="{"bad" if bad else "good" if value is not None else ""}">{number(value)}</td>'
        )
    unit = f" <small>{html.escape(claim.unit)}</small>" if claim.unit else ""
    return (
        f"<tr><th>{html.escape(claim.name)}{unit}</th><td>{number(claim.published)}</td>{''.join(cells)}"
        f"<td><small>{bounds(claim)}</small></td></tr>"
    )


def _verdict(text: str, faults: list[str]) -> str:
    items = "".join(f"<li>{html.escape(fault)}</li>" for fault in faults)
    listed = f"<ul>{items}</ul>" if items else ""
    return f'<p class="verdict {"bad" if faults else "good"}">{html.escape(text)}</p>{listed}'


def _machine(machine: dict[str, Any]) -> str:
    return "".join(
        f"<dt>{html.escape(key)}</dt><dd>{html.escape(str(value))}</dd>" for key, value in machine.items()
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
