#!/usr/bin/env bash
# Adds each library to a project of its own outside the workspace, as a user would, and runs the example of its README there.
#   tests/outside.sh [FOLDER]     FOLDER: where the projects go (default: a temporary one). CARGO_TARGET_DIR is respected
# Prints for each library which further crates its example needs.
set -euo pipefail
cd "$(dirname "$0")/.."
here="$PWD"
folder="${1:-$(mktemp -d)}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$folder/target}"
mkdir -p "$folder"

# The first Rust example of a README as a program: hidden lines are shown, and it may end with `?`, as rustdoc has it.
program() {
    awk '/^```rust/ { inside = 1; next } /^```/ { if (inside) exit } inside { sub(/^# ?/, ""); print }' "$1" > "$folder/example"
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

failed=0
for manifest in crates/*/Cargo.toml; do
    crate="$(dirname "$manifest")"
    name="$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -1)"
    if grep -q '^publish = false' "$manifest"; then continue; fi
    if ! program "$crate/README.md" > "$folder/main.rs"; then
        printf '%-20s has no example\n' "$name"
        failed=1
        continue
    fi
    project="$folder/with-$name"
    rm -rf "$project"
    cargo new --quiet --vcs none --name "with-$name" "$project"
    cp "$folder/main.rs" "$project/src/main.rs"
    cargo add --quiet --manifest-path "$project/Cargo.toml" --path "$here/$crate"
    further=()
    for used in $(grep -oE '(^|[^a-z_:])(use |pub use )?[a-z][a-z0-9_]*::' "$folder/main.rs" | grep -oE '[a-z][a-z0-9_]*' | sort -u || true); do
        dashed="${used//_/-}"
        if [ "$dashed" = "$name" ]; then continue; fi
        # One that another crate hands on, and has the features that it needs.
        if grep -qE "^ *use [a-z_]+::.*\b$used\b *[,;}]" "$folder/main.rs"; then continue; fi
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
done
exit "$failed"
