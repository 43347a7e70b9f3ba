"""What the attempts at a split tell each other."""

from __future__ import annotations

from contextlib import suppress

from leash.errors import Fenced
from leash.spark.offsets import Split
from leash.spark.staging import fence, notes, seals
from leash.spark.staging.files import Files


class Records:
    """What the attempts at a split tell each other. This one knows of no others."""

    def over(self) -> bool:
        """True if another attempt has done the work, or the batch is over."""
        return False

    def window(self) -> int | None:
        """A window that holds all that may have been returned; None if unknown."""
        return None

    def note_window(self, window: int) -> None:
        """Tell other attempts the window."""

    def note_limbo(self) -> None:
        """Tell other attempts that the queue was declared anew, and has a limbo."""


class SplitRecords(Records):
    """Records in the split's folder."""

    def __init__(self, files: Files, split: Split) -> None:
        self._files, self._split = files, split

    def over(self) -> bool:
        if seals.read_seal(self._files, self._split.seal_path) is not None:
            return True
        try:
            fence.check_fence(self._files, self._split)
        except Fenced:
            return True
        return False

    def window(self) -> int | None:
        return notes.known_window(self._files, self._split)

    def note_window(self, window: int) -> None:
        with suppress(OSError):  # a full disk: then every attempt has to find out for itself
            notes.note_window(self._files, self._split, window)

    def note_limbo(self) -> None:
        with suppress(OSError):  # a copy in limbo that other attempts do not know is better than none
            notes.note_limbo(self._files, self._split)
