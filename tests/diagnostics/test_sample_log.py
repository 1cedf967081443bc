"""`numerics.jsonl`: cut where a resumed run goes on, and named where it is damaged."""

import numpy as np
import pytest

from keras_mp.diagnostics.numerics import Entry
from keras_mp.diagnostics.sample_log import Sample, SampleLog
from keras_mp.diagnostics.statistics import TensorStatistics

ENTRIES = (Entry("kernel", "weight", TensorStatistics.of(np.float32([0, 2]))),)
SAMPLES = [Sample(step, 8.0, ENTRIES) for step in (2, 4)]


@pytest.fixture
def log(tmp_path):
    log = SampleLog(tmp_path)
    for sample in SAMPLES:
        log.append(sample)
    return log


@pytest.mark.parametrize(
    ("step", "kept"),
    [(0, []), (1, []), (2, SAMPLES[:1]), (3, SAMPLES[:1]), (4, SAMPLES)],
)
@pytest.mark.parametrize("unfinished", ["", '{"step": 6, "loss_s'])
def test_what_is_written_again_is_cut(log, unfinished, step, kept):
    with log.path.open("a") as file:
        file.write(unfinished)
    assert log.cut(step) == kept
    assert log.path.read_text() == "".join(f"{each.to_json()}\n" for each in kept)


DAMAGED = {
    "torn_line": (lambda data: data[:30] + b"\n" + data, "line 1: JSONDecodeError"),
    "zeros": (lambda data: data + b"\0" * 64 + b"\n", "line 3: JSONDecodeError"),
    "no_utf_8": (lambda data: data[:9] + b"\xff" + data[9:], "line 1: UnicodeDecode"),
    "no_sample": (lambda data: data + b"{}\n", "line 3: KeyError"),
    "list": (lambda data: b"[]\n" + data, "line 1: TypeError"),
    "step": (
        lambda data: data.replace(b'step": 4', b'step": "4"'),
        "line 2: TypeError",
    ),
    "no_number": (lambda data: data.replace(b"8.0", b"[]"), "line 1: TypeError"),
    "entry": (lambda data: data.replace(b"[", b"[5, ", 1), "line 1: TypeError"),
    "statistics": (lambda data: data.replace(b"zeros", b"seros"), "line 1: TypeError"),
}


@pytest.mark.parametrize(("damage", "where"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_named(log, damage, where):
    log.path.write_bytes(damage(log.path.read_bytes()))
    before = log.path.read_bytes()
    message = rf"sample in each line\. Received: .*numerics\.jsonl, {where}.*delete"
    with pytest.raises(ValueError, match=message):
        log.cut(4)
    assert log.path.read_bytes() == before


def test_a_flipped_bit_in_each_byte_ends_in_no_other_error(log):
    data = log.path.read_bytes()
    for i in range(len(data)):
        flipped = bytearray(data)
        flipped[i] ^= 1 << i % 8
        log.path.write_bytes(flipped)
        try:
            log.cut(4)
        except ValueError as error:
            assert "numerics.jsonl, line" in str(error)
