"""Who may act by way of the page: whoever has its token, and no page of another origin."""

from __future__ import annotations

import hmac
from email.message import Message


def host_of(headers: Message) -> str:
    """The host, with its port, that a request is for."""
    return (headers.get("Host") or "").lower()


def refused(headers: Message, token: str | None) -> str | None:
    """Why an action is refused, or None."""
    if token is None:
        return "this page allows no actions: start it with --allow-actions"
    host, origin = host_of(headers), headers.get("Origin")
    if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
        return "a page of another origin asks"
    if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return "a page of another site asks"
    given = (headers.get("Authorization") or "").encode("utf-8", "replace")
    if not hmac.compare_digest(given, f"Bearer {token}".encode()):
        return "the token is missing or wrong: open the address that was printed"
    if (headers.get("Content-Type") or "").partition(";")[0].strip() != "application/json":
        return "the body must be application/json"
    return None
