"""The floor plan: what may import what, and that nobody reaches into another module's pockets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import leash

SRC = Path(leash.__file__).parent.parent

ROOMS = (
    ("wording", "errors", "units", "backoff", "bodies", "logfmt", "policies"),
    ("amqp", "streams", "flow"),
    ("management",),
    ("broker", "partitions", "fleet"),
    ("publisher",),
    ("consumer",),
    ("spark", "testing", "otel", "page"),
    ("lab",),
    ("cli",),
)
"""Each room may import those above it in this list, and those on the same line that come before it."""

FOREIGN = {
    "_unmarshal_method_frame": "pamqp has no public name for one half of `unmarshal`",
    "_get_kwargs_from_urls": "fsspec's own way to make a file system from a URL",
    "_strip_protocol": "likewise",
    "_pipe_file": "asked only whether a file system overrides it",
    "_replace": "a NamedTuple's public method",
    "_jvm": "PySpark's only way to the loggers of Spark",
}


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((SRC / "leash").rglob("*.py"))
    }


KNOWN = modules()


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text()) for name, path in modules().items()}


def imports(tree: ast.Module) -> Iterator[str]:
    """What a module imports, lazily too, but for what only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (each for child in node.orelse for each in _imported(child))
        else:
            yield from _imported(node)


def _imported(tree: ast.AST) -> Iterator[str]:
    known = KNOWN
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "leash":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


@cache
def graph() -> dict[str, set[str]]:
    return {name: set(imports(tree)) - {name, "leash"} for name, tree in trees().items()}


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """The modules that are left when all are taken away that import nothing that is left."""
    left = dict(edges)
    while done := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in done:
            del left[name]
    return sorted(left)


def test_no_module_imports_itself_by_way_of_others() -> None:
    edges = dict(graph())
    del edges["leash"]  # its names are looked up when they are asked for
    assert cycle(edges) == []


def test_a_cycle_would_be_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_rooms_import_only_those_below_them() -> None:
    order = {room: (floor, at) for floor, rooms in enumerate(ROOMS) for at, room in enumerate(rooms)}
    wrong = []
    for name, targets in graph().items():
        if name == "leash":
            continue
        room = name.split(".")[1]
        for target in targets:
            other = target.split(".")[1]
            if other != room and order[other] > order[room]:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def reached(tree: ast.Module) -> Iterator[str]:
    """Underscored names of other modules: imported, or attributes that this module never defines."""
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) in ("self", "cls")
    }
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr) and node.attr not in own | FOREIGN.keys():
            yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leash"):
            yield from (f"line {node.lineno}: {alias.name}" for alias in node.names if _private(alias.name))


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_module_reaches_for_an_underscored_name_of_another() -> None:
    found = {name: list(reached(tree)) for name, tree in trees().items()}
    assert {name: places for name, places in found.items() if places} == {}


def test_a_reach_would_be_found() -> None:
    assert sorted(reached(ast.parse("other._inside = other._more\nfrom leash.flow import _x"))) == [
        "line 1: other._inside",
        "line 1: other._more",
        "line 2: _x",
    ]


def test_a_file_fits_in_one_reading() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert {name: lines for name, lines in lengths.items() if lines > 350} == {}


def named(text: str) -> set[str]:
    """The Python files that a text names."""
    return set(re.findall(r"[\w/]+\.py\b", text))


def test_an_index_names_every_file_of_its_folder() -> None:
    indexed = []
    for name, path in modules().items():
        files = named(ast.get_docstring(trees()[name]) or "") if path.name == "__init__.py" else set()
        if files:
            indexed.append(name)
            assert files == {each.name for each in path.parent.glob("*.py")} - {"__init__.py"}, name
    assert {"leash.amqp", "leash.consumer", "leash.flow", "leash.spark.task", "leash.streams"} <= set(indexed)


def test_a_file_that_is_named_exists() -> None:
    known = [f"/{path.relative_to(SRC).as_posix()}" for path in modules().values()]
    for path in modules().values():
        gone = [each for each in named(path.read_text()) if not any(at.endswith(f"/{each}") for at in known)]
        assert gone == [], path
