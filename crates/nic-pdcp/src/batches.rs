//! The job engine: PDUs from memory to memory.

use core::convert::Infallible;
use nic_engine::{Context, Engine, ImageReader, ImageWriter, JobEngine, NoCounters};
use offload_api::{Direction, Job, JobOutcome};
use pdcp::device::{BATCHES, PdcpContext, run_batch};

/// A job engine that protects and opens batches of PDUs ([`pdcp::device::batch`]).
///
/// ```
/// use bytes::BytesMut;
/// use nic_pdcp::PdcpBatches;
/// use nic_sim::lookaside::LookasideConfig;
/// use offload_api::{Direction, JobQueue, NewContext, Way};
/// use offload_base::Instant;
/// use pdcp::crypto::{Algorithm, Key};
/// use pdcp::device::{BATCHES, PdcpContext, batch, batch_done};
/// use pdcp::{BearerKind, Config, Security, SnLen};
///
/// let (mut device, mut queues) = nic_sim::lookaside(LookasideConfig::default(), |engines| engines.add_job(PdcpBatches, 10));
/// let queue = &mut queues[0];
/// let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
/// let key = Key::new(Algorithm::Snow3g, &[7; 16])?;
/// let security = Security::new(1, pdcp::crypto::Direction::Uplink)?.ciphered(key);
/// let spec = Box::new(PdcpContext { config, security, next: 0, drops_duplicates: false });
/// let engine = queue.contexts().engine(BATCHES).expect("it is there").number;
/// let new = NewContext { engine, direction: Direction::Transmit, flow: None, keys: vec![], spec };
/// let session = queue.contexts().create(new).map_err(|(refused, _)| refused)?;
///
/// let clear = [(0, BytesMut::from(&b"\x80\x00an SDU"[..]))];
/// queue.submit(Instant::ZERO, batch(session, Way::Apply, &clear)).expect("there is room");
/// queue.flush(Instant::ZERO);
/// let mut now = Instant::ZERO;
/// let done = loop {
///     device.process(now);
///     if let Some(done) = queue.complete(now) {
///         break done;
///     }
///     now = device.next_event().expect("the job is under way");
/// };
/// let (_, pdus) = batch_done(done);
/// assert_eq!(pdus[0].pdu[..2], [0x80, 0]);
/// assert_ne!(pdus[0].pdu[2..], b"an SDU"[..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PdcpBatches;

impl Engine for PdcpBatches {
    const NAME: &'static str = BATCHES;
    type Spec = PdcpContext;
    type Command = Infallible;
    type Change = Infallible;
    type State = ();
    type Objects = PdcpContext;
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, context: PdcpContext) -> Option<((), PdcpContext)> {
        Some(((), context))
    }

    fn save((): &(), _: &mut ImageWriter<'_>) {}

    fn load(_: &mut ImageReader<'_>) -> Option<()> {
        Some(())
    }
}

impl JobEngine for PdcpBatches {
    fn run(&mut self, context: Context<'_, PdcpBatches>, job: &mut Job, _: &mut NoCounters) -> JobOutcome {
        run_batch(context.held, job)
    }
}
