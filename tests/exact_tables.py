#!/usr/bin/env python3
"""Checks the figures of the book that are the same on any machine: runs each command and looks for its figures on the page.

    tests/exact_tables.py target/release           the tables whose runs take seconds
    tests/exact_tables.py target/release --long    the table of controllers as well, which takes minutes

Prints every line that the page lacks. Status 1 if there is one.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def page(name):
    """Returns the text of a page, with each run of white space as one space."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def facts(programs, command):
    """Returns the runs that a command reports as JSON."""
    program, *options = command.split()
    found = subprocess.run([programs / "examples" / program, *options, "--json"], check=True, capture_output=True)
    return json.loads(found.stdout)["runs"]


def microservices(programs):
    command = "ipsec_loopback --size 128MiB --mode esp-packet"
    (plain,) = facts(programs, command)
    yield f"({plain['goodput_gbps']:.1f} Gb/s without `--services`)"
    for services, controller in [(64, "fixed"), (16, "queue"), (64, "queue"), (64, "hysteresis")]:
        (run,) = facts(programs, f"{command} --services {services} --controller {controller}")
        counters = run["counters"]
        instances = max(counters.get(f"services_{end}_aes-128_most", 1) for end in ["client", "server"])
        dropped = counters.get("services_rx_drop_full", 0)
        yield f"| {services} | `{controller}` | {run['goodput_gbps']:.2f} | {instances} | {dropped} |"


def switch(programs):
    runs = facts(programs, "vm_overlay --vms 8 --size 32MiB")
    goodput = {(run["mode"], run["vms"]): f"{run['goodput_gbps']:.1f}" for run in runs}
    yield f"{goodput['overlay-esp', 1]} Gb/s for one virtual machine under ESP, {goodput['overlay-esp', 8]} for 8"
    yield f"(8 without an overlay: {goodput['plain', 8]}; without ESP: {goodput['overlay', 8]})"


def messages(_):
    # A test checks this snapshot.
    snapshots = ROOT / "crates/offload-host-stack/tests/all/snapshots"
    (snapshot,) = snapshots.glob("*takes.snap")
    for row in re.findall(r"^ +\d[\d ]+$", snapshot.read_text(), re.MULTILINE):
        connections, *counts = row.split()
        yield "| " + " | ".join([f"{int(connections):,}", *counts]) + " |"


def controllers(_):
    command = "cargo test --release --locked -p crypto-services --test all -- --ignored --nocapture table_of_the_book"
    told = subprocess.run(command.split(), check=True, capture_output=True, text=True, cwd=ROOT).stdout
    line = r"([\d.]+) Gb/s (.+?) +(\d): area ([\d.]+) optimum ([\d.]+) ratio ([\d.]+) missed (\d+) of .* missed (\d+)$"
    rows = {}
    for rate, load, _seed, *figures in re.findall(line, told, re.MULTILINE):
        rows.setdefault(load, {}).setdefault(rate, []).append(figures)
    assert rows, told
    for rates in rows.values():
        both = {rate: [", ".join(pair) for pair in zip(*runs)] for rate, runs in rates.items()}
        area, optimum, ratio, missed, fixed = both["1.0"]
        yield f"| {area} | {optimum} | {ratio} | {missed} | {fixed} |"
        yield "| " + " | ".join(figure for rate in ["0.6", "2.0"] for figure in both[rate][2:]) + " |"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    programs = pathlib.Path(sys.argv[1]).resolve()
    tables = [("microservices.md", microservices), ("switch.md", switch), ("results.md", messages)]
    if "--long" in sys.argv[2:]:
        tables.append(("microservices.md", controllers))
    missing = 0
    for name, figures in tables:
        text = page(name)
        for line in figures(programs):
            if line not in text:
                missing += 1
                print(f"docs/{name} lacks: {line}")
    print(f"{missing} lines of the book are not what the commands print" if missing else "the book's exact figures hold")
    sys.exit(missing > 0)


main()
