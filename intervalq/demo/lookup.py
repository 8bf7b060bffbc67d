"""Asks the demo API for one country, as a command that starts fast: `python -I -S lookup.py URL CODE`."""

import sys
from _socket import AF_INET, SOCK_STREAM, socket  # the public module takes longer to import than all the rest

_ASK_LATER = 75  # EX_TEMPFAIL of sysexits.h
_USAGE = "usage: lookup.py http://HOST:PORT CODE"


def main(arguments: list[str]) -> int:
    """Print the answer; return the exit code: 0, or 75 when the API is asked too often, else 1."""
    if len(arguments) != 2 or not arguments[0].startswith("http://"):
        return _complain(_USAGE)
    address = arguments[0].removeprefix("http://").rstrip("/")
    host, _, port = address.partition(":")
    code = arguments[1]
    if not port.isdecimal() or not (code.isascii() and code.isalnum()):
        return _complain(_USAGE)
    try:
        answer = _ask(host, int(port), f"GET /countries/{code} HTTP/1.1\r\nHost: {address}\r\n\r\n")
    except (OSError, OverflowError) as error:
        return _complain(f"{address} does not answer: {error}")
    head, _, body = answer.partition("\r\n\r\n")
    lines = head.split("\r\n")
    status = lines[0].split(" ")[1:2]
    if status == ["200"]:
        sys.stdout.write(f"{body}\n")
        return 0
    if status == ["429"]:
        later = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("retry-after:")]
        return _complain(f"{code}: asked too often, ask again in {' '.join(later)} s", _ASK_LATER)
    return _complain(f"{code}: {lines[0] or 'no answer'}")


def _ask(host: str, port: int, request: str) -> str:
    connection = socket(AF_INET, SOCK_STREAM)
    try:
        connection.settimeout(30)
        connection.connect((host, port))
        connection.send(request.encode())  # so short that it is sent in one piece
        answer = b""
        while part := connection.recv(65536):
            answer += part
    finally:
        connection.close()
    return answer.decode("latin-1")


def _complain(message: str, code: int = 1) -> int:
    sys.stderr.write(f"{message}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
