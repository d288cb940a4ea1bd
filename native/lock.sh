#!/bin/sh

# SPDX-License-Identifier: Apache-2.0

# Writes Cargo.lock, with which 'cargo build --locked' takes the very crates of crates.lock: each by version and checksum.
# crates.lock is a Cargo.lock without the address of the registry, which cargo itself knows. The folder is that of this
# script, or the argument.
set -eu
cd "${1:-$(dirname "$0")}"
registry=$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"source":"\(registry+[^"]*\)".*/\1/p')
sed "s|^checksum = |source = \"$registry\"\n&|" crates.lock > Cargo.lock.$$
mv Cargo.lock.$$ Cargo.lock # at once: cargo may be reading it
