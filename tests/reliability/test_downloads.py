"""Downloads of the example that are interrupted, and files that were cut short."""

import gzip
import http.server
import lzma
import re
import runpy
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TEXT = "".join(f"Go {i}.\tVa {i} !\n" for i in range(500)).encode()


@pytest.fixture
def archive(tmp_path):
    """The bytes of a zip file of sentence pairs."""
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("fra.txt", TEXT)
    return path.read_bytes()


@pytest.fixture
def server(archive):
    """A server of the zip file that hangs up, or waits, after `served` bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests += 1
            if self.path != "/fra-eng.zip":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(archive)))
            self.end_headers()
            self.wfile.write(archive[: server.served])
            server.may_hang_up.wait(20)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.served = 0, len(archive)
    server.may_hang_up = threading.Event()
    server.may_hang_up.set()
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield server
    server.may_hang_up.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def data(server, tmp_path, monkeypatch):
    """The module that reads data, with the server in place of the real one."""
    from translation import data

    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(data, "FRA_ENG", url(server))
    return data


def url(server, path="/fra-eng.zip"):
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_a_download_is_kept(data, server, tmp_path):
    expected = [(f"Go {i}.", f"Va {i} !") for i in range(500)]
    assert data.load_pairs("fra-eng") == expected
    assert data.load_pairs("fra-eng") == expected
    assert server.requests == 1
    folder = tmp_path / "home" / "datasets"
    assert [path.name for path in folder.iterdir()] == ["fra-eng.zip"]


def test_a_file_that_the_user_put_there_is_taken(data, archive, server, tmp_path):
    path = tmp_path / "home" / "datasets" / "fra-eng.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(archive)
    assert len(data.load_pairs("fra-eng")) == 500
    assert server.requests == 0
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("served", [0, 1000])
def test_a_server_that_falls_silent(served, data, server, tmp_path, monkeypatch):
    from experiments import files

    monkeypatch.setattr(files, "SILENCE", 0.2)
    server.served = served
    server.may_hang_up.clear()
    with pytest.raises(OSError, match=r"as a whole.*fra-eng\.zip.*timed out.*--data"):
        data.load_pairs("fra-eng")
    assert list((tmp_path / "home" / "datasets").iterdir()) == []


@pytest.mark.parametrize("served", [0, 1, 1000])
def test_an_interrupted_download_leaves_nothing(served, data, server, tmp_path):
    server.served = served
    message = f"as a whole.*{re.escape(url(server))}.*more expected.*--data"
    with pytest.raises(OSError, match=message):
        data.load_pairs("fra-eng")
    assert list((tmp_path / "home" / "datasets").iterdir()) == []
    server.served = None
    assert len(data.load_pairs("fra-eng")) == 500


def test_a_page_that_is_not_there(data, server, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FRA_ENG", url(server, "/gone.zip"))
    with pytest.raises(OSError, match=r"as a whole.*gone\.zip.*404.*--data"):
        data.load_pairs("fra-eng")
    assert list((tmp_path / "home" / "datasets").iterdir()) == []


@pytest.mark.parametrize(
    "members",
    [[], ["_about.txt"], ["_about.txt", "folder/"]],
    ids=["empty", "about", "folder"],
)
def test_a_zip_without_sentence_pairs(members, data, tmp_path):
    path = tmp_path / "empty.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name in members:
            file.writestr(name, "")
    message = f"must hold a file of sentence pairs. Received: {path}, which holds "
    with pytest.raises(ValueError, match=re.escape(f"{message}{members}. Give ")):
        data.load_pairs(str(path))


def test_a_folder_in_a_zip_is_passed_over(data, tmp_path):
    path = tmp_path / "folder.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("folder/", "")
        file.writestr("folder/fra.txt", TEXT)
    assert len(data.load_pairs(str(path))) == 500


@pytest.fixture
def build_help(tmp_path, monkeypatch):
    """Runs the script that makes the shipped set, where packages hold given pages."""
    from translation import data

    script = Path(data.__file__).with_name("data") / "build_libreoffice_help.py"
    out = tmp_path / "help.tsv.xz"

    def run(pages):
        def unpack(command, check):
            for name, text in pages.items():
                page = Path(command[-1]) / "usr/share/libreoffice/help" / name
                page.parent.mkdir(parents=True, exist_ok=True)
                page.write_text(text)

        monkeypatch.setattr(subprocess, "run", unpack)
        monkeypatch.setattr(sys, "argv", ["", "en.deb", "fr.deb", f"--out={out}"])
        runpy.run_path(str(script), run_name="__main__")
        return out

    return run


PAGES = {
    "en-US/page.html": '<p id="a">Some good words.</p>',
    "fr/page.html": '<p id="a">Quelques bons mots.</p>',
}


def test_packages_of_sentences(build_help):
    out = build_help(PAGES)
    assert (
        lzma.decompress(out.read_bytes()) == b"Some good words.\tQuelques bons mots.\n"
    )


@pytest.mark.parametrize("language", ["none", "en-US"])
def test_packages_without_sentence_pairs(language, build_help, tmp_path):
    pages = {name: page for name, page in PAGES.items() if language in name}
    message = (
        r"must hold the same pages.*Received: .*en\.deb.*fr\.deb.*apt-get download"
    )
    with pytest.raises(ValueError, match=message):
        build_help(pages)
    assert list(tmp_path.iterdir()) == []


def test_the_set_is_whole_or_as_it_was(build_help, tmp_path):
    out = build_help(PAGES)
    before = out.read_bytes()
    (tmp_path / "help.tsv.xz.part").symlink_to("/dev/full")
    with pytest.raises(
        OSError, match=r"help\.tsv\.xz could not be written: .*No space"
    ):
        build_help(PAGES)
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


COMPRESSED = {"gz": gzip.compress, "xz": lzma.compress, "zip": None}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_file_that_was_cut_short_is_named(suffix, data, archive, tmp_path):
    compress = COMPRESSED[suffix]
    whole = compress(TEXT) if compress else archive
    path = tmp_path / f"cut.{suffix}"
    for size in range(1, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"must be whole\. Received: {path}: "):
            data.load_pairs(str(path))
    path.write_bytes(whole)
    assert len(data.load_pairs(str(path))) == 500
