"""The kernel for Volta and Turing compiles, to tensor-core code with FP32 accumulators.

nvcc 13 knows no Volta. NVRTC 12.9, which the extra `volta` installs, does: it compiles
the same source, without a GPU.
"""

import ctypes
import importlib.util
import struct
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[3] / "custom_ops" / "src"

# Every shape and transpose that cuda/gemm/wmma.cu launches.
KERNELS = """
#include "cuda/gemm/wmma.cuh"
#include "cuda/gemm/shapes.h"
namespace keras_mp::cuda {
""" + "".join(
    f"template __global__ void WmmaKernel<{shape}, {a}, {b}>(const Problem);\n"
    for shape in ("WmmaMedium", "WmmaSmall")
    for a in ("false", "true")
    for b in ("false", "true")
)
KERNELS += "}\n"

HALF_ACCUMULATOR = """
#include <mma.h>
using namespace nvcuda;
__global__ void Kernel(__half* x) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, __half> sum;
  wmma::load_matrix_sync(a, x, 16);
  wmma::load_matrix_sync(b, x, 16);
  wmma::load_matrix_sync(sum, x, 16, wmma::mem_row_major);
  wmma::mma_sync(sum, a, b, sum);
  wmma::store_matrix_sync(x, sum, 16, wmma::mem_row_major);
}
"""

# Low 12 bits of a 128-bit instruction.
HMMA_884 = 0x236  # sm_70
HMMA_1688 = 0x23C  # sm_75; also HMMA.16816 of later ones


@pytest.fixture(scope="module")
def nvidia():
    """The folder of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations) if spec else []
    for folder in map(Path, folders):
        if (folder / "cuda_nvrtc" / "lib" / "libnvrtc.so.12").exists():
            return folder
    pytest.skip("needs NVRTC 12.9: pip install 'keras_mp[volta]'")


def compile_for(nvidia, architecture, source):
    """The machine code that NVRTC makes of a source."""
    nvrtc = ctypes.CDLL(str(nvidia / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"))
    program = ctypes.c_void_p()
    handle = ctypes.byref(program)
    assert (
        nvrtc.nvrtcCreateProgram(handle, source.encode(), b"a.cu", 0, None, None) == 0
    )
    folders = [SOURCES, *(nvidia.glob("cuda_*/include"))]
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    options += [f"--include-path={folder}" for folder in folders]
    arguments = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))

    def read(what):
        size = ctypes.c_size_t()
        assert nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size)) == 0
        data = ctypes.create_string_buffer(size.value)
        assert nvrtc[f"nvrtcGet{what}"](program, data) == 0
        return data.raw

    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        assert status == 0, read("ProgramLog").decode()
        return read("CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


def functions(cubin):
    """Yields the code of each kernel of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [
        struct.unpack_from("<IIQQQQ", cubin, table + size * i) for i in range(count)
    ]
    for name, _, _, _, offset, length in headers:
        begin = headers[names][4] + name
        if cubin[begin:].startswith(b".text."):
            yield cubin[offset : offset + length]


def products(code):
    """The tensor-core instructions: pairs of opcode and whether they add in FP32."""
    found = []
    for low, high in struct.iter_unpack("<QQ", code):
        if low & 0xFFF in (HMMA_884, HMMA_1688):
            found.append((low & 0xFFF, bool(high >> 12 & 1)))
    return found


@pytest.mark.parametrize(
    ("architecture", "opcode"), [("sm_70", HMMA_884), ("sm_75", HMMA_1688)]
)
def test_every_kernel_accumulates_in_fp32_on_tensor_cores(nvidia, architecture, opcode):
    kernels = list(functions(compile_for(nvidia, architecture, KERNELS)))
    assert len(kernels) == 8
    for code in kernels:
        assert set(products(code)) == {(opcode, True)}


@pytest.mark.parametrize(
    ("architecture", "opcode"), [("sm_70", HMMA_884), ("sm_75", HMMA_1688)]
)
def test_an_fp16_accumulator_would_be_seen(nvidia, architecture, opcode):
    (code,) = functions(compile_for(nvidia, architecture, HALF_ACCUMULATOR))
    assert set(products(code)) == {(opcode, False)}
