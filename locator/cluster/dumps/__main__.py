# SPDX-License-Identifier: Apache-2.0

"""``python -m locator.cluster.dumps``: the process in which ``dump_files.read_in_other_process`` reads dumps.

It takes the file names from standard input, and writes the dump to standard output, both pickled.
"""

from __future__ import annotations

import gc
import sys

from locator.cluster.dumps import container_memory
from locator.cluster.dumps.reading import read_packed

if __name__ == "__main__":
    container_memory.stay_within()  # whose limit would also end the server that waits for this process
    gc.disable()  # the process is short, and repeated collections would take longer than reading
    sys.stdout.buffer.write(read_packed(sys.stdin.buffer.read()))
