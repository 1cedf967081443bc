"""`keras-mp gpu`: what it prints and writes; here it runs on the CPU."""

import re

import pytest
import tensorflow as tf

from keras_mp.command_line import gpu, gpu_measurements
from keras_mp.command_line.training_steps import BLOCKS, RECIPES, Size
from keras_mp.ops.kernels import native
from keras_mp_cli import main

TINY = Size(batch=2, width=8)
TITLES = ["Installed", "Kernels", "Products", "Training steps", "Memory"]


@pytest.fixture
def tiny(monkeypatch):
    """The smallest products, and one model."""
    sizes = gpu.Sizes(product=16, products=1, models={"dense": TINY}, steps=1)
    monkeypatch.setattr(gpu, "QUICK", sizes)


def report_of(tmp_path, capsys, code=1):
    """What the command prints, which has to be what it writes."""
    path = tmp_path / "report.txt"
    assert main(["gpu", "--quick", "--out", str(path)]) == code
    printed, _, end = capsys.readouterr().out.rpartition("\n\nwrote ")
    assert str(path) in end and "issue" in end
    assert path.read_text() == printed + "\n"
    return printed


@pytest.mark.slow
def test_a_report_on_a_cpu(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KERAS_MP_GPU_REDUCTIONS", "formula")
    report = report_of(tmp_path, capsys)
    first, *_ = report.splitlines()
    assert first.startswith("NO GPU")
    assert re.findall(r"^(.+)\n-+$", report, re.M) == TITLES
    assert re.search(r"^gpu: +none: \w", report, re.M)
    # What a maintainer asks for first.
    assert re.search(r"^driver: +\w", report, re.M)
    assert re.search(r"^switches: .*KERAS_MP_GPU_REDUCTIONS=formula", report, re.M)
    errors = re.findall(
        r"float16 product of 16, [NT]{2}, error +(\S+) +right: at", report
    )
    assert len(errors) == 8
    assert all(0 < float(error) <= 1 for error in errors)
    steps = re.findall(r"^dense, (.+?) {2,}[\d.]+ ms", report, re.M)
    assert steps == list(gpu.TRAINED)
    assert "good" not in report  # of what nobody has decided
    assert len(re.findall("fp16_gemm / tf.matmul", report)) == 4
    assert re.search(r"^softmax, normalization, sums, CPU:0 +right$", report, re.M)
    *_, verdict = report.splitlines()
    assert verdict == "verdict: no GPU: nothing above says how it is on one"


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The CPU in the place of a GPU, for what comes before the kernels."""
    monkeypatch.setattr(gpu, "gpus", lambda: {"/device:CPU:0": "NVIDIA Known"})
    monkeypatch.setattr(native, "cuda_problem", lambda: "")
    monkeypatch.setattr(gpu, "memory", lambda report, sizes: None)


@pytest.fixture
def trains_nothing(monkeypatch):
    monkeypatch.setattr(gpu, "training_steps", lambda report, sizes: None)


def test_a_report_on_a_gpu_where_all_is_right(
    tiny, as_on_a_gpu, trains_nothing, tmp_path, capsys
):
    report = report_of(tmp_path, capsys, code=0)
    assert "NO GPU" not in report and "WRONG" not in report
    *_, verdict = report.splitlines()
    assert verdict == "verdict: the kernels are right on NVIDIA Known"


def test_a_gpu_without_kernels(
    tiny, as_on_a_gpu, trains_nothing, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(native, "cuda_problem", lambda: "its driver is too old")
    *_, verdict = report_of(tmp_path, capsys, code=1).splitlines()
    assert verdict == "verdict: WRONG on NVIDIA Known: no kernels for this device"


DRIVERS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue": "550.54.15",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06": "580.65.06",
    "NVRM": "unknown",
    None: "",
}


@pytest.mark.parametrize(("text", "version"), DRIVERS.items(), ids=DRIVERS.values())
def test_the_version_of_the_driver(text, version, tmp_path, monkeypatch):
    path = tmp_path / "version"
    if text is not None:
        path.write_text(f"{text}\nGCC version:  gcc version 11.4.0\n")
    monkeypatch.setattr(gpu, "DRIVER", path)
    assert gpu.driver() == version


@pytest.mark.slow
def test_a_wrong_kernel_and_one_that_fails(
    tiny, as_on_a_gpu, tmp_path, capsys, monkeypatch
):

    def fails(*_):
        raise tf.errors.InternalError(None, None, "no kernel image")

    monkeypatch.setattr(gpu, "product_problem", lambda device, dtype: "It errs.")
    monkeypatch.setattr(gpu, "update_problem", fails)
    monkeypatch.setattr(gpu, "reduction_problem", lambda device: "A sum errs.")
    monkeypatch.setattr(gpu, "convolution_problem", lambda device: "It is too large.")
    monkeypatch.setattr(gpu, "product_ms", fails)
    monkeypatch.setenv("KERAS_MP_GPU_REDUCTIONS", "kernels")
    monkeypatch.setattr(gpu, "error_over_bound", lambda dtype, *_: float("nan"))
    report = report_of(tmp_path, capsys, code=1)
    assert len(re.findall(r"first use of \w+ products.* WRONG: It errs\.", report)) == 2
    assert re.search(r"update step.* WRONG: A kernel fails: no kernel image\.", report)
    assert re.search(r"normalization, sums.* WRONG: A sum errs\.", report)
    assert re.search(r"of a SavedModel.* WRONG: It is too large\.", report)
    assert len(re.findall(r"product of 16.* nan +WRONG: at most 1 of", report)) == 8
    *_, verdict = report.splitlines()
    found = verdict.removeprefix("verdict: WRONG on NVIDIA Known: ").split("; ")
    assert len(found) == 8 + 5 + 1 and found[-1] == "Products failed"
    assert "update step, CPU:0" in found
    assert "\nFAILED: no kernel image\n" in report
    assert "dense, float16 of keras_mp" in report  # what follows is there


def test_a_report_is_not_overwritten(tmp_path, capsys, monkeypatch):
    path = tmp_path / "report.txt"
    path.write_text("of another GPU")
    monkeypatch.setattr(gpu, "installed", None)  # it ends before it begins
    assert main(["gpu", "--out", str(path)]) == 2
    assert "Received: " in capsys.readouterr().err
    assert path.read_text() == "of another GPU"


def test_sums_in_fp16_are_beyond_the_bound(monkeypatch):
    def sums_in_fp16(a, b, transpose_a, transpose_b, output_dtype):
        total = tf.zeros((a.shape[0], b.shape[1]), a.dtype)
        for k in range(a.shape[1]):
            total += a[:, k, None] * b[None, k]
        return tf.cast(total, output_dtype)

    monkeypatch.setattr(gpu_measurements, "fp16_gemm", sums_in_fp16)
    assert gpu_measurements.error_over_bound("float16", 32, False, False) > 1


@pytest.mark.slow
def test_memory_is_the_peak_over_what_was_there(monkeypatch):
    seen = iter([{"current": 10, "peak": 0}, {"current": 0, "peak": 110}])
    memory = tf.config.experimental
    monkeypatch.setattr(memory, "get_memory_info", lambda gpu: next(seen))
    monkeypatch.setattr(memory, "reset_memory_stats", lambda gpu: None)
    found = gpu_measurements.peak_bytes(BLOCKS["dense"], TINY, RECIPES[:1], "GPU:0")
    assert found == [100]
