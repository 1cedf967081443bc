"""AN4: names, addresses and numbers that people spelled, and commands."""

import math
import re
import tarfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from experiments.files import downloaded
from speech_recognition.features import mfcc, normalized, spectrogram

AN4 = "http://www.speech.cs.cmu.edu/databases/an4/an4_raw.littleendian.tar.gz"
FEATURES = {"mfcc": mfcc, "spectrogram": spectrogram}
COEFFICIENTS = 13
# A line of a transcription: "<s> YES </s> (an251-fash-b)", often without the marks.
LINE = re.compile(r"(?:<s> )?(?P<text>[A-Z' ]+?)(?: </s>)? +\((?P<name>\S+)\)")


class Utterance(NamedTuple):
    """Features `[frames, n]` of what was said, and its text."""

    features: np.ndarray
    text: str


def load(source: str, features: str) -> tuple[list[Utterance], list[Utterance]]:
    """Reads the training and the test set of AN4.

    Args:
        source: `"an4"`, which downloads the recordings (64 MB), or an archive: either
            these, as raw 16-bit samples (.raw), or with MFCC (.mfc).
        features: `"mfcc"` or `"spectrogram"`. An archive with MFCC has no other.

    Returns:
        Two lists of utterances, whose features have mean 0 and deviation 1 each.
    """
    path = downloaded(AN4) if source == "an4" else Path(source)
    if not path.is_file():
        raise FileNotFoundError(
            "`--data` must be 'an4' or an archive of AN4. Received: --data "
            f"{source}, which does not exist. Check the path."
        )
    try:
        with tarfile.open(path) as archive:
            return _Archive(path, archive, features).read()
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"An archive must be whole, and a tar file. Received: {path}: {reason}. "
            "Fetch it again."
        ) from error


def check_lengths(utterances: Sequence[Utterance], stride: int) -> None:
    """Raises if CTC cannot write an utterance: it needs a frame for each character.

    And a blank between two that are the same.

    Args:
        utterances: List.
        stride: Integer. Frames of features for one frame of the network's output.
    """
    for features, text in utterances:
        needed = len(text) + sum(a == b for a, b in pairwise(text))
        frames = math.ceil(len(features) / stride)
        if frames < needed:
            raise ValueError(
                "An utterance must have a frame for each character and for each blank "
                f"between equal ones. Received: {text[:60]!r}, which needs {needed}, "
                f"with {len(features)} frames and a stride of {stride}, that is "
                f"{frames}. Take smaller strides with --convolutions."
            )


class _Archive:
    """An archive of AN4, whose files are known by their names without folders."""

    def __init__(self, path: Path, archive: tarfile.TarFile, features: str) -> None:
        self.path = path
        self.archive = archive
        self.features = features
        names = (PurePosixPath(m.name) for m in archive.getmembers() if m.isfile())
        self.files = {name.name: str(name) for name in names}

    def read(self) -> tuple[list[Utterance], list[Utterance]]:
        return self._part("train"), self._part("test")

    def _part(self, part: str) -> list[Utterance]:
        name = f"an4_{part}.transcription"
        lines = self._bytes(name).decode("ascii", "replace").splitlines()
        if not lines:
            raise ValueError(
                "A transcription must have a line for each utterance. Received: "
                f"{name} of {self.path}, which is empty. Fetch the archive again."
            )
        utterances = []
        for number, line in enumerate(lines, start=1):
            match = LINE.fullmatch(line.strip())
            if match is None:
                raise ValueError(
                    "A line of a transcription must be capital letters and a name, "
                    f"TEXT (name). Received: {name} of {self.path}, "
                    f"line {number}: {line[:60]!r}. Fetch the archive again."
                )
            features = normalized(self._features(match["name"]))
            utterances.append(Utterance(features, match["text"]))
        return utterances

    def _features(self, name: str) -> np.ndarray:
        if f"{name}.mfc" in self.files and self.features == "mfcc":
            return self._cepstra(f"{name}.mfc")
        samples = np.frombuffer(self._bytes(f"{name}.raw"), "<i2")
        return FEATURES[self.features](samples)

    def _cepstra(self, name: str) -> np.ndarray:
        """Reads the number of floats, big-endian as they are, and the floats."""
        content = self._bytes(name)
        numbers = np.frombuffer(content[4:], ">f4") if len(content) % 4 == 0 else []
        count = int.from_bytes(content[:4], "big")
        if len(numbers) != count or not count or count % COEFFICIENTS:
            raise ValueError(
                f"A file of MFCC must hold as many floats as it says, {COEFFICIENTS} a "
                f"frame. Received: {name} of {self.path}, {len(content)} bytes, which "
                f"says {count}. Fetch the archive again."
            )
        return np.reshape(numbers, (-1, COEFFICIENTS))

    def _bytes(self, name: str) -> bytes:
        if name not in self.files:
            raise ValueError(
                "An archive of AN4 must hold the transcriptions, and of each utterance "
                "its samples (.raw) or, for --features mfcc, its MFCC (.mfc). "
                f"Received: {self.path}, without {name}. Give another archive."
            )
        file = self.archive.extractfile(self.files[name])
        return file.read() if file else b""
