"""The process of the page: it serves one HTML file, and sends the newest picture to every browser.

Its standard input has messages of the detector (``messages.py``); the first one says where to listen. Its standard
output has one JSON object per line: the port or an error, the number of viewers, and what a viewer asks for. It ends
with its standard input, so also if the detector is killed. Nothing here loads numpy or torch.

A viewer confirms each picture when it is drawn, and at most ``IN_FLIGHT`` pictures are on their way. A slow viewer
therefore gets fewer pictures, but never old ones, and delays nobody.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from fate.workflows.live_page.messages import decode_message, read_message

#: Pictures that a viewer may have on the way: one is drawn while the next one travels.
IN_FLIGHT = 2
#: Most viewers at a time.
MAX_VIEWERS = 32
#: Longest message of a viewer, bytes.
MAX_BYTES = 1024
#: How long viewers have to receive the last message, seconds.
LAST_S = 1.0
#: Close codes of websockets: not allowed, too many viewers, and a wrong token.
POLICY, BUSY, WRONG_TOKEN = 1008, 1013, 4403


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def find_refusal(headers: Any, host: str, token: str) -> str:
    """Return why a request is refused, whatever its token is; an empty text if it is allowed.

    Args:
        headers: headers of the request. A page of another web site has another Origin, and a name that its owner has
            pointed at this machine (DNS rebinding) is another Host.
        host: address that the server listens on.
        token: expected token; empty if none is needed, which is the case on this machine only.
    """
    asked = headers.get("host", "")
    name = urlsplit(f"//{asked}").hostname or ""
    if not token and name != host and not is_loopback(name):
        return f"the page was asked for as {name!r}; open it under the address that fate live prints"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != asked:
        return "another web page asked for this one; open it directly"
    return ""


@dataclass(eq=False)
class Viewer:
    """One browser."""

    run: int = 0  #: number of the latest message about the run that it was sent
    picture: int = 0  #: number of the latest picture that it was sent
    waiting: int = 0  #: pictures that it was sent and has not drawn yet
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class LiveServer:
    """Passes messages of the detector to viewers; all methods run in one event loop."""

    def __init__(self, host: str, token: str, page: str) -> None:
        """Take the address to listen on, the token (empty for none) and the HTML of the page."""
        self._host, self._token, self._page = host, token, page
        self._run: tuple[int, bytes] = (0, b"")  # number and message
        self._picture: tuple[int, bytes] = (0, b"")
        self._viewers: set[Viewer] = set()
        self._ended = False
        self.app = Starlette(routes=[Route("/", self._serve_page), WebSocketRoute("/pictures", self._serve_viewer)])

    def publish(self, message: bytes) -> None:
        """Take the next message of the detector: about the run, which every viewer gets, or a picture."""
        content, _ = decode_message(message)
        if content["kind"] == "run":
            self._run = (self._run[0] + 1, message)
        else:
            self._picture = (self._picture[0] + 1, message)
        self._wake()

    async def end(self) -> None:
        """Let every viewer receive the last message, and disconnect it."""
        self._ended = True
        self._wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                while self._viewers:
                    await asyncio.sleep(0.02)

    def _wake(self) -> None:
        for viewer in self._viewers:
            viewer.wake.set()

    def _refusal(self, request: HTTPConnection) -> str:
        return find_refusal(request.headers, self._host, self._token)

    def _has_token(self, request: HTTPConnection) -> bool:
        return hmac.compare_digest(request.query_params.get("token", "").encode(), self._token.encode())

    async def _serve_page(self, request: Request) -> Response:
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
        refusal = self._refusal(request)
        if not refusal and not self._has_token(request):
            refusal = "the token is missing or no longer valid; open the whole address that fate live printed last"
        if refusal:
            return PlainTextResponse(refusal, 403, headers)
        return HTMLResponse(self._page, headers=headers)

    async def _serve_viewer(self, websocket: WebSocket) -> None:
        if refusal := self._refusal(websocket):
            await websocket.close(POLICY, refusal)
            return
        await websocket.accept()
        if not self._has_token(websocket):  # a browser passes the code on only if the connection was accepted
            await websocket.close(WRONG_TOKEN, "the token is missing or no longer valid")
            return
        if len(self._viewers) >= MAX_VIEWERS:
            await websocket.close(BUSY, f"{MAX_VIEWERS} pages are open already")
            return
        viewer = Viewer()
        viewer.wake.set()
        self._viewers.add(viewer)
        say({"viewers": len(self._viewers)})
        tasks = [asyncio.create_task(part(websocket, viewer)) for part in (self._send, self._receive)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._viewers.discard(viewer)
            say({"viewers": len(self._viewers)})
        with suppress(RuntimeError, WebSocketDisconnect):  # the viewer has gone
            await websocket.close()

    async def _send(self, websocket: WebSocket, viewer: Viewer) -> None:
        """Send what is new, until the detector has ended and the viewer has its last messages."""
        while True:
            await viewer.wake.wait()
            viewer.wake.clear()
            is_last = self._ended  # what was published before is all there is
            number, message = self._run
            if viewer.run < number:
                viewer.run = number
                await websocket.send_bytes(message)
            number, message = self._picture
            if viewer.picture < number and (is_last or viewer.waiting < IN_FLIGHT):
                viewer.picture = number
                viewer.waiting += 1
                await websocket.send_bytes(message)
            if is_last:
                return

    async def _receive(self, websocket: WebSocket, viewer: Viewer) -> None:
        """Take confirmations and wishes; a message that is no JSON object ends the connection."""
        while True:
            try:
                asked = json.loads(await websocket.receive_text())
            except (ValueError, KeyError, WebSocketDisconnect):
                return
            if not isinstance(asked, dict):
                return
            if isinstance(asked.get("shown"), int):  # how many pictures
                viewer.waiting = max(0, viewer.waiting - max(0, asked["shown"]))
                viewer.wake.set()
            if isinstance(asked.get("record"), bool):
                say({"record": asked["record"]})


def say(content: dict[str, Any]) -> None:
    """Write a line for the detector; it is lost if the detector has ended."""
    with suppress(OSError, ValueError):
        sys.stdout.write(f"{json.dumps(content)}\n")
        sys.stdout.flush()


async def serve(listener: socket.socket, live: LiveServer) -> None:
    """Serve the page until standard input ends."""
    config = uvicorn.Config(
        live.app, log_level="critical", access_log=False, lifespan="off", ws="websockets-sansio", ws_max_size=MAX_BYTES,
        ws_per_message_deflate=False, timeout_graceful_shutdown=1, server_header=False,
    )  # fmt: skip
    server, loop = uvicorn.Server(config), asyncio.get_running_loop()

    async def finish() -> None:
        await live.end()
        server.should_exit = True

    def read() -> None:
        while (message := read_message(sys.stdin.buffer)) is not None:
            loop.call_soon_threadsafe(live.publish, message)
        asyncio.run_coroutine_threadsafe(finish(), loop)

    threading.Thread(target=read, name="fate-messages", daemon=True).start()
    await server.serve([listener])


def main() -> None:
    """Run the process of the page."""
    first = read_message(sys.stdin.buffer)
    if first is None:
        return
    setup, page = decode_message(first)
    try:
        family = socket.getaddrinfo(setup["host"], setup["port"], type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((setup["host"], setup["port"]), family=family)
    except (OSError, OverflowError) as error:
        say({"error": getattr(error, "strerror", None) or str(error)})
        return
    say({"port": listener.getsockname()[1]})
    asyncio.run(serve(listener, LiveServer(setup["host"], setup["token"], page.decode())))


if __name__ == "__main__":
    main()
