#!/usr/bin/env bash
# picoquic (inside PyPI's aiopquic) against our QUIC, in virtual time: multipath in both roles, key rotation, connection IDs renewed, a
# path abandoned, with the NIC and without, over a clean wire and one that loses 1 %. Needs no root, but CPython 3.12 or newer.
#   tests/linux/picoquic.sh [ARGUMENT...]        for the tests' harness
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(tests/linux/peers.sh aiopquic) || { echo "SKIPPED: picoquic.sh: $python"; exit 77; }
# Of the whole workspace, for then nothing is built anew that a test of it has built.
PICOQUIC="$python $PWD/crates/quic-offload/tests/all/picoquic_peer.py" \
    cargo test --workspace --locked --test all picoquic -- --ignored "$@"
