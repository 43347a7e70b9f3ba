"""On which line of a TOML file a key is; the standard library's parser does not say."""

from __future__ import annotations

import re

_NAME = r"(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)"
_NAMES = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_NAMES})\s*\]")
_KEY = re.compile(rf"\s*({_NAMES})\s*=\s*(.*)")
_LONG = ('"""', "'''")

Keys = tuple[str, ...]


class Lines:
    """The lines of a file that is known to be TOML. Spark ignores the case of options, so
    neither does this.
    """

    def __init__(self, text: str) -> None:
        self._found: dict[Keys, int] = {}
        section: Keys = ()
        ends = ""  # of text over several lines, in which nothing is a key
        for number, line in enumerate(text.splitlines(), 1):
            if ends:
                ends = "" if ends in line else ends
            elif header := _HEADER.match(line):
                section = _split(header[1])
                self._add(section, number)
            elif key := _KEY.match(line):
                self._add((*section, *_split(key[1])), number)
                ends = next(
                    (mark for mark in _LONG if key[2].startswith(mark) and key[2].count(mark) == 1), ""
                )

    def _add(self, path: Keys, number: int) -> None:
        for length in range(1, len(path) + 1):
            self._found.setdefault(path[:length], number)

    def of(self, path: Keys) -> int:
        """The line of a key; if it is not there, of the nearest table that would hold it; else 1."""
        wanted = tuple(name.lower() for name in path)
        for length in range(len(wanted), 0, -1):
            if wanted[:length] in self._found:
                return self._found[wanted[:length]]
        return 1


def _split(names: str) -> Keys:
    return tuple(name.strip("\"'").lower() for name in re.findall(_NAME, names))
