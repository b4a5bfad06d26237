//! The offload that remains under loss and reordering, stored as a table, and the law of the bytes read again.

use nic_sim::TransmitResync;
use offload_api::ResyncMode;
use offload_base::Seed;
use offload_bench::recovery::{Recovery, Row, Table, Trouble};

fn recovery(trouble: Trouble, percent: f64) -> Recovery {
    Recovery { records: 16, ..Recovery::new(trouble, percent / 100.0, Seed(1)) }
}

fn run(trouble: Trouble, percent: f64) -> Row {
    row(recovery(trouble, percent))
}

fn row(run: Recovery) -> Row {
    let made = run.run().expect("every stream arrives");
    assert!(made.run.sha256_ok);
    made.row
}

#[test]
fn offload_under_loss_and_reordering_matches_the_snapshot() {
    let mut rows = Vec::new();
    for trouble in [Trouble::Loss, Trouble::Reordering] {
        rows.extend([0.0, 1.0, 5.0].map(|percent| run(trouble, percent)));
    }
    // The other modes differ only in resynchronization, so one loss rate is enough for them.
    let lossy = recovery(Trouble::Loss, 1.0);
    for other in [
        Recovery { resync: ResyncMode::CoreHint, ..lossy.clone() },
        Recovery { resync: ResyncMode::Asynchronous, ..lossy.clone() },
        Recovery { transmit_resync: TransmitResync::NextRecord, ..lossy },
    ] {
        rows.push(row(other));
    }
    for row in &rows {
        let all = row.full + row.partial + row.none;
        assert!((all - 100.0).abs() < 1e-9, "each record is one of the three: {row:?}");
    }
    insta::assert_snapshot!(Table(&rows).to_string());
}

#[test]
fn a_calm_wire_costs_nothing() {
    let row = run(Trouble::Loss, 0.0);
    assert_eq!((row.full, row.dumped, row.resyncs, row.questions, row.retransmitted), (100.0, 0.0, 0, 0, 0));
}

#[test]
fn the_whole_table_is_of_every_way_at_every_share() {
    let grid = recovery(Trouble::Loss, 0.0).grid();
    assert_eq!(grid.len(), 3 * 2 * 6 + 6);
    assert!(grid.iter().all(|run| run.records == 16));
}
