#!/usr/bin/env bash
# Builds and runs programs in projects outside the workspace, as a user would: the example of each library's README, the
# main README's program with the dependencies shown there, and the ESP tunnel of the examples.
#   tests/outside.sh [FOLDER [NAME..]]     FOLDER: where the projects go (default: a temporary one). NAME: libraries, `readme`,
#                                          `esp_tunnel` (default: all). CARGO_TARGET_DIR is respected.
#   tests/outside.sh /tmp/outside readme ktls-offload nvme-tcp esp_tunnel quic-offload     a newcomer's five programs
# Prints the further crates that each program needs.
set -euo pipefail
cd "$(dirname "$0")/.."
here="$PWD"
folder="${1:-$(mktemp -d)}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$folder/target}"
mkdir -p "$folder"

# Extracts the first Rust example of a README as a program: hidden lines are shown, and the example may end with `?`, as
# in rustdoc.
program() {
    awk '/^```rust/ { inside = 1; next } /^```/ { if (inside) exit } inside { sub(/^#( |$)/, ""); print }' "$1" > "$folder/example"
    if ! [ -s "$folder/example" ]; then return 1; fi
    if grep -q 'fn main' "$folder/example"; then
        cat "$folder/example"
    elif grep -q '^Ok::<' "$folder/example"; then
        printf 'fn main() {\n    fn example() -> Result<(), impl std::fmt::Debug> {\n'
        cat "$folder/example"
        printf '    }\n    example().unwrap();\n}\n'
    else
        printf '#![allow(dead_code)]\nfn main() {\n'
        cat "$folder/example"
        printf '}\n'
    fi
}

# Makes a project of $folder/main.rs with the crates in the project's $manifest and the crates that the program names,
# and runs it.
run() {
    local name="$1" project="$2" further=() used dashed path
    cp "$folder/main.rs" "$project/src/main.rs"
    for used in $(grep -oE '(^|[^a-z_:])(use |pub use )?[a-z][a-z0-9_]*::' "$folder/main.rs" | grep -oE '[a-z][a-z0-9_]*' | sort -u || true); do
        dashed="${used//_/-}"
        if grep -q "^$dashed = " "$project/Cargo.toml"; then continue; fi
        # A crate that another crate re-exports, with the features that it needs.
        if grep -qE "^ *use [a-z_]+::.*\b$used\b *([,;}]|::\{self)" "$folder/main.rs"; then continue; fi
        path="$(grep -lx "name = \"$dashed\"" crates/*/Cargo.toml | head -1 || true)"
        if [ -n "$path" ]; then
            cargo add --quiet --manifest-path "$project/Cargo.toml" --path "$here/$(dirname "$path")"
        elif [ "$dashed" = tokio ]; then
            cargo add --quiet --manifest-path "$project/Cargo.toml" tokio --features full
        elif grep -q "^$dashed = " Cargo.toml; then
            cargo add --quiet --manifest-path "$project/Cargo.toml" "$dashed"
        else
            continue
        fi
        further+=("$dashed")
    done
    # The versions that the workspace is tested with.
    cp Cargo.lock "$project/Cargo.lock"
    if cargo run --quiet --manifest-path "$project/Cargo.toml" > "$folder/output" 2>&1; then
        printf '%-20s runs%s\n' "$name" "${further[*]:+, with ${further[*]}}"
    else
        printf '%-20s FAILED\n' "$name"
        cat "$folder/output"
        failed=1
    fi
}

project() {
    rm -rf "$folder/with-$1"
    cargo new --quiet --vcs none --name "with-${1//_/-}" "$folder/with-$1"
}

wanted() {
    [ "${#names[@]}" = 0 ] || [[ " ${names[*]} " == *" $1 "* ]]
}

failed=0
names=("${@:2}")
for manifest in crates/*/Cargo.toml; do
    crate="$(dirname "$manifest")"
    name="$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -1)"
    if grep -q '^publish = false' "$manifest" || ! wanted "$name"; then continue; fi
    if ! program "$crate/README.md" > "$folder/main.rs"; then
        printf '%-20s has no example\n' "$name"
        failed=1
        continue
    fi
    project "$name"
    cargo add --quiet --manifest-path "$folder/with-$name/Cargo.toml" --path "$here/$crate"
    run "$name" "$folder/with-$name"
done
if wanted readme; then
    program README.md > "$folder/main.rs"
    project readme
    # The lines below [dependencies] in the README, taken from this checkout.
    awk '/^```toml/ { inside = 1; next } /^```/ { inside = 0 } inside && !/^\[/' README.md \
        | sed "s|\.\./nic-offload|$here|" >> "$folder/with-readme/Cargo.toml"
    run readme "$folder/with-readme"
fi
if wanted esp_tunnel; then
    # The helper for --help belongs to the examples alone.
    grep -v 'offload_examples::' examples/esp_tunnel.rs > "$folder/main.rs"
    project esp_tunnel
    run esp_tunnel "$folder/with-esp_tunnel"
fi
exit "$failed"
