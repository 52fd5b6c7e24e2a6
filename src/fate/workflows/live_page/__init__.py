"""``fate live``: a page in the browser that shows live detection.

The detector and the page run in two processes. ``running.py`` detects and hands over frames and events,
``page_process.py`` draws them as small pictures in a thread and writes them into a pipe, ``server.py`` is the other
process and sends the newest picture to every browser, and ``messages.py`` is the format of a message. The page itself
is ``live.html``, ``live.css`` and ``live.js`` in ``fate/view/templates``.
"""
