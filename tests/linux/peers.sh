#!/usr/bin/env bash
# Fetches a peer into target/peers, if absent, and prints the command that runs it.
#   tests/linux/peers.sh quic-go|aioquic|aiopquic
# Exit status 1, with the reason in one line: the peer is not available here.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
peers=$(realpath -m "$here/../../target/peers")
mkdir -p "$peers"
no() { echo "$1"; exit 1; }

python() { # package, version, interpreters to be tried
    local package=$1 version=$2 folder=$peers/$1 interpreter
    shift 2
    if [ "$(cat "$folder/version" 2>/dev/null)" != "$version" ]; then
        for interpreter in "$@"; do ! "$interpreter" -c 'import venv' 2>/dev/null || break; done
        rm -rf "$folder"
        "$interpreter" -m venv "$folder" >"$peers/log" 2>&1 || no "$package: none of $* makes a venv"
        "$folder/bin/pip" install -q "$package==$version" >"$peers/log" 2>&1 || no "$package: $(tail -1 "$peers/log")"
        echo "$version" >"$folder/version"
    fi
    echo "$folder/bin/python"
}

case ${1:?"peers.sh: which peer?"} in
quic-go)
    command -v go >/dev/null || no "quic-go: Go is missing"
    (cd "$here/quic-go" && go build -o "$peers/quic-go" .) >"$peers/log" 2>&1 || no "quic-go: $(tail -1 "$peers/log")"
    echo "$peers/quic-go"
    ;;
aioquic) python aioquic 1.7.2 python3 ;;
# The wheel contains picoquic and its OpenSSL; there are wheels for CPython 3.12 to 3.14.
aiopquic) python aiopquic 0.6.1 python3.13 python3.12 python3.14 "${HOME:-}"/.pyenv/versions/3.1[234]*/bin/python3 ;;
*) no "$1: no such peer" ;;
esac
