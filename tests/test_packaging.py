"""What users install: a wheel that is the same in every build, and works in an empty environment."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import leash
from leash.amqp import Channel
from leash.cli.main import app
from tests.consumer.kit import fill

ROOT = Path(__file__).parent.parent
LIMIT = 300  # seconds: only a hang runs into it

APP = """
from leash import Budget, Consumer, Queue

consumer = Consumer({uri!r}, [Queue("orders", budget=Budget("sms", rate=100))], retry=None)


@consumer.handler
def work(message):
    if message.body == b"0":
        raise ValueError("parked")
    consumer.stop()
"""

SPARK = r"leash: leash (run|plan|demo) needs pyspark, which is not installed: pip install 'leash\[spark\]'\n"
STREAMS = r"leash: leash.streams needs pyarrow: pip install 'leash\[streams\]'\n"
LAB = r"leash: --report needs plotly, which is not installed: pip install 'leash\[lab\]'\n"

NOBODY = r"leash: no consumer of tenants 'jobs' reported within 1 s: they must run, .*\n"

WORKS = [
    "consume app:consumer --plain",
    "budget list",
    "budget show sms",
    "budget set sms --rate 5",
    "budget delete sms",
    "dead list",
    "dead show orders --traceback",
    "dead retry orders",
    "dead purge orders --yes",
    "page --once --html page.html",
    "ring apply users --weights users.0=1,users.1=1 --slots 4 --yes",
    "ring show users",
    "ring route users anna ben",
    "ring plan users --bind users.2",
    "ring check users",
    "ring remind users",
    "ring skew users keys.txt",
    "lab fair --simulate",
    "lab qos --simulate",
    "lab codel --simulate",
    "lab rate --simulate",
    "lab hash --simulate",
    "lab tenants --simulate",
    "tenants declare jobs --lanes 4 --own 1",
    "tenants adopt jobs orders",
    "tenants isolate jobs acme",
    "tenants show jobs acme",
    "tenants release jobs acme",
    "tenants unadopt jobs orders",
    "tenants delete jobs --queues",
    "broker start --folder node",
    "broker status --folder node",
    "broker uri --folder node",
    "broker stop --folder node",
]
"""In this order: each finds what those before it left."""
WANTS = {
    "run pipeline.toml": SPARK,
    "plan plan.toml": SPARK,
    "demo": SPARK,
    "stream create events": STREAMS,
    "stream show events": STREAMS,
    "stream tail events --once": STREAMS,
    "tenants top jobs --seconds 1": NOBODY,
    "lab all --simulate": LAB,
    "lab fair --simulate --report page.html": LAB,
}


def build(source: Path, to: Path, **more: str) -> dict[str, Path]:
    """The wheel and the sdist of a source tree, by their kind."""
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    run([sys.executable, "-m", "hatchling", "build", "-d", str(to)], source, environment | more)
    (wheel,), (sdist,) = to.glob("*.whl"), to.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def tree(to: Path) -> Path:
    """A copy of what a build takes from this tree."""
    for name in ("src", "pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def test_two_builds_are_the_same_byte_for_byte(tmp_path: Path) -> None:
    first, second = tree(tmp_path / "here"), tree(tmp_path / "elsewhere" / "deep")
    for path in second.rglob("*"):
        if path.is_file():
            path.chmod(0o600)  # another umask
            os.utime(path, (1_000_000_000, 1_000_000_000))
    made = [
        build(first, tmp_path / "1", SOURCE_DATE_EPOCH="1700000000"),
        build(second, tmp_path / "2", SOURCE_DATE_EPOCH="1700000000", PYTHONHASHSEED="7", TZ="Asia/Tokyo"),
        build(second, tmp_path / "3"),
        build(first, tmp_path / "4"),
    ]
    for kind in ("wheel", "sdist"):
        sums = [hashlib.sha256(each[kind].read_bytes()).hexdigest() for each in made]
        assert sums[0] == sums[1]
        assert sums[2] == sums[3]
        assert sums[0] != sums[2]  # it did go by the date that it was given
    with zipfile.ZipFile(made[0]["wheel"]) as wheel:
        names = wheel.namelist()
        # Nothing is missing, py.typed and the page's files included, and nothing is too much.
        source = ROOT / "src"
        there = {str(each.relative_to(source)) for each in source.rglob("*") if each.is_file()}
        wanted = {name for name in there if "__pycache__" not in name and ".egg-info" not in name}
        assert {name for name in names if ".dist-info/" not in name} == wanted
        assert "leash/py.typed" in names
        assert any(name.endswith("licenses/LICENSE") for name in names)
    with tarfile.open(made[0]["sdist"]) as sdist:
        assert any(name.endswith("/src/leash/py.typed") for name in sdist.getnames())


# --- in an empty environment ---


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel, and with what it needs by itself."""
    folder = tmp_path_factory.mktemp("wheel")
    made = build(tree(folder / "tree"), folder / "dist")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder, dict(os.environ))
    # By the pip of this environment, and compiled when it is used: that takes half as long.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
    install = ["install", "--no-compile", "-c", str(ROOT / "constraints.txt"), str(made["wheel"])]
    run([*pip, str(folder / "venv" / "bin" / "python"), *install], folder, _clean())
    return folder / "venv" / "bin"


def _clean(**more: str) -> dict[str, str]:
    """The environment without what points to this tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    return kept | more


@pytest.fixture
def call(programs: Path, uri: str, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Call `leash` in an empty folder."""
    (tmp_path / "app.py").write_text(APP.format(uri=uri))
    (tmp_path / "keys.txt").write_text("anna\nben\n")

    def leash_(line: str) -> Any:
        command = [str(programs / "leash"), *line.split()]
        environment = _clean(COLUMNS="200", **({} if line.startswith("broker") else {"LEASH_URI": uri}))
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT
        )

    yield leash_
    leash_("broker stop --folder node")


def leaves(command: Any, path: str = "") -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield path
        return
    for name, each in command.commands.items():
        yield from leaves(each, f"{path} {name}".strip())


def test_every_command_is_tried() -> None:
    tried = [*WORKS, *WANTS]
    for name in leaves(typer.main.get_command(app)):
        assert any(f"{line} ".startswith(f"{name} ") for line in tried), name


@pytest.mark.install
def test_the_version(programs: Path, tmp_path: Path) -> None:
    told = run([str(programs / "leash"), "--version"], tmp_path, _clean())
    assert told == f"leash {leash.__version__}\n"
    where = run([str(programs / "python"), "-c", "import leash; print(leash.__file__)"], tmp_path, _clean())
    assert where.startswith(str(programs.parent))


@pytest.mark.install
def test_the_core_is_small(programs: Path) -> None:
    """Without pip and compiled files, which make 121 MB of 69; typer 0.29 would bring pydantic."""
    files = [path for path in programs.parent.rglob("*") if "__pycache__" not in path.parts]
    assert sum(path.lstat().st_size for path in files) < 75 * 1000 * 1000
    assert not list(programs.parent.rglob("pydantic"))


def test_every_command_works_or_says_what_to_install(call: Callable[[str], Any], channel: Channel) -> None:
    fill(channel, "orders", 2)
    for line in WORKS:
        done = call(line)
        assert done.returncode == 0, f"leash {line}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr.replace("--traceback", ""), line
    for line, expected in WANTS.items():
        done = call(line)
        assert done.returncode == 1, f"leash {line}: {done.stdout}{done.stderr}"
        assert re.fullmatch(expected, done.stderr), f"leash {line}: {done.stderr}"
        assert done.stdout == ""


@pytest.mark.install
def test_user_code_is_checked_against_the_installed_wheel(programs: Path, tmp_path: Path) -> None:
    """By mypy of this environment, which looks into the other one: py.typed is there, with the types."""
    (tmp_path / "right.py").write_text("from leash import Queue\n\nQueue('orders', quantum=3)\n")
    (tmp_path / "wrong.py").write_text("from leash import Queue\n\nQueue('orders', quantum='three')\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(programs / "python")]
    environment = _clean(MYPY_CACHE_DIR=str(tmp_path / "cache"))
    run([*mypy, "right.py"], tmp_path, environment)
    wrong = subprocess.run(
        [*mypy, "wrong.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert wrong.returncode == 1
    assert '"quantum"' in wrong.stdout
