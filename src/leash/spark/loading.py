"""Options checked at `load()`, where the user's own line is the last one of the traceback.

Spark asks for the schema then, and does not say whether a batch or a stream of batches is to be read. So what
no read could mean is refused; the rest is checked again once that is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from leash.errors import ConfigError
from leash.spark.settings import NEEDS_STAGING, NO_BATCHES, browse_settings, source_settings
from leash.spark.streams.settings import are_for_streams, stream_read_settings, stream_settings


def check(given: Mapping[str, str]) -> None:
    """Raise ConfigError for options that neither `read` nor `readStream` takes."""
    if are_for_streams(given):
        _check_streams(given)
    elif "mode" in {name.lower() for name in given}:
        browse_settings(given)
    else:
        _check_queues(given)


def _check_streams(given: Mapping[str, str]) -> None:
    try:
        stream_settings(given)
    except ConfigError:
        if "endingoffsets" not in {name.lower() for name in given}:
            try:
                stream_read_settings(given)
            except ConfigError:
                pass
            else:
                return
            raise
        stream_read_settings(given)


def _check_queues(given: Mapping[str, str]) -> None:
    try:
        source_settings(given)
    except ConfigError as error:
        if error.argument == "stagingLocation" and error.value is None:
            raise ConfigError(
                "stagingLocation", None, f"{NEEDS_STAGING}. For spark.read: {NO_BATCHES}"
            ) from None
        raise
