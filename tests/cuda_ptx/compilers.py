"""NVIDIA's compilers, of the packages that the extra `volta` installs.

NVRTC 12.9 makes PTX for every architecture from sm_70 on, which nvcc 13 no longer does,
and ptxas makes machine code of it. Neither needs a GPU.
"""

import ctypes
import functools
import importlib.util
import subprocess
import tempfile
from pathlib import Path

import pytest

CUSTOM_OPS = Path(__file__).resolve().parents[2] / "custom_ops"
ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_90")
# NVRTC has no headers of the host. What the kernels use of them is in libcu++.
HOST_HEADERS = {
    "algorithm": "",
    "cstring": "namespace std { using ::memcpy; }",
    "math.h": "",
} | {
    name: f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}"
    for name in ("cstdint", "initializer_list", "type_traits", "utility")
}


@functools.cache
def packages():
    """The folder of NVIDIA's packages; skips the test where they are not installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in map(Path, spec.submodule_search_locations if spec else []):
        if (folder / "cuda_nvrtc" / "lib" / "libnvrtc.so.12").exists():
            return folder
    pytest.skip("needs NVRTC 12.9: pip install 'keras_mp[volta]'")


def compile_ptx(source, architecture, *options, headers=None):
    """The PTX of CUDA C++; `headers` are added to those of the host."""
    nvrtc = ctypes.CDLL(str(packages() / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"))
    known = HOST_HEADERS | (headers or {})
    headers = [(name.encode(), text.encode()) for name, text in known.items()]
    program = ctypes.c_void_p()
    handle = ctypes.byref(program)
    status = nvrtc.nvrtcCreateProgram(
        handle,
        source.encode(),
        b"kernels.cu",
        len(headers),
        _strings([text for _, text in headers]),
        _strings([name for name, _ in headers]),
    )
    assert status == 0
    folders = [CUSTOM_OPS / "src", CUSTOM_OPS / "include"]
    folders += sorted(packages().glob("cuda_*/include"))
    options = [
        f"--gpu-architecture={architecture.replace('sm', 'compute')}",
        "--std=c++17",
        "-default-device",  # of functions that the host calls, too
        "--disable-warnings",  # that Volta is deprecated
        *(f"--include-path={folder}" for folder in folders),
        *options,
    ]

    def read(what):
        size = ctypes.c_size_t()
        assert nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert nvrtc[f"nvrtcGet{what}"](program, text) == 0
        return text.value.decode()

    try:
        status = nvrtc.nvrtcCompileProgram(
            program, len(options), _strings([option.encode() for option in options])
        )
        assert status == 0, read("ProgramLog")
        return read("PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


def assemble(ptx, architecture):
    """The machine code of PTX, and what `ptxas --verbose` says of each kernel."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernels.ptx"), Path(folder, "kernels.cubin")
        source.write_text(ptx)
        ptxas = packages() / "cuda_nvcc" / "bin" / "ptxas"
        done = subprocess.run(
            [ptxas, "--verbose", f"--gpu-name={architecture}", source, "-o", cubin],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return cubin.read_bytes(), done.stderr


def _strings(values):
    return (ctypes.c_char_p * len(values))(*values)
