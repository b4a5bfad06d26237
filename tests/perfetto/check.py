#!/usr/bin/env python3
"""Reads timelines (--trace) with Perfetto's own protobuf classes and checks what a viewer relies on.

usage: check.py [--tracks A,B,...] FILE...

Each event is on a track that was named; the times of a track never go back; slices of a track are nested and closed; an
arrow is not named after its end; most arrows that pass through a NIC end. With --tracks, these tracks have slices.
Needs the package `perfetto` (pip install perfetto).
"""

import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema


def check(path, wanted):
    trace = schema.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    names, open_slices, latest, slices, begun, ended = {}, {}, {}, {}, {}, set()
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in names, f"track {track.uuid} is named twice"
            assert not track.parent_uuid or track.parent_uuid in names, f"{track.name} comes before its parent"
            names[track.uuid] = track.name
        if not packet.HasField("track_event"):
            continue
        event, at = packet.track_event, packet.timestamp
        track = event.track_uuid
        assert track in names, f"an event of track {track}, which has no name"
        assert at >= latest.get(track, 0), f"{names[track]}: {at} ns comes after {latest[track]} ns"
        latest[track] = at
        stack = open_slices.setdefault(track, [])
        if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
            assert event.name
            stack.append(at)
            slices[names[track]] = slices.get(names[track], 0) + 1
        elif event.type == schema.TrackEvent.TYPE_SLICE_END:
            assert stack, f"{names[track]}: a slice ends at {at} ns that did not begin"
            stack.pop()
        else:
            assert event.type == schema.TrackEvent.TYPE_COUNTER
        for arrow in list(event.flow_ids) + list(event.terminating_flow_ids):
            assert arrow not in ended, f"arrow {arrow} goes on after its end"
            begun[arrow] = begun.get(arrow, 0) + 1
        for arrow in event.terminating_flow_ids:
            assert begun[arrow] > 1, f"arrow {arrow} ends where it begins"
            ended.add(arrow)
    still_open = [names[track] for track, stack in open_slices.items() if stack]
    assert not still_open, f"slices are not closed: {still_open}"
    for name in wanted:
        assert slices.get(name), f"no slice on track {name}; there are {sorted(slices)}"
    passed = [arrow for arrow, count in begun.items() if count > 2]
    arrived = sum(arrow in ended for arrow in passed)
    assert passed and arrived >= 0.9 * len(passed), f"of {len(passed)} arrows {arrived} end"
    print(f"{path}: {sum(slices.values())} slices on {len(names)} tracks; of {len(passed)} arrows {arrived} end")


def main(arguments):
    wanted = []
    if arguments and arguments[0] == "--tracks":
        wanted, arguments = arguments[1].split(","), arguments[2:]
    assert arguments, __doc__
    for path in arguments:
        check(path, wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
