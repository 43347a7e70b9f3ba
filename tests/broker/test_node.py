"""The private node, as the command line and as any user would use it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from leash.amqp import connect
from leash.amqp.uri import parse
from leash.broker import Broker, files
from leash.errors import AuthenticationError, BrokerError
from tests.broker.kit import leash, listening, processes_in

pytestmark = pytest.mark.broker


def test_start_status_uri_stop_and_nothing_is_left(folder: Path) -> None:
    at = ["--folder", str(folder)]
    assert "Not running" in leash("status", *at, code=1)
    password = ""
    started = leash("start", *at)
    uri = leash("uri", *at).strip()
    password = parse(uri).password
    assert "Ready" in started
    assert "Found running" in leash("start", *at, LEASH_URI=uri)  # which is this one
    assert "RabbitMQ 3" in leash("status", *at) or "RabbitMQ 4" in leash("status", *at)
    assert len(password) > 20
    assert password not in started
    with connect(uri) as connection:
        connection.channel()
    with pytest.raises(AuthenticationError):
        connect(uri.replace(f"leash:{password}", "guest:guest"))

    node = Broker(folder)
    for name in ("amqp", "management", "prometheus", "stream", "distribution", "epmd"):
        places = listening(node.port(name))
        assert places, name
        assert set(places) <= {"0100007F", "00000000000000000000000001000000"}, f"{name} listens on {places}"
    for file in ("node.json", "rabbitmq.conf"):
        assert (folder / file).stat().st_mode & 0o077 == 0
    assert processes_in(folder)

    assert "Stopped" in leash("stop", *at)
    assert processes_in(folder) == []
    assert folder.exists()
    assert "Was not running" in leash("stop", "--purge", *at)
    assert not folder.exists()


def test_a_killed_node_leaves_no_process_and_comes_back_with_its_data(folder: Path) -> None:
    node = Broker(folder)
    node.start()
    uri = node.uri
    node.management.add_vhost("kept")
    node.kill()
    assert processes_in(folder) == []
    assert not node.running
    node.start()
    assert node.uri == uri
    assert "kept" in [vhost["name"] for vhost in node.management.ask("GET", "/api/vhosts")]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_it_runs_as_an_unprivileged_user_too() -> None:
    import pwd

    nobody = pwd.getpwnam("nobody")
    # The privileges are dropped after the import: this Python may live where nobody else can read.
    code = (
        "import encodings.idna, os, sys; from leash.broker import Broker; place, uid, gid = sys.argv[1:];"
        "os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid)); node = Broker(place); node.start();"
        "print(node.running, os.getuid()); node.stop(purge=True)"
    )
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        done = subprocess.run(
            [sys.executable, "-c", code, f"{home}/node", str(nobody.pw_uid), str(nobody.pw_gid)],
            env={"PATH": os.environ["PATH"], "HOME": home},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.split() == ["True", str(nobody.pw_uid)], done.stderr
        assert processes_in(Path(home) / "node") == []


def test_a_start_that_is_interrupted_leaves_no_process(folder: Path) -> None:
    def interrupt(seconds: float) -> None:
        if seconds > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Broker(folder).start(interrupt)
    assert processes_in(folder) == []


def test_a_broker_of_ones_own_is_used_when_it_is_named() -> None:
    own = "amqp://me:secret@broker.example/"
    assert leash("uri", LEASH_URI=own).strip() == own
    said = leash("start", LEASH_URI=own)
    assert "broker.example" in said
    assert "secret" not in said


def test_without_rabbitmq_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HOMES", [])
    monkeypatch.delenv("RABBITMQ_SCRIPTS", raising=False)
    with pytest.raises(BrokerError, match="apt-get install rabbitmq-server"):
        Broker(folder).start()


def test_a_folder_without_rabbitmq_is_not_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version would be started instead, without a word."""
    monkeypatch.setenv("RABBITMQ_SCRIPTS", str(folder))
    with pytest.raises(BrokerError, match="no rabbitmq-server in that folder"):
        Broker(folder).start()


def test_an_older_rabbitmq_does_not_touch_what_a_newer_one_wrote(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = Broker(folder, owned=True)
    node.start()
    node.stop()
    written = (folder / "node.json").read_text()
    older = tmp_path / "older"
    older.mkdir()
    (older / "rabbitmq-server").write_text("#!/bin/sh\nexit 1\n")
    (older / "rabbitmqctl").write_text("#!/bin/sh\necho 3.9.29\n")
    for script in older.iterdir():
        script.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("RABBITMQ_SCRIPTS", str(older))
        with pytest.raises(BrokerError, match=r"RabbitMQ 3\.9\.29 in .* cannot read what .* wrote to"):
            Broker(folder, owned=True).start()
    assert (folder / "node.json").read_text() == written
    again = Broker(folder, owned=True)
    again.start()
    again.stop(purge=True)
