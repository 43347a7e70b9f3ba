"""The option table: parsing, refusals, and the documentation that it writes."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.spark import connections, loading, option_values, options, settings
from leash.spark.queue_options import QueueSpec, parse_queues
from leash.units import SECOND

URL = "amqp://user:hunter2@broker/"
DOCS = Path(__file__).parents[2] / "docs" / "spark.md"


def source(**given: str) -> settings.SourceSettings:
    return settings.source_settings({"url": URL, "queue": "q", "stagingLocation": "staging"} | given)


def test_options_are_read_in_any_case_as_spark_hands_them_over() -> None:
    found = source(maxrecordspertrigger="5", POLLTIMEOUT="2s")
    assert found.max_records_per_trigger == 5
    assert found.poll_timeout == 2 * SECOND


def test_kafkas_name_for_the_row_limit_works_but_not_both_names() -> None:
    assert source(maxOffsetsPerTrigger="7").max_records_per_trigger == 7
    with pytest.raises(ConfigError, match="means the same as maxOffsetsPerTrigger"):
        source(maxOffsetsPerTrigger="7", maxRecordsPerTrigger="7")


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean maxRecordsPerTrigger"):
        source(maxRecordPerTriger="5")


def test_an_option_of_the_sink_is_refused_by_the_source_by_name() -> None:
    with pytest.raises(ConfigError, match="option of the sink, not of the source"):
        source(routingKey="k")
    with pytest.raises(ConfigError, match="no paths"):
        source(path="somewhere")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uri", "amqp://user:hunter2@broker"),
        ("queue", "amqp://user:hunter2@broker"),
        ("passwort", "hunter2"),
        ("url", ""),
        ("url", "redis://user:hunter2@broker"),
    ],
)
def test_a_password_is_never_echoed(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connections.uri_of(source(**{name: value}).broker)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)


def test_settings_do_not_print_the_password() -> None:
    assert "hunter2" not in repr(source(password="hunter2"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxRecordsPerTrigger", "0"),
        ("maxRecordsPerTrigger", "many"),
        ("pollTimeout", "5"),
        ("maxBytesPerTrigger", "1 parsec"),
        ("maxRatePerSecond", "-1"),
        ("maxRatePerSecond", "1/0"),
        ("ordered", "perhaps"),
        ("deduplication", "all"),
        ("orphanedStaging", "hide"),
        ("burst", "5"),
        ("minRecordsPerTrigger", "0"),
        ("stagingLocation", "hdfs://name/folder"),
        ("stagingLocation", "memory://folder"),
    ],
)
def test_a_bad_value_is_refused_with_the_options_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source(**{name: value})
    assert name in str(caught.value)


def test_a_source_without_a_staging_location_is_refused() -> None:
    with pytest.raises(ConfigError, match="stagingLocation"):
        settings.source_settings({"url": URL, "queue": "q"})


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not exceed"):
        source(minRecordsPerTrigger="10", maxRecordsPerTrigger="5")


def test_a_batch_read_without_browse_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"availableNow.*browse"):
        settings.browse_settings({"url": URL, "queue": "q"})


def test_a_relative_staging_location_is_made_absolute_where_the_driver_stands() -> None:
    assert source(stagingLocation="here").staging_location == str(Path("here").absolute())
    assert source(stagingLocation="file:///there/it").staging_location == "/there/it"


def test_sparks_own_options_pass_through_the_sink() -> None:
    settings.sink_settings({"url": URL, "checkpointLocation": "cp"})


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        (options.SOURCE, settings.SourceSettings),
        (options.SINK, settings.SinkSettings),
        (options.BROWSE, settings.BrowseSettings),
    ],
)
def test_every_option_ends_in_a_setting_and_every_setting_has_an_option(role: str, kind: type) -> None:
    broker = {field.name for field in fields(settings.Broker)}
    expected = {option.field for option in options.TABLE if role in option.roles} - broker
    expected -= {"mode"} | ({"queue"} if role == options.SOURCE else set())
    assert {field.name for field in fields(kind)} - {"broker"} == expected


@pytest.mark.parametrize("role", [options.SOURCE, options.SINK, options.BROWSE])
def test_the_documentation_holds_exactly_the_table_of_the_code(role: str) -> None:
    assert options.markdown(role) in DOCS.read_text()


def test_queues_are_read_from_a_list_with_quanta() -> None:
    assert parse_queues(None, "gold:10, free , a:b:2") == (
        QueueSpec("gold", 10),
        QueueSpec("free", 1),
        QueueSpec("a:b", 2),
    )


def test_queues_are_read_from_json_with_rates_and_tiers() -> None:
    found = parse_queues(
        None, '{"gold": {"quantum": 10, "tier": 1}, "free": {"rate": 0.5, "burst": 3}, "x": 2}'
    )
    assert found == (
        QueueSpec("gold", 10, tier=1),
        QueueSpec("free", 1, rate=Fraction(1, 2), burst=3),
        QueueSpec("x", 2),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("gold:0", "gold:-1", "a,a", "", "a,,b", "{", '{"a": {"quantum": 0}}', '{"a": {"color": 1}}', "[1]"),
        *('{"a": {"burst": 3}}', '{"a": {"rate": 0}}', '{"a": {"tier": -1}}', '{"a": true}', "{}"),
    ],
)
def test_bad_queues_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="queue"):
        parse_queues(None, text)


def test_one_of_queue_and_queues_is_needed_and_not_both() -> None:
    for queue, queues in ((None, None), ("q", "q:1")):
        with pytest.raises(ConfigError, match="exactly one"):
            parse_queues(queue, queues)


@given(st.integers(1, 10**6), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    each = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}[unit]
    for text in (f"{number}{unit}", f" {number} {unit.upper()} "):
        assert option_values.duration(text) == number * each


QUEUE = {"url": "amqp://localhost", "queue": "q", "stagingLocation": "data"}
STREAM = {"url": "rabbitmq-stream://localhost", "stream": "s"}


@pytest.mark.parametrize(
    "given",
    [
        QUEUE,
        {"url": "amqp://localhost", "queue": "q", "mode": "browse"},
        STREAM,
        {**STREAM, "endingOffsets": "latest"},
        {**STREAM, "maxRecordsPerTrigger": "5"},
    ],
)
def test_load_takes_what_read_or_read_stream_takes(given: dict[str, str]) -> None:
    loading.check(given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**QUEUE, "quue": "q"}, "did you mean queue"),
        (
            {"url": "amqp://localhost", "queue": "q"},
            r"stagingLocation=None: is required.*availableNow.*mode=browse",
        ),
        ({**QUEUE, "mode": "browse"}, "stagingLocation=.hidden.: is an option of the source"),
        ({**STREAM, "maxRecordsPerTriger": "5"}, "did you mean maxRecordsPerTrigger"),
        ({**STREAM, "endingOffsets": "never"}, "endingOffsets='never'"),
        ({**STREAM, "endingOffsets": "latest", "maxRecordsPerTrigger": "5"}, "maxRecordsPerTrigger"),
    ],
)
def test_load_refuses_what_neither_takes(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        loading.check(given)
