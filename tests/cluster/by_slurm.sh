#!/usr/bin/env bash
# Compares a sweep of 64 points in 8 parts, submitted to Slurm (Debian: slurm-wlm, munge), with the result of a single
# machine. The whole cluster is this machine: munged, slurmctld and slurmd as root, without systemd, in a mount
# namespace of their own. Needs root.
#   tests/cluster/by_slurm.sh NICBENCH
set -euo pipefail
skip() { echo "SKIPPED: by_slurm.sh: $*"; exit 77; }
nicbench="$(realpath "$1")"
cd "$(dirname "$0")"
[ "$(id -u)" = 0 ] || skip "it needs root"
for program in slurmctld slurmd sbatch munged setpriv unshare; do
    command -v "$program" >/dev/null || skip "$program is not here (Debian: slurm-wlm, munge, util-linux)"
done
if [ -z "${IN_NAMESPACE:-}" ]; then
    export IN_NAMESPACE=1
    exec unshare --mount --propagation private "$PWD/$(basename "$0")" "$nicbench"
fi

folder="$(mktemp -d)"
chmod 755 "$folder"
finish() {
    for file in "$folder"/*.pid; do
        [ -s "$file" ] || continue
        process="$(cat "$file")"
        kill "$process" 2>/dev/null || true
        # Each job writes its state at its end.
        tail --pid="$process" -f /dev/null
    done
    rm -rf "$folder"
}
trap finish EXIT

# The machine's own folders are hidden by mounts, so nothing of its own is changed.
mkdir -p /run/munge /etc/munge /etc/slurm /var/lib/munge /var/log/munge
for covered in /run/munge /etc/munge /etc/slurm /var/lib/munge /var/log/munge /sys/fs/cgroup; do
    mount -t tmpfs tmpfs "$covered"
done
head -c 1024 /dev/urandom >/etc/munge/munge.key
chown munge:munge /run/munge /etc/munge /var/lib/munge /var/log/munge /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
chmod 755 /run/munge
setpriv --reuid=munge --regid=munge --clear-groups munged --pid-file=/run/munge/munged.pid
cp /run/munge/munged.pid "$folder/munged.pid"

# slurmd requires a freezer, although it tracks processes without one.
mkdir /sys/fs/cgroup/freezer
mount -t cgroup -o freezer freezer /sys/fs/cgroup/freezer || skip "this kernel has no freezer of cgroup v1"
echo "CgroupPlugin=cgroup/v1" >/etc/slurm/cgroup.conf
host="$(hostname -s)"
cat >/etc/slurm/slurm.conf <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
mkdir "$folder/state" "$folder/spool"
slurmctld
slurmd
for _ in $(seq 100); do
    [ "$(sinfo --noheader --format=%t 2>/dev/null)" = idle ] && break
    sleep 0.2
done
[ "$(sinfo --noheader --format=%t)" = idle ] || { tail "$folder"/*.log; exit 1; }

cp grid.toml "$folder/grid.toml"
time "$nicbench" sweep "$folder/grid.toml" --submit slurm --shards 8 --overlap 0.05
"$nicbench" sweep "$folder/grid.toml" --out "$folder/whole.jsonl"
python3 compare.py "$folder/grid.jsonl" "$folder/whole.jsonl" 64
