"""Downloads of the example that are interrupted, and files that were cut short."""

import gzip
import http.server
import lzma
import re
import threading
import zipfile

import pytest

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
    """A server of the zip file that hangs up after `served` bytes."""

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

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.served = 0, len(archive)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def data(example, server, tmp_path, monkeypatch):
    """The module that reads data, with the server in place of the real one."""
    import data

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


@pytest.mark.parametrize("served", [0, 1, 1000])
def test_an_interrupted_download_leaves_nothing(served, data, server, tmp_path):
    server.served = served
    message = f"downloaded as a whole.*{re.escape(url(server))}.*fra-eng.zip.*got only"
    with pytest.raises(OSError, match=message):
        data.load_pairs("fra-eng")
    assert list((tmp_path / "home" / "datasets").iterdir()) == []
    server.served = None
    assert len(data.load_pairs("fra-eng")) == 500


def test_a_download_that_was_killed_begins_again(data, server, tmp_path):
    folder = tmp_path / "home" / "datasets"
    folder.mkdir(parents=True)
    (folder / "fra-eng.zip.part").write_bytes(b"the first half")
    assert len(data.load_pairs("fra-eng")) == 500
    assert [path.name for path in folder.iterdir()] == ["fra-eng.zip"]


def test_a_download_onto_a_full_disk(data, tmp_path):
    folder = tmp_path / "home" / "datasets"
    folder.mkdir(parents=True)
    (folder / "fra-eng.zip.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"as a whole.*No space left on device.*--data"):
        data.load_pairs("fra-eng")
    assert list(folder.iterdir()) == []


def test_a_page_that_is_not_there(data, server, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FRA_ENG", url(server, "/gone.zip"))
    with pytest.raises(OSError, match=r"as a whole.*gone\.zip.*404.*--data"):
        data.load_pairs("fra-eng")
    assert list((tmp_path / "home" / "datasets").iterdir()) == []


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
