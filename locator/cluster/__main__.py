"""``python -m locator.cluster``: the process in which a server reads its snapshots. ``dump_files.load`` starts it.

Standard input names the files, standard output returns what stood in them.
"""

from __future__ import annotations

import sys

from locator.cluster.dump_files import read_packed

if __name__ == "__main__":
    sys.stdout.buffer.write(read_packed(sys.stdin.buffer.read()))
