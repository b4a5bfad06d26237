#!/usr/bin/env bash
# Tests picoquic (in PyPI's aiopquic) against our QUIC, in virtual time: multipath in both roles, key updates, renewed
# connection IDs, an abandoned path, with and without the NIC, over a clean wire and over one that loses 1 %. Needs no
# root, but CPython 3.12 or newer.
#   tests/linux/picoquic.sh [ARGUMENT...]        for the tests' harness
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(tests/linux/peers.sh aiopquic) || { echo "SKIPPED: picoquic.sh: $python"; exit 77; }
# Built with the whole workspace, so that nothing is built a second time.
PICOQUIC="$python $PWD/crates/quic-offload/tests/all/picoquic_peer.py" \
    cargo test --workspace --locked --test all picoquic -- --ignored "$@"
