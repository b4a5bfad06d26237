# Shared code of the scripts about protection information; to be sourced. `transform` is the program, `work` a folder,
# `fail` ends the script.
flip() { # the file, a byte of it
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %x $((byte ^ 16)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
finds_flips() { # an image in which each block's protection information follows it, the size of a block: bits flipped in it are told at their LBAs
    tells() { # a byte to flip, what is told then
        cp "$image" "$work/wrong"
        flip "$work/wrong" "$1"
        ! "$transform" "$work/wrong" "$work/back" --undo --transform pi --unit "$block" 2>"$work/told" || fail "it is found"
        grep -q "$2" "$work/told" || { cat "$work/told"; fail "told is: $2"; }
    }
    local image=$1 block=$2
    tells $((99 * (block + 8) + 7)) "guard of LBA 99 "
    tells $((5 * (block + 8) + block + 7)) "reference tag of LBA 5 "
}
