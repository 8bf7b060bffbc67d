"""A real Chromium, through the protocol of its developer tools: one of it serves many checks."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio

PHONE: Final = 390
DESKTOP: Final = 1280


OVERFLOW: Final = """() => {
  const width = document.documentElement.clientWidth, scrolls = (one) => {
    for (let each = one; each !== document.body; each = each.parentElement) {
      const { overflowX, position } = getComputedStyle(each);
      if (position === "fixed" || (each !== one && overflowX !== "visible")) return true;
    }
    return false;
  };
  return [...document.querySelectorAll("body *")].filter((one) => {
    const { left, right, width: own } = one.getBoundingClientRect();
    return own && (right > width + 1 || left < -1) && !scrolls(one);
  }).map((one) => one.outerHTML.slice(0, 200));
}"""
"""What sticks out of the page at a side, unless it is in a part that scrolls, or stays in its place."""


class Page:
    """The page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.asked: list[str] = []
        """What dialogs asked; each is answered with yes."""
        self.typed = ""
        """What to type into those that ask for a text."""

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give the browser a command; returns its result."""
        number = await self._send(method, parameters)
        while True:
            said = await self._socket.receive_json(timeout=60)
            if said.get("method") == "Page.javascriptDialogOpening":
                self.asked.append(said["params"]["message"])
                await self._send("Page.handleJavaScriptDialog", {"accept": True, "promptText": self.typed})
            elif said.get("id") == number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result

    async def _send(self, method: str, parameters: dict[str, Any]) -> int:
        self._number += 1
        await self._socket.send_str(json.dumps({"id": self._number, "method": method, "params": parameters}))
        return self._number

    async def resize(self, width: int, height: int) -> None:
        """Give the page another size; one as wide as a phone is on a phone."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width == PHONE}
        await self.do("Emulation.setDeviceMetricsOverride", **screen)

    async def open(self, url: str, *, width: int = DESKTOP, dark: bool = False) -> None:
        """Show a page, and wait until it is loaded."""
        await self.resize(width, 900)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.do("Emulation.setEmulatedMedia", features=[scheme])
        await self.do("Page.navigate", url="about:blank")
        await self.do("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def see(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = await self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until something is so in the page."""
        while not await self.see(expression):
            await anyio.sleep(0.02)

    async def click(self, element: str) -> None:
        """Click into the middle of what an expression gives, as a mouse does."""
        place = await self.see(
            f"(() => {{ const one = {element}; one.scrollIntoView({{ block: 'center' }});"
            " const { x, y, width, height } = one.getBoundingClientRect();"
            " return { x: x + width / 2, y: y + height / 2 } })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.do("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    async def picture(self) -> bytes:
        """What is to be seen, as PNG."""
        return base64.b64decode((await self.do("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Page]:
    """A browser with one page, without a profile of its own and without a sandbox."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += [f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    process = await anyio.to_thread.run_sync(_started, command)
    try:
        assert process.stderr is not None
        place = await anyio.to_thread.run_sync(_address, process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{place}/json/list") as answer:
                [page] = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                made = Page(socket)
                await made.do("Page.enable")
                yield made
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0)


def _address(process: subprocess.Popen[bytes]) -> str:
    """Where its developer tools listen, as it says."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(b"DevTools listening on ws://"):
            return line.split(b"//", 1)[1].split(b"/", 1)[0].decode()
    raise RuntimeError("Chromium has ended")
