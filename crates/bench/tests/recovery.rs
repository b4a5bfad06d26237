//! What loss and reordering leave of the offload, kept as a table; and the law behind the bytes read again.

use offload_base::Seed;
use offload_bench::recovery::{Recovery, Row, Table, Trouble};

fn run(trouble: Trouble, percent: f64) -> Row {
    let recovery = Recovery { records: 16, ..Recovery::new(trouble, percent / 100.0, Seed(1)) };
    recovery.run().expect("every stream arrives")
}

#[test]
fn what_loss_and_reordering_leave() {
    let mut rows = Vec::new();
    for trouble in [Trouble::Loss, Trouble::Reordering] {
        rows.extend([0.0, 1.0, 5.0].map(|percent| run(trouble, percent)));
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
