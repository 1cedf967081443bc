"""Every page in headless Chromium, on a phone and on a laptop: nothing is cut off.

And no script of a page fails, and no file is missing.
"""

import functools
import http.server
import json
import queue
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
SCRIPT = Path(__file__).with_name("measure.js").read_text(encoding="utf-8")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    # It asks for the pages of the test, and for nothing else.
    *("--disable-background-networking", "--disable-component-update"),
    *("--disable-quic", "--disable-sync"),
    "--enable-logging=stderr",
    # So that it stays until it is ended.
    "--remote-debugging-port=0",
)
WIDTHS = (1280, 390)
PAGES = sorted(
    f"/{page.parent.relative_to(SITE)}/".replace("/./", "/")
    for page in SITE.rglob("index.html")
)
# What the test has to notice, put into a page of the site. A class keeps the theme from
# making the table scroll.
CUT_OFF = """
<table class="wide" style="width: 3000px"><tr><td>A table</td></tr></table>
<div class="doc-signature"><code style="display: block; overflow: hidden; width: 9px">
signature(argument)</code></div>
<script>brokenScript();</script>
<script src="/missing.js"></script>
</article>
"""
NOTICED = [
    "/planted/ at 1280: the page is wider than the window",
    "/planted/ at 1280: clipped: A table",
    "/planted/ at 1280: a signature that is cut off: signature(argument)",
    "/planted/ at 390: the page is wider than the window",
    "/planted/ at 390: clipped: A table",
]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, a page with faults, and the page that measures and answers."""

    def send_error(self, code, message=None, explain=None):
        self.server.missing.append(self.path)
        super().send_error(code, message, explain)

    def do_GET(self):
        if self.path == "/measure":
            call = f"post(measure({json.dumps([*PAGES, '/planted/'])}, {[*WIDTHS]}))"
            self._answer(f"<body></body><script>{SCRIPT}\n{call}</script>")
        elif self.path == "/planted/":
            page = (SITE / "quickstart" / "index.html").read_text(encoding="utf-8")
            self._answer(page.replace("</article>", CUT_OFF))
        else:
            super().do_GET()

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.server.found.put(json.loads(self.rfile.read(length)))
        self._answer("")

    def _answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        """Says nothing of each request."""


@pytest.fixture
def server():
    handler = functools.partial(Handler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.found, server.missing = queue.Queue(), []
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def answer(server, browser, log):
    """What the browser posts; an error with its log if it has ended, or in 200 s."""
    for _ in range(100):
        try:
            return server.found.get(timeout=2)
        except queue.Empty:
            if browser.poll() is not None:
                break
    raise RuntimeError(f"The browser gave no answer. {log.read_text()}")


def script_errors(log):
    """Returns the beginnings of the errors in the consoles of all pages, each once."""
    pattern = r'CONSOLE.*?"(Uncaught \S+ \w+)'
    return sorted({*re.findall(pattern, log.read_text(errors="replace"))})


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
@pytest.mark.skipif(not PAGES, reason="needs the site: make docs")
def test_nothing_is_cut_off_missing_or_broken(server, tmp_path):
    address = f"http://127.0.0.1:{server.server_port}/measure"
    log = tmp_path / "log"
    with log.open("w") as errors:
        browser = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", address],
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        assert answer(server, browser, log) == NOTICED
        assert script_errors(log) == ["Uncaught ReferenceError: brokenScript"]
        assert {*server.missing} - {"/favicon.ico"} == {"/missing.js"}
    finally:
        browser.terminate()
        browser.wait()
