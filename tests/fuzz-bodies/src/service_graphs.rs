//! Arbitrary text as a graph of services: the parsed graph is the same after printing and parsing again, and packets
//! pass it; or the error is short.

use crypto_services::{Fabric, FabricConfig, Graph, Packet};

/// Runs one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let graph = match text.parse::<Graph>() {
        Ok(graph) => graph,
        Err(error) => {
            assert!(error.to_string().len() < 500, "{error}");
            return;
        }
    };
    assert_eq!(graph.to_string().parse::<Graph>().as_ref(), Ok(&graph));
    let mut fabric = Fabric::new(FabricConfig::default());
    let chain = fabric.add_chain(graph, 1).expect("an instance of each service fits");
    for name in 0..3 {
        fabric.offer(0.0, Packet { chain, flow: name % 2, bytes: 100, name }).expect("the queue is empty");
    }
    // Long enough for every packet to pass.
    fabric.advance(1e12);
    assert_eq!(core::iter::from_fn(|| fabric.poll()).count(), 3);
}
