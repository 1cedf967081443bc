"""What is said of NVIDIA's driver: a library of our own takes its place."""

import os
import subprocess

import pytest
from cuda_ptx.compilers import CUSTOM_OPS, packages

# As much of a driver as the CUDA runtime asks for before it gives up.
DRIVER = """
extern "C" {
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuInit(unsigned) { return 100; }  // CUDA_ERROR_NO_DEVICE
}
"""
PROGRAM = """
#include <cstdio>
#include "cuda/common/error_text.h"
int main() {
  int count;
  std::puts(keras_mp::cuda::ErrorText(cudaGetDeviceCount(&count)));
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    includes = sorted(packages().glob("cuda_*/include"))
    source, binary = folder / "program.cc", folder / "program"
    source.write_text(PROGRAM)
    libraries = ("cudart_static", "culibos", "dl", "rt", "pthread")
    subprocess.run(
        [
            *("c++", "-std=c++17", source, "-o", binary, f"-I{CUSTOM_OPS / 'src'}"),
            *(f"-isystem{include}" for include in includes),
            f"-L{packages() / 'cuda_runtime' / 'lib'}",
            *(f"-l{name}" for name in libraries),
        ],
        check=True,
    )
    return binary


# The version of the driver as CUDA writes it, 0 where there is none, and a part of the
# text. The runtime is that of CUDA 12.9, which drivers of every 12.x run.
DRIVERS = {
    "none": (0, "this machine has no NVIDIA driver"),
    "too old": (11040, "it is for CUDA 11.4, and these kernels need one for CUDA 12"),
    "of the same major version": (12000, "no CUDA-capable device"),
}


@pytest.mark.parametrize("name", DRIVERS)
def test_a_driver(name, program, tmp_path):
    version, expected = DRIVERS[name]
    source, library = tmp_path / "driver.cc", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER.replace("VERSION", str(version)))
    subprocess.run(["c++", "-shared", "-fPIC", source, "-o", library], check=True)
    told = subprocess.run(
        [program],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert expected in told
