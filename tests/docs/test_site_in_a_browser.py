"""Every page in headless Chromium, on a phone and on a laptop: nothing is cut off."""

import functools
import http.server
import json
import queue
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
SCRIPT = Path(__file__).with_name("measure.js").read_text(encoding="utf-8")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
WIDTHS = (390, 1280)
PAGES = sorted(
    f"/{page.parent.relative_to(SITE)}/".replace("/./", "/")
    for page in SITE.rglob("index.html")
)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site and the page that measures the others, and takes its answer."""

    def do_GET(self):
        if self.path != "/measure":
            return super().do_GET()
        call = f"measure({json.dumps(PAGES)}, {json.dumps(WIDTHS)})"
        self._answer(f"<body></body><script>{SCRIPT}\n{call}</script>".encode())

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.server.found.put(json.loads(self.rfile.read(length)))
        self._answer(b"")

    def _answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Says nothing of each request."""


@pytest.fixture
def server():
    handler = functools.partial(Handler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.found = queue.Queue()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
@pytest.mark.skipif(not PAGES, reason="needs the site: make docs")
def test_nothing_is_cut_off(server, tmp_path):
    browser = subprocess.Popen(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={tmp_path}", "--window-size=1400,1000"),
            *("--remote-debugging-port=0",),  # so that it stays
            f"http://127.0.0.1:{server.server_port}/measure",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.found.get(timeout=200) == []
    finally:
        browser.terminate()
        browser.wait()
