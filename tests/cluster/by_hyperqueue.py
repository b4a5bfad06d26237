#!/usr/bin/env python3
"""A sweep of 64 points in 8 parts, by four workers of HyperQueue (PyPI: hyperqueue). The task of one part is killed in mid-run, and
made again. What is merged is held against what one machine makes: equal in everything but CPU times.

    tests/cluster/by_hyperqueue.py NICBENCH
"""
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

from compare import compare

PARTS, WORKERS, POINTS = 8, 4, 64
GRID = Path(__file__).with_name("grid.toml")
nicbench = str(Path(sys.argv[1]).resolve())


def main():
    folder = Path(tempfile.mkdtemp())
    out, whole = folder / "grid.jsonl", folder / "whole.jsonl"
    begun = time.monotonic()
    # A separate process, because the client blocks this one's threads while it waits.
    killed, tells = multiprocessing.Pipe(duplex=False)
    killer = multiprocessing.Process(target=kill, args=(folder / f"grid.1-of-{PARTS}.jsonl", tells), daemon=True)
    killer.start()
    with LocalCluster() as cluster:
        for _ in range(WORKERS):
            cluster.start_worker(WorkerConfig(cores=1))
        client = cluster.client()
        run(client, range(PARTS), out, folder)
        killer.terminate()
        assert killed.poll(), "no task was killed in mid-run"
        refused = merge(out, folder)
        assert refused.returncode == 1 and "--shard 1/8" in refused.stderr, refused.stderr
        print(f"part 1 was killed with {killed.recv()} points made; the merge says:", refused.stderr.strip().splitlines()[0])
        run(client, [0], out, folder)
    merged = merge(out, folder)
    assert merged.returncode == 0, merged.stderr
    print(merged.stderr.strip(), f"({time.monotonic() - begun:.1f} s)")
    subprocess.run([nicbench, "sweep", GRID, "--out", whole], check=True)
    compare(out, whole, POINTS)


def run(client, parts, out, folder):
    """Each part is a task, which HyperQueue gives its number; that of a second run is told, for it is not the first of its job."""
    job = Job()
    for part in parts:
        arguments = [nicbench, "sweep", str(GRID), "--shard", f"auto/{PARTS}", "--out", str(out), "--jobs", "1"]
        job.program(arguments, stdout=str(folder / f"{part}.out"), stderr=str(folder / f"{part}.err"))
    submitted = client.submit(job)
    client.wait_for_jobs([submitted], raise_on_error=False)


def merge(out, folder):
    files = sorted(folder.glob(f"grid.*-of-{PARTS}.jsonl"))
    return subprocess.run([nicbench, "merge", *files, "--out", out], capture_output=True, text=True)


def kill(file, tells):
    """Kills the first part's task as soon as it has made a point, and tells how many it had made."""
    while True:
        points = file.read_bytes().count(b"\n") - 1 if file.exists() else 0
        for task in tasks() if points >= 1 else ():
            os.kill(task, signal.SIGKILL)
            tells.send(points)
            return
        time.sleep(0.002)


def tasks():
    """Processes that make the first part."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"HQ_TASK_ID=0\0" in (folder / "environ").read_bytes() and (folder / "exe").resolve() == Path(nicbench):
                yield int(folder.name)
        except OSError:
            pass


main()
