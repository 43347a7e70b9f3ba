"""deploy/: what users copy names only metrics, paths, ports and options that there are."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from leash import Breaker, Consumer, Queue
from leash.cli.main import app
from leash.consumer import health
from leash.consumer.metrics import ConsumerCollector
from leash.testing import Rehearsal

DEPLOY = Path(__file__).parent.parent / "deploy"
_WORDS = {"by", "on", "and", "le", "bool", "queue", "job", "instance", "datasource"}
_FUNCTIONS = {
    *("sum", "max", "min", "avg", "rate", "increase", "deriv", "histogram_quantile", "label_values"),
}


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """Every name that a scrape can show."""
    consumer = Consumer("amqp://localhost", [Queue("q", rate=1, breaker=Breaker())])
    consumer.handler(lambda _: None)
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))
    with Rehearsal(consumer) as stage:
        stage.publish("q", b"")
        stage.run()
        text = generate_latest(registry).decode()
    return {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def names(expression: str) -> set[str]:
    """What an expression asks for: every word that is not Prometheus's own."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\$\w+', "", expression)
    return {word for word in re.findall(r"[a-zA-Z_]\w*", bare) if word not in _WORDS | _FUNCTIONS}


def test_alerts_ask_only_for_metrics_that_there_are(metrics: set[str]) -> None:
    told = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
    rules = [rule for group in told["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert names(rule["expr"]), rule
        assert names(rule["expr"]) <= metrics, rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_the_dashboard_asks_only_for_metrics_that_there_are(metrics: set[str]) -> None:
    told = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in told["panels"] for target in panel["targets"]]
    variables = {each["name"]: each for each in told["templating"]["list"]}
    assert len(queries) > 10
    for query in [
        *queries,
        *(each["query"]["query"] for each in variables.values() if each["name"] != "datasource"),
    ]:
        assert names(query) & metrics, query
        assert names(query) <= metrics, query
        assert set(re.findall(r"\$(\w+)", query)) <= {*variables, "__rate_interval"}
    ids = [panel["id"] for panel in told["panels"]]
    assert len(set(ids)) == len(ids)
    places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in told["panels"]]
    for at, (x, y, w, h) in enumerate(places):
        assert x + w <= 24
        for other in places[at + 1 :]:
            assert (
                x + w <= other[0] or other[0] + other[2] <= x or y + h <= other[1] or other[1] + other[3] <= y
            )


def test_a_metric_that_is_not_there_would_be_found(metrics: set[str]) -> None:
    assert not names('rate(leash_handeled_total{queue="x"}[5m])') <= metrics


def manifest(kind: str) -> dict[str, Any]:
    every = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    (found,) = [each for each in every if each["kind"] == kind]
    return dict(found)


def test_the_manifest_asks_what_the_code_serves_and_waits_longer_than_the_drain() -> None:
    deployment = manifest("Deployment")["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    command = shlex.split(" ".join(container["command"]))
    parsed = typer.main.get_command(app).make_context("leash", command[1:], resilient_parsing=False)
    assert parsed is not None
    host, port = health.address("--health", command[command.index("--health") + 1])
    assert host == "0.0.0.0"  # noqa: S104
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for probe, path in (("readiness", "/readyz"), ("liveness", "/healthz"), ("startup", "/healthz")):
        asked = container[f"{probe}Probe"]["httpGet"]
        assert asked["path"] == path
        assert path in (health.__doc__ or "")
        assert ports[asked["port"]] == port
    annotations = deployment["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)
    assert annotations["prometheus.io/path"] == "/metrics"
    drain = Consumer("amqp://localhost", ["q"]).settings.drain / 1e9
    assert pod["terminationGracePeriodSeconds"] > drain
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (deployment["selector"], manifest("PodDisruptionBudget")["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    (variable,) = container["env"]
    secret = variable["valueFrom"]["secretKeyRef"]
    assert manifest("Secret")["metadata"]["name"] == secret["name"]
    assert secret["key"] in manifest("Secret")["stringData"]
