//! An engine of your own in the NIC: it removes a mask from the bytes of a flow, before the host receives them.
//!
//! `cargo run --release --example own_engine`
//!
//! The NIC has no code for this engine. The engine is registered with the NIC of one host; the application there
//! requests a context for its flow, and checks for each received range whether the NIC removed the mask or left that to
//! software. A mask has no units, so this engine cannot lose its position. `docs/write-your-own-engine.md` describes
//! engines that can.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use bytes::BytesMut;
use core::convert::Infallible;
use core::future::poll_fn;
use nic_sim::NicConfig;
use nic_sim::engine::{
    Context, Engine, ImageReader, ImageWriter, NoCounters, OutOfStep, ReceivedPayload, StreamEngine,
};
use nic_sim::wire::LinkConfig;
use offload_api::{Direction, Handle, Key, Layer, NewContext, SegmentStream, Verdict};
use offload_base::{Seed, Seq};
use offload_host_stack::TcpConfig;
use offload_testbed::Testbed;
use std::io;
use tokio::io::AsyncWriteExt;

const MASK: u8 = 0x5a;
const BYTES: usize = 1 << 20;

#[derive(Debug)]
struct Unmask;

impl Engine for Unmask {
    const NAME: &'static str = "unmask";
    /// The protocol's parameter in a request for a context.
    type Spec = u8;
    /// The context's state, at most 208 bytes. The NIC writes the state to host memory when other contexts need the
    /// cache.
    type State = u8;
    type Objects = ();
    type Counters = NoCounters;
    type Command = Infallible;
    type Change = Infallible;

    fn create(&mut self, direction: Direction, mask: u8) -> Option<(u8, ())> {
        (direction == Direction::Receive).then_some((mask, ()))
    }

    fn save(mask: &u8, image: &mut ImageWriter<'_>) {
        image.put_u8(*mask);
    }

    fn load(image: &mut ImageReader<'_>) -> Option<u8> {
        image.take_u8()
    }
}

impl StreamEngine for Unmask {
    fn receive(at: Context<'_, Unmask>, payload: &mut ReceivedPayload<'_>, _: &mut NoCounters) -> Option<Verdict> {
        let opened = payload.open(|wire, buffer| {
            buffer.extend(wire.iter().map(|byte| byte ^ *at.state));
            (true, ())
        });
        opened.map(|()| Verdict::Done)
    }

    // This engine only receives, so it refuses all transmit calls.
    fn count_from(_: Context<'_, Unmask>, _: u64) -> bool {
        false
    }

    fn begin(_: Context<'_, Unmask>, _: Seq) -> bool {
        false
    }

    fn expects(_: &u8, _: Seq) -> Option<bool> {
        None
    }

    fn transmit(_: Context<'_, Unmask>, _: Seq, _: &[u8], _: &mut BytesMut) -> Result<u64, OutOfStep> {
        Err(OutOfStep)
    }

    fn note_sent(_: u64, _: &mut NoCounters) {}
}

fn main() -> io::Result<()> {
    offload_examples::teaching("Registers an engine of its own with a NIC, which unmasks the bytes of a flow.");
    let mut bed = Testbed::builder(Seed(1))
        .host("sender", NicConfig::default(), TcpConfig::default())
        .host("receiver", NicConfig::default(), TcpConfig::default())
        .engines(|engines| engines.add_stream(Unmask, 100)) // of the host above; room for 100 contexts
        .wire(0, 1, LinkConfig::default())
        .build()?;
    let (sender, receiver) = (bed.host(0).clone(), bed.host(1).clone());
    let mut listener = receiver.stack().listen(7, 8)?;
    let address = (receiver.address(), 7).into();
    sender.clone().spawn("sender", async move {
        let mut stream = sender.stack().connect(None, address).await?;
        stream.write_all(&vec![b'!' ^ MASK; BYTES]).await?;
        stream.shutdown().await
    });
    let (by_nic, by_software) = bed.run(async move { receive(listener.accept().await?).await })?;
    println!("bytes unmasked by the NIC: {by_nic}; by software, before the NIC had the context: {by_software}");
    assert_eq!(by_nic + by_software, BYTES);
    Ok(())
}

/// Receives everything, and returns the numbers of bytes unmasked by the NIC and by software.
async fn receive(mut stream: impl SegmentStream) -> io::Result<(usize, usize)> {
    let context = ask(&mut stream).expect("this NIC has the engine, and room");
    let (mut by_nic, mut by_software) = (0, 0);
    while let Some(range) = poll_fn(|cx| stream.poll_segment(cx)).await? {
        // The mark is the engine's verdict on these bytes. The mark of another context proves nothing.
        let mark = range.meta.marks.for_engine(context.engine());
        let length = range.data.len();
        if mark.is_some_and(|mark| mark.context == context && mark.verdict == Verdict::Done) {
            assert!(range.data.iter().all(|byte| *byte == b'!'));
            by_nic += length;
        } else {
            assert!(range.data.iter().all(|byte| byte ^ MASK == b'!'));
            by_software += length;
        }
        stream.consume(length);
    }
    // The context's place becomes free for other flows.
    stream.release(context);
    stream.finish();
    Ok((by_nic, by_software))
}

/// Requests a context for this flow from the NIC.
fn ask(stream: &mut impl SegmentStream) -> Option<Handle> {
    let mut context = None;
    stream.control(&mut |flow, contexts| {
        let Some(engine) = contexts.engine(Unmask::NAME).map(|engine| engine.number) else { return };
        // The key steers the flow's packets to this context.
        let keys = vec![Key::Flow(flow, Layer::FIRST)];
        let spec = Box::new(MASK);
        context =
            contexts.create(NewContext { engine, direction: Direction::Receive, flow: Some(flow), keys, spec }).ok();
    });
    context
}
