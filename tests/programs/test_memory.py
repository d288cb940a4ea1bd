# SPDX-License-Identifier: Apache-2.0

"""Free memory goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kit.this_machine import ROOT

# The last of a thousand blocks of 100 kB stays, so the C library itself gives nothing back.
PROGRAM = """
import re, threading
from pathlib import Path
from locator.cluster import memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

def work(kept):
    blocks = [bytearray(b"x") * 100_000 for _ in range(1_000)]
    kept.append(blocks[-1])

memory.keep_little()
before, kept = resident(), []
thread = threading.Thread(target=work, args=[kept])
thread.start()
thread.join()
memory.give_back()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_free_memory_goes_back() -> None:
    """What a thread has freed, too, although something behind it is still in use."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert float(ran.stdout) < 20  # MB, of 100


LACKING = """
import ctypes
def cannot_load(name):
    raise OSError("dynamic loading is not supported")
{without}
from locator.cluster import memory
memory.keep_little()
memory.give_back()
"""


@pytest.mark.parametrize("without", ["ctypes.CDLL = cannot_load", "ctypes.CDLL = lambda name: object()"])
def test_another_c_library_is_left_alone(without: str) -> None:
    """One that cannot be asked, and one without these functions."""
    subprocess.run([sys.executable, "-c", LACKING.format(without=without)], cwd=ROOT, check=True)
