"""By how much a process grows for each parameter, in every form of optimizer state."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "peak_of_a_step.py"
PARAMETERS = 16 * 2**22  # COUNT * SIZE there
# As `bytes_per_parameter` counts them.
COUNTED = {
    "masters": 16.0,
    "remainders": 14.0,
    "int8": 10.0625,
    "both": 8.0625,
    "both in int8": 7.0625,
    "int8 remainders, int4": 6.0625,
    "no masters, int8": 6.0625,
}


@pytest.mark.xslow_except("both")
@pytest.mark.parametrize("form", COUNTED)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_grows_by_what_is_counted(form):
    """A tenth more at most: nothing of full size is ever expanded.

    The moments alone would be 8 bytes in FP32, and a copy of the masters 4.
    """
    # Blocks above 64 KiB go back to the system when they are freed.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "TF_CPP_MIN_LOG_LEVEL": "3"}
    output = subprocess.check_output(
        [sys.executable, SCRIPT, form], env=os.environ | settings, text=True
    )
    # Linux adds up the pages of a thread later: VmRSS is off by some 256 KiB a thread.
    least = COUNTED[form] - 4 * 2**18 / PARAMETERS
    assert least <= float(output) <= 1.1 * COUNTED[form]
