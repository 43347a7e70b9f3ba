"""The examples in README and docs, for the tests that run them as written, but for broker and folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"(<!-- not run: [^\n]+ -->\n)?```(python|sh|toml)\n(.*?)```", re.DOTALL)


def snippets(page: str) -> list[str]:
    """A page's examples, without those that say why they are not run."""
    (path,) = (path for path in PAGES if path.name == page)
    return [text for skipped, _, text in _FENCE.findall(path.read_text()) if not skipped]


def execute(page: str, text: str, uri: str, folder: Path | None = None, **names: Any) -> dict[str, Any]:
    """Run an example. `consumer.run()` becomes `consumer.start()`, so that the test can go on."""
    for placeholder in (
        "amqp://user:password@broker:5672/",
        "rabbitmq-stream://user:password@broker:5552/",
        "amqp://localhost",
    ):
        text = text.replace(f'"{placeholder}"', repr(uri))
    if folder is not None:  # Spark's own folder is the one that it was started in
        text = text.replace('"data/', f'"{folder}/data/')
    text = text.replace("consumer.run()", "consumer.start()")
    names |= {"uri": uri, "url": uri}
    exec(compile(text, page, "exec"), names)  # noqa: S102
    return names
