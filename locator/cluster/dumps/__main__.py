"""``python -m locator.cluster.dumps``: the process in which a server reads its snapshots, for ``dump_files.load``.

Standard input names the files, standard output returns what stood in them.
"""

from __future__ import annotations

import gc
import sys

from locator.cluster.dumps.reading import read_packed

if __name__ == "__main__":
    gc.disable()  # a dump is one growing tree: collecting it again and again would take longer than reading it
    sys.stdout.buffer.write(read_packed(sys.stdin.buffer.read()))
