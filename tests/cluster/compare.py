#!/usr/bin/env python3
"""Whether two results files of one sweep are equal in everything but CPU times.

    tests/cluster/compare.py FILE FILE POINTS
"""
import json
import sys


def facts(file):
    rows = [json.loads(line) for line in open(file)]
    for row in rows:
        del row["machine"], row["seconds"]
        for field in ["tx_host_ns_per_byte", "rx_host_ns_per_byte", "device_ns_per_byte"]:
            del row["run"][field]
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def compare(file, other, points):
    one, two = facts(file), facts(other)
    assert len(one) == points and one == two, f"{file} is not {other} in virtual time"
    print(f"{points} points: equal to one machine's in virtual time")


if __name__ == "__main__":
    compare(sys.argv[1], sys.argv[2], int(sys.argv[3]))
