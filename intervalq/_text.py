"""Makes untrusted text and values safe for messages, logs and terminals."""

from __future__ import annotations


def plain(text: str) -> str:
    """Untrusted text on one line, without control characters: safe in messages, logs and terminals."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def short(value: object) -> str:
    """A value for a message: quoted, without control characters, and shortened."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - a number of too many digits, or a type whose repr fails
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:76]}...{text[0]}"
