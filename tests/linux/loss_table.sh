#!/usr/bin/env bash
# Measures one connection's goodput under random loss: the emulated host's sender beside Linux's, over the same wire
# (RTT 10 ms) with the same seeds, in real time. Each figure is the median of the runs, in MB/s.
#   tests/linux/loss_table.sh [RUNS [SECONDS]]      5 runs of about 20 s each; with `1 1` it takes half a minute
# Both ends have send and receive buffers of 16 MiB. `Expect:` and the handshake are excluded from the time.
. "$(dirname "$0")/lib.sh"
runs=${1:-5} seconds=${2:-20} buffers=16777216
mkdir "$work/site"
require
inside sysctl -qw "net.ipv4.tcp_rmem=4096 131072 $buffers" "net.ipv4.tcp_wmem=4096 16384 $buffers" net.ipv4.tcp_no_metrics_save=1

goodput() { # curl's options -> MB/s
    inside curl -sS --fail --noproxy '*' --max-time 600 -o /dev/null -H 'Expect:' \
        -w '%{size_download} %{size_upload} %{time_total} %{time_connect}\n' "$@" |
        awk '{ printf "%.2f\n", ($1 > $2 ? $1 : $2) / ($3 - $4) / 1e6 }'
}
median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

# A neighbour that does not answer three requests is unreachable for a while, which ends a ping. With 5 % loss that
# happens.
reached() { for _ in {1..20}; do if inside ping -q -c 1 -W 2 10.77.0.1 >/dev/null; then return 0; fi; done; return 1; }

one() { # who sends, what controls congestion, share lost, seed -> MB/s
    local sender=$1 algorithm=$2 loss=$3 seed=$4 ours=cubic url=http://10.77.0.1
    [ "$sender" = linux ] || ours=$algorithm
    start --loss "$loss" --delay 5ms --seed "$seed" --congestion "$ours" --buffers "$buffers"
    # Set by route, because a namespace may not select every algorithm for all of its connections.
    [ "$sender" = ours ] || inside ip route replace 10.77.0.1/32 dev nic0 congctl "$algorithm"
    check "the emulated host is there" reached
    if [ "$sender" = ours ]; then goodput "$url/bulk"; else goodput -T "$work/site/bulk" "$url/"; fi
    stop
}

echo "| random loss, % | ours, CUBIC | Linux, CUBIC | ours / Linux | ours, NewReno | Linux, Reno | ours / Linux | Linux, BBR |"
echo "|---|---|---|---|---|---|---|---|"
# About one second's megabytes: a window of sqrt(1.5 / loss) segments per 10 ms.
for pair in "0.1 5.6" "1 1.7" "2 1.1" "5 0.6"; do
    read -r percent rate <<<"$pair"
    truncate -s "$(awk "BEGIN { printf \"%d\", $rate * $seconds * 1e6 }")" "$work/site/bulk"
    loss=$(awk "BEGIN { print $percent / 100 }")
    row="| $percent |"
    for algorithm in cubic reno; do
        ours_name=$algorithm
        [ $algorithm = cubic ] || ours_name=new-reno
        : >"$work/ours" && : >"$work/linux"
        # In turn, so that other load of the machine affects both.
        for seed in $(seq "$runs"); do
            one ours $ours_name "$loss" "$seed" >>"$work/ours"
            one linux $algorithm "$loss" "$seed" >>"$work/linux"
        done
        ours=$(median <"$work/ours") linux=$(median <"$work/linux")
        row+=" $ours | $linux | $(awk "BEGIN { printf \"%.2f\", $ours / $linux }") |"
        echo "  $percent % $algorithm: ours $(tr '\n' ' ' <"$work/ours"), Linux $(tr '\n' ' ' <"$work/linux")" >&2
    done
    if inside ip route replace 10.77.0.9/32 dev lo congctl bbr 2>/dev/null; then
        inside ip route del 10.77.0.9/32 dev lo
        for seed in $(seq "$runs"); do one linux bbr "$loss" "$seed"; done >"$work/bbr"
        row+=" $(median <"$work/bbr") |"
    else
        row+=" not there |"
    fi
    echo "$row"
done
uname -r | sed 's/^/Linux /'
