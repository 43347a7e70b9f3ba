"""`leash consume` as a user types it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leash.amqp import Channel
from leash.amqp.uri import parse
from leash.cli.main import app
from leash.errors import ConfigError
from tests.cli.kit import leash
from tests.consumer.kit import depth, fill, until
from tests.waiting import LONG, started

APP = """
    import os, time
    from leash import Consumer, Queue

    consumer = Consumer(os.environ["LEASH_URI"], [Queue("gold", 3), Queue("free", 1)])
    nothing = 42

    @consumer.handler
    def work(message):
        time.sleep(0.001)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(textwrap.dedent(APP))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shop", "module:name"),
        ("shop:", "module:name"),
        (".shop:consumer", "module:name"),
        ("../shop:consumer", "module:name"),
        ("shopp:consumer", "no module named 'shopp'"),
        ("shop:consumr", "'consumr' is nothing in shop"),
        ("shop:nothing", "'nothing' is a int in shop"),
    ],
)
def test_a_consumer_that_does_not_exist_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LEASH_URI", "amqp://u:secret@127.0.0.1:1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    try:
        result = CliRunner().invoke(app, ["consume", name])
    finally:
        sys.modules.pop("shop", None)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("app=")
    assert why in str(result.exception)


def test_an_error_is_a_line_and_no_traceback(folder: Path) -> None:
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:nothing"]
    environment = {**os.environ, "LEASH_URI": "amqp://u:secret@127.0.0.1:1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180)
    assert result.returncode == 1
    assert result.stderr.startswith("leash: app=")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os\nuri = os.environ['NO_SUCH']", "shop.py, line 2: KeyError: 'NO_SUCH'"),
        ("import settings", "settings.py, line 3: ValueError: two lines"),
        ("x = (\n1", "shop.py, line 1: SyntaxError: '(' was never closed"),
        (
            "\nimport no_such_package",
            "shop.py, line 2: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        (
            "from leash import Queue\nQueue('q', 0)",
            "shop.py, line 2: ConfigError: quantum=0: must be a whole number of at least 1",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_line_that_says_where(
    tmp_path: Path, code: str, says: str
) -> None:
    (tmp_path / "shop.py").write_text(code)
    (tmp_path / "settings.py").write_text(
        "def read():\n    # a comment\n    raise ValueError('two\\nlines')\nread()"
    )
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert result.returncode == 1
    assert result.stderr == f"leash: app='shop:consumer': importing shop failed at {says}\n"


def test_no_broker_is_a_line_too(folder: Path) -> None:
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer"]
    environment = {**os.environ, "LEASH_URI": "amqp://u:secret@127.0.0.1:1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180)
    assert result.returncode == 1
    assert result.stderr.startswith("leash: 127.0.0.1:1")
    assert "secret" not in result.stdout + result.stderr


def test_off_a_terminal_it_prints_lines_and_ends_in_good_order(
    channel: Channel, uri: str, folder: Path
) -> None:
    fill(channel, "gold", 300)
    fill(channel, "free", 300)
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer", "--every", "0.3"]
    environment = {**os.environ, "LEASH_URI": uri}
    with started(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        until(lambda: depth(channel, "gold") == depth(channel, "free") == 0)
        assert process.stdout is not None
        late = threading.Timer(120, process.kill)
        late.start()
        done = "handled=600 in_work=0"
        out = next((line for line in process.stdout if done in line), "never told")
        process.send_signal(signal.SIGTERM)
        rest, err = process.communicate()
        late.cancel()
        out += rest
    assert process.returncode == 0, out + err
    for line in out.splitlines():
        assert re.match(r"event=summary seconds=\d+ connected=\w+ queues=2 depth=\d+ rate=\S+ handled=", line)
    assert "handled=600 in_work=0" in out.splitlines()[-1]
    assert "event=stopped in_time=true in_work=0 unconfirmed=0" in err
    for line in err.splitlines():
        assert re.match(r"time=\S+Z level=(info|warning) logger=leash\.\w+ event=\w+", line), line
    assert "event=window" not in err
    assert parse(uri).password not in out + err


def test_a_reader_that_leaves_does_not_disturb_the_work(channel: Channel, uri: str, folder: Path) -> None:
    fill(channel, "gold", 100)
    fill(channel, "free", 0)
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer", "--every", "0.1"]
    environment = {**os.environ, "LEASH_URI": uri}
    with started(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("event=summary")
        process.stdout.close()
        until(lambda: depth(channel, "gold") == 0)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        err = process.stderr.read()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


STUCK = """
    import os, time
    from leash import Consumer

    consumer = Consumer(os.environ["LEASH_URI"], ["gold"], drain=0.5, workers=2)

    @consumer.handler
    def work(message):
        os.write(1, b"begun\\n")  # at once: print() writes the end of a line by itself
        time.sleep(600)
"""


def test_a_drain_that_ran_out_is_an_exit_status_of_its_own(
    channel: Channel, uri: str, tmp_path: Path
) -> None:
    fill(channel, "gold", 5)
    (tmp_path / "shop.py").write_text(textwrap.dedent(STUCK))
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer"]
    environment = {**os.environ, "LEASH_URI": uri}
    with started(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["begun\n"] * 2
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LONG)
    assert process.returncode == 3
    said = "leash: drain=0.5 s ran out; messages left: 2 (2 with handlers, 0 whose copies are not confirmed)"
    assert said in err.splitlines()[-1]
    until(lambda: depth(channel, "gold") == 5)


def on_a_terminal(uri: str, folder: Path, words: list[bytes]) -> tuple[int, bytes]:
    """Run it until all words were shown, then press Ctrl-C: its exit status, and all that was shown."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer", "--every", "0.2"]
    environment = {**os.environ, "LEASH_URI": uri, "COLUMNS": "100", "TERM": "xterm"}
    with started(command, cwd=folder, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text, told = b"", False
        late = threading.Timer(120, process.kill)
        late.start()
        try:
            while chunk := os.read(ours, 65536):
                text += chunk
                if not told and all(word in text for word in words):
                    told = True
                    process.send_signal(signal.SIGINT)
        except OSError:
            pass  # the other end is closed
        late.cancel()
        process.wait(120)
    os.close(ours)
    return process.returncode, text


def test_on_a_terminal_it_draws_a_table_that_says_how_it_ended(
    channel: Channel, uri: str, folder: Path
) -> None:
    fill(channel, "gold", 50)
    fill(channel, "free", 50)
    words = [b"queue", b"depth", b"target", b"window", b"wait", b"gold", b"free", b"75.0%", b"round trip"]
    status, text = on_a_terminal(uri, folder, words)
    assert status == 0, text
    _, found, last = text.rpartition(b"round trip")
    assert found
    assert b"stopped: everything that was begun is finished" in last
    assert b"NOT CONNECTED" not in last
    assert b"not consumed" not in last


def test_the_last_table_says_how_many_messages_are_left(channel: Channel, uri: str, tmp_path: Path) -> None:
    fill(channel, "gold", 5)
    (tmp_path / "shop.py").write_text(textwrap.dedent(STUCK))
    status, text = on_a_terminal(uri, tmp_path, [b"begun", b"gold", b"round trip"])
    assert status == 3, text
    assert b"stopped: 2 messages left, to be delivered again" in text


def test_a_bad_interval_is_refused() -> None:
    result = CliRunner().invoke(app, ["consume", "shop:consumer", "--every", "0"])
    assert result.exit_code == 2
    with pytest.raises(ConfigError, match="app='shop'"):
        leash("consume", "shop", uri="amqp://u:secret@localhost")
