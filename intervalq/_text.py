"""Text and values from elsewhere, as they may stand in messages, logs and terminals."""

from __future__ import annotations


def plain(text: str) -> str:
    """Text from elsewhere as it may stand in a message, a log or a terminal: one line, without controls."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def short(value: object) -> str:
    """A value as it may stand in a message: quoted, without control characters, not too long."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - a number of too many digits, or a type that can't say what it is
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:76]}...{text[0]}"
