"""deploy/: what users copy names only metrics, paths, ports and options that there are."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from leash import Breaker, Budget, Consumer, Queue
from leash.amqp import Channel
from leash.amqp.topology import declare_queue
from leash.cli.main import app
from leash.consumer import health
from leash.consumer.metrics import ConsumerCollector
from leash.testing import Rehearsal
from tests.consumer.kit import depth, publish
from tests.waiting import started, until

DEPLOY = Path(__file__).parent.parent / "deploy"
SMS = Budget("sms", rate=1000)
_WORDS = {"budget", "by", "on", "and", "unless", "le", "bool", "queue", "job", "instance", "datasource"}
_FUNCTIONS = {
    *("sum", "max", "min", "avg", "rate", "increase", "deriv", "histogram_quantile", "label_values"),
}


PROMETHEUS = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")),
    reason="no Prometheus here, and `make test` found none to fetch",
)


@pytest.fixture(scope="module")
def scrape() -> str:
    """All that a scrape can show."""
    consumer = Consumer("amqp://localhost", [Queue("q", rate=1, breaker=Breaker(), budget=SMS)])
    consumer.handler(lambda _: None)
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))
    with Rehearsal(consumer) as stage:
        stage.publish("q", b"")
        stage.run()
        return generate_latest(registry).decode()


@pytest.fixture(scope="module")
def metrics(scrape: str) -> set[str]:
    """Every name of it."""
    text = scrape
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


HEALTHY = {
    "leash_connected": "1x60",
    'leash_queue_connected{queue="q"}': "1x60",
    'leash_sitting_out{queue="q"}': "0x60",
    'leash_handled_total{queue="q"}': "0+600x60",
    'leash_failed_total{queue="q"}': "0+6x60",
    'leash_parked_total{queue="q"}': "3x60",
    'leash_breaker_open{queue="q"}': "0x60",
    "leash_republishing": "0x60",
    "leash_broker_blocked": "0x60",
    "leash_handlers_overdue_total": "2x60",
    "leash_spread_rounds": "1x60",
    "leash_spread_bound_rounds": "1x60",
    'leash_ready{queue="q"}': "5000-50x60",
    'leash_handler_duration_seconds_bucket{queue="q",le="30.0"}': "0+600x60",
    'leash_handler_duration_seconds_bucket{queue="q",le="60.0"}': "0+600x60",
    'leash_handler_duration_seconds_bucket{queue="q",le="+Inf"}': "0+600x60",
}
PAUSED = {'leash_queue_connected{queue="q"}': "0x60", 'leash_sitting_out{queue="q"}': "1x60"}
TROUBLE = {
    "LeashNotConnected": {"leash_connected": "0x60"},
    "LeashQueueNotConsumed": {'leash_queue_connected{queue="q"}': "0x60"},
    "LeashMessagesParked": {'leash_parked_total{queue="q"}': "3+1x60"},
    "LeashFailing": {'leash_failed_total{queue="q"}': "0+60x60"},
    "LeashBreakerOpen": {'leash_breaker_open{queue="q"}': "1x60"},
    "LeashCopiesNotConfirmed": {"leash_republishing": "4x60"},
    "LeashBrokerBlocked": {"leash_broker_blocked": "1x60"},
    "LeashHandlerOverdue": {"leash_handlers_overdue_total": "2+1x60"},
    "LeashUnfair": {"leash_spread_rounds": "1.5x60"},
    "LeashBacklogGrows": {'leash_ready{queue="q"}': "5000+50x60"},
    "LeashSlowHandlers": {'leash_handler_duration_seconds_bucket{queue="q",le="30.0"}': "0+580x60"},
}
"""What makes each alert fire, beside what is healthy."""


@pytest.mark.program
@PROMETHEUS
def test_prometheus_loads_the_alerts_and_each_fires_when_it_should_and_no_other(tmp_path: Path) -> None:
    file = DEPLOY / "prometheus-alerts.yaml"
    told = yaml.safe_load(file.read_text())
    alerts = [rule["alert"] for group in told["groups"] for rule in group["rules"]]
    assert set(alerts) == set(TROUBLE)
    cases = []
    for fires, wrong in [*TROUBLE.items(), ("", {}), ("", PAUSED)]:
        series = [{"series": name, "values": values} for name, values in (HEALTHY | wrong).items()]
        firing = 'ALERTS{alertname="%s",alertstate="firing"}'
        asked = [
            {
                "expr": f"count({firing % alert}) or vector(0)",
                "eval_time": "50m",
                "exp_samples": [{"labels": "{}", "value": int(alert == fires)}],
            }
            for alert in alerts
        ]
        cases.append({"interval": "1m", "input_series": series, "promql_expr_test": asked})
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": [str(file)], "tests": cases}))
    for command in (["check", "rules", str(file)], ["test", "rules", str(tmp_path / "tests.yaml")]):
        said = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=300)
        assert said.returncode == 0, said.stdout + said.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.program
@PROMETHEUS
def test_every_panel_of_the_dashboard_gets_an_answer_from_a_prometheus_that_scrapes_a_consumer(
    tmp_path: Path,
) -> None:
    consumer = Consumer("amqp://localhost", [Queue("q", rate=1000, burst=1000, budget=SMS)])
    consumer.handler(lambda _: None)
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))
    port, scraped = free_port(), free_port()
    stop = health.serve(registry, lambda: None, scraped, "health")
    settings: dict[str, Any] = {
        "global": {"scrape_interval": "100ms", "scrape_timeout": "100ms"},
        "rule_files": [str(DEPLOY / "prometheus-alerts.yaml")],
        "scrape_configs": [{"job_name": "shop", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    command = [
        *("prometheus", f"--config.file={tmp_path / 'prometheus.yaml'}", f"--storage.tsdb.path={tmp_path}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]

    def answer(query: str) -> list[float]:
        asked = re.sub(r"\$__rate_interval", "1m", re.sub(r"\$(job|queue)\b", ".*", query))
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": asked})
        try:
            with urllib.request.urlopen(url, timeout=30) as got:
                return [float(each["value"][1]) for each in json.load(got)["data"]["result"]]
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 503:  # which it says when it has just begun
                    raise
        except OSError:  # it is not up yet
            pass
        return []

    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    try:
        with (
            Rehearsal(consumer) as stage,
            started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
        ):
            for number in (1.0, 2.0, 3.0):
                stage.publish("q", b"")
                stage.run()
                until(lambda number=number: answer("leash_handled_total") == [number])  # type: ignore[misc]
            for query in queries:
                until(lambda query=query: answer(query), what=query)  # type: ignore[misc]
                assert not any(map(math.isnan, answer(query))), query
            rules = f"http://127.0.0.1:{port}/api/v1/rules"
            with urllib.request.urlopen(rules, timeout=30) as got:
                (group,) = json.load(got)["data"]["groups"]
            assert {each["name"] for each in group["rules"]} == set(TROUBLE)
            assert {each["health"] for each in group["rules"]} <= {"ok", "unknown"}
    finally:
        stop()


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


SHOP = """
import os, time
from leash import Consumer

consumer = Consumer(os.environ["LEASH_URI"], ["orders"], workers=1)

@consumer.handler
def work(message):
    os.write(1, b"begun\\n")
    time.sleep(float(message.body))
"""


def test_the_manifests_command_answers_its_probes_and_ends_in_good_order(
    channel: Channel, uri: str, tmp_path: Path
) -> None:
    """As process 1 of a pod, without Kubernetes: only the address and the Secret's content are others."""
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    port = free_port()
    command = [each.replace("0.0.0.0:8080", f"127.0.0.1:{port}") for each in container["command"]]
    command[0] = str(Path(sys.executable).with_name(command[0]))
    (tmp_path / "shop.py").write_text(SHOP)
    environment = {"PATH": os.environ["PATH"], container["env"][0]["name"]: uri}

    def probe(name: str) -> int:
        url = f"http://127.0.0.1:{port}{container[name]['httpGet']['path']}"
        try:
            with urllib.request.urlopen(url, timeout=30) as got:
                return int(got.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    declare_queue(channel, "orders")
    with started(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        until(lambda: probe("startupProbe") == 200)
        until(lambda: probe("readinessProbe") == 200)
        publish(channel, "orders", [b"1", b"0"])
        assert process.stdout is not None
        assert any(line == "begun\n" for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGTERM)
        until(lambda: probe("readinessProbe") != 200)
        assert probe("livenessProbe") in (200, 0)  # it is draining, or done
        out, err = process.communicate(timeout=pod["terminationGracePeriodSeconds"] + 60)
    assert process.returncode == 0, out + err
    assert "event=stopped in_time=true" in err
    until(lambda: depth(channel, "orders") == 1)  # what was begun is done, what was not is given back
