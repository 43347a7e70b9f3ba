"""Write docs/reference.md from docstrings, signatures and tables: `make reference`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import typer
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

import leash.errors
from leash import Breaker, Budget, Consumer, Message, Partitions, Publisher, Queue, Retry, Stream, Tenants
from leash.cli.main import app
from leash.consumer import BudgetStats, QueueStats, Stats, TenantsStats, TenantStats
from leash.consumer.metrics import ConsumerCollector
from leash.fleet.budgets.open_budget import Till
from leash.publisher import Sent
from leash.spark import options
from leash.spark.metrics import PrometheusListener
from leash.testing import Rehearsal

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"

_TYPES = {
    "Asked": "str or function",
    "Number": "number",
    "Shape": "str",
    "Mode": "str",
    "Shed": "str",
    "Begin": "str, int, datetime or timedelta",
    "OnExhausted": "str",
}


def page() -> str:
    parts = [
        "# Reference\n\nWritten by `make reference` from the code itself. What it means, and why: "
        "[consumer.md](consumer.md), [publishing.md](publishing.md), [budgets.md](budgets.md), "
        "[tenants.md](tenants.md), [spark.md](spark.md), [partitions.md](partitions.md), "
        "[operations.md](operations.md).\n"
    ]
    parts += [
        f"## `{kind.__name__}`\n\n{_about(kind)}\n\n{_arguments(kind)}\n{_members(kind)}"
        for kind in (Consumer, Queue, Stream, Retry, Breaker, Budget, Tenants, Publisher, Partitions)
    ]
    parts.append(f"## `Till`\n\n{_about(Till)}\n\n{_members(Till)}")
    parts.append(f"## `Message`\n\n{_about(Message)}\n\n{_members(Message)}")
    parts.append(f"## `Sent`\n\n{_about(Sent)}\n\n{_members(Sent)}")
    parts += [
        f"## `{kind.__name__}`\n\n{_about(kind)}\n\n{_fields(kind)}"
        for kind in (Stats, QueueStats, BudgetStats, TenantsStats, TenantStats)
    ]
    parts.append(f"## Spark: options of the source\n\n{options.markdown(options.SOURCE)}")
    parts.append(f"## Spark: options of the sink\n\n{options.markdown(options.SINK)}")
    parts.append(f"## Spark: options of a look at a queue\n\n{options.markdown(options.BROWSE)}")
    for role in (options.STREAMS, options.STREAM_READ, options.STREAM_SINK):
        parts.append(f"## Spark: options of the {role}\n\n{options.markdown(role)}")
    parts.append(f"## Metrics of a consumer\n\n{_metrics(_of_consumer())}")
    parts.append(f"## Metrics of a Spark query\n\n{_metrics(_of_query())}")
    parts.append("## Commands\n\n" + "\n".join(_commands(typer.main.get_command(app), "leash")))
    tree = inspect.getdoc(leash.errors) or ""
    parts.append("## Errors\n\nAll in `leash.errors`.\n\n" + _indented(tree.split("\n\n", 1)[1]) + "\n")
    return "\n".join(parts)


def _about(kind: type) -> str:
    text = (inspect.getdoc(kind) or "").split("Arguments:")[0].strip()
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text)


def _arguments(kind: type) -> str:
    told = (inspect.getdoc(kind) or "").partition("Arguments:\n")[2]
    meanings = dict(
        re.findall(r"^ {4}(\w+): ((?:.*(?:\n {8}.*)*))", told, re.MULTILINE),
    )
    lines = ["| argument | type | default | |", "|---|---|---|---|"]
    signature = inspect.signature(kind)
    missing = set(signature.parameters) ^ set(meanings)
    if missing:
        raise SystemExit(f"{kind.__name__}: signature and docstring differ in {missing}")
    for name, parameter in signature.parameters.items():
        default = "" if parameter.default is parameter.empty else f"`{_value(parameter.default)}`"
        meaning = " ".join(meanings[name].split())
        lines.append(f"| `{name}` | {_type(parameter.annotation)} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    return repr(value) if not isinstance(value, tuple) else "()"


def _type(annotation: object) -> str:
    text = re.sub(r"Literal\[(.*?)\]", r"\1", str(annotation).removesuffix(" | None"))
    return _TYPES.get(text, text).replace("|", "or")


def _members(kind: type) -> str:
    lines = ["| | |", "|---|---|"]
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines.append(f"| `.{name}` | {_first(member)} |")
        elif inspect.isfunction(member):
            names = [each for each in inspect.signature(member).parameters if each != "self"]
            lines.append(f"| `.{name}({', '.join(names)})` | {_first(member)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _first(member: object) -> str:
    return " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())


def _fields(kind: type) -> str:
    """With the strings that stand below them in the source."""
    assert is_dataclass(kind)
    source = inspect.getsource(kind)
    lines = ["| | |", "|---|---|"]
    for field in fields(kind):
        below = re.search(rf'\n    {field.name}: [^\n]*\n    """(.*?)"""', source, re.DOTALL)
        if below is None:
            raise SystemExit(f"{kind.__name__}.{field.name} has no words below it")
        lines.append(f"| `.{field.name}` | {' '.join(below[1].split())} |")
    return "\n".join(lines) + "\n"


def _of_consumer() -> list[Metric]:
    consumer = Consumer("amqp://localhost", [Queue("q", rate=1)])
    consumer.handler(lambda _: None)
    with Rehearsal(consumer) as rehearsal:
        rehearsal.publish("q", b"")
        rehearsal.run()
        return list(ConsumerCollector(consumer).collect())


def _of_query() -> list[Metric]:
    registry = CollectorRegistry()
    PrometheusListener(registry=registry)
    return list(registry.collect())


def _metrics(found: list[Metric]) -> str:
    lines = ["| metric | type | |", "|---|---|---|"]
    for metric in sorted(found, key=lambda each: str(each.name)):
        name = metric.name + ("_total" if metric.type == "counter" else "")
        lines.append(f"| `{name}` | {metric.type} | {metric.documentation} |")
    return "\n".join(lines) + "\n"


def _commands(command: Any, path: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name in sorted(command.commands):
            yield from _commands(command.commands[name], f"{path} {name}")
        return
    context = command.make_context(path, [], resilient_parsing=True)
    yield f"### `{path}`\n\n{_paragraphs(command.help or '')}\n"
    rows = [parameter for parameter in command.params if parameter.name != "help"]
    if rows:
        yield "| | default | |\n|---|---|---|"
        for parameter in rows:
            option = parameter.param_type_name == "option"
            names = ", ".join(parameter.opts) if option else parameter.name.upper().rstrip("_")
            default = parameter.get_default(context)
            shown = "" if default in (None, False, [], ()) else f"`{default}`"
            yield f"| `{names}` | {shown} | {getattr(parameter, 'help', '') or ''} |"
        yield ""


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _indented(text: str) -> str:
    tree = text.split("\n\n")[0]
    return "\n".join(f"    {line.removeprefix('    ')}".rstrip() for line in tree.splitlines())


if __name__ == "__main__":
    PAGE.write_text(page())
