# SPDX-License-Identifier: Apache-2.0

"""Writes the lock by which cargo builds the native code. ``pyproject.toml`` has all the rest."""

import shutil
import subprocess

from setuptools import setup

if shutil.which("cargo"):
    subprocess.run(["sh", "native/lock.sh"], check=False)  # where it fails, cargo refuses to build
setup()
