//! Data-encryption keys: an AES-XTS key for each tenant and volume, limited by host memory only.
//!
//! Jobs name a key as their session. Stages of packet engines name a key by its handle and borrow it during their work
//! ([`InlineKey`]).
//!
//! The image of a context in host memory contains the key. The device fetches the image for a job or packet and expands
//! the key, about a kilobyte for jobs and as much for stages. The expansion is kept while the key is on the NIC. The
//! memory of a key is therefore its image and table entry, plus one or two kilobytes if the key is cached and in use.

use core::convert::Infallible;
use nic_engine::{Context, Engine, ImageReader, ImageWriter, JobEngine, LentObject, NoCounters};
use offload_api::{Direction, Job, JobOutcome, JobStatus};
use offload_jobs::{DATA_KEYS, DataKey, DataKeySpec, WrappingKey, perform};
use offload_transforms::{SecretBytes, Tweak};
use resumable_aead::{DataUnits, Volume, XtsKey};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The engine [`DATA_KEYS`](offload_jobs::DATA_KEYS). A [`WrappingKey`] changes the engine; contexts are made from a
/// [`DataKeySpec`] of the same tenant.
///
/// ```
/// use nic_engine::Engines;
/// use nic_engines::DataKeys;
///
/// let mut engines = Engines::none();
/// engines.add_job(DataKeys::default(), 16);
/// assert_eq!((engines.infos()[0].name, engines.infos()[0].contexts), ("data keys", 16));
/// ```
#[derive(Debug, Default)]
pub struct DataKeys {
    /// Wrapping keys by queue and tenant. A queue uses only its own keys.
    tenants: BTreeMap<(usize, u32), WrappingKey>,
}

/// A key on the NIC. See [`DataKeys`] for an example.
#[derive(Debug)]
pub struct KeyOnNic {
    key: DataKey,
    /// Form for stages, expanded at the first use by a stage.
    inline: Option<Arc<InlineKey>>,
}

impl KeyOnNic {
    fn new(key: DataKey) -> Box<KeyOnNic> {
        Box::new(KeyOnNic { key, inline: None })
    }

    /// Returns the form for stages; `None` if the unit size is not a whole number of blocks.
    fn inline(&mut self) -> Option<&Arc<InlineKey>> {
        // Expanded on demand: most keys serve jobs only, and the expansion takes a kilobyte.
        if self.inline.is_none() {
            let DataKey { tenant, volume, unit, tweak, ref key, .. } = self.key;
            let units = match tweak {
                Tweak::Sectors512 => DataUnits::counting_512(unit as usize),
                _ => DataUnits::new(unit as usize),
            };
            let blocks = Volume::new(XtsKey::new(key.bytes()).ok()?, units.ok()?);
            self.inline = Some(Arc::new(InlineKey { tenant, volume, blocks }));
        }
        self.inline.as_ref()
    }
}

/// A key in the form for stages.
#[derive(Debug)]
pub(super) struct InlineKey {
    tenant: u32,
    volume: u64,
    blocks: Volume,
}

impl InlineKey {
    /// Tests whether the key belongs to this tenant and volume.
    pub(super) fn is_of(&self, tenant: u32, volume: u64) -> bool {
        (self.tenant, self.volume) == (tenant, volume)
    }

    /// Returns the cipher of the volume.
    pub(super) fn volume(&self) -> &Volume {
        &self.blocks
    }
}

impl Engine for DataKeys {
    const NAME: &'static str = DATA_KEYS;
    type Spec = DataKeySpec;
    type Command = Infallible;
    type Change = WrappingKey;
    /// Boxed, because moving a plain value would leave copies of the key behind.
    type State = Box<KeyOnNic>;
    type Objects = ();
    type Counters = NoCounters;

    fn create(&mut self, direction: Direction, spec: DataKeySpec) -> Option<(Box<KeyOnNic>, ())> {
        self.create_for(0, direction, spec)
    }

    fn create_for(&mut self, queue: usize, _: Direction, spec: DataKeySpec) -> Option<(Box<KeyOnNic>, ())> {
        let key = self.tenants.get(&(queue, spec.tenant))?.unwrap(&spec).ok()?;
        Some((KeyOnNic::new(key), ()))
    }

    fn save(state: &Box<KeyOnNic>, image: &mut ImageWriter<'_>) {
        let key = &state.key;
        image.put_u32(key.tenant);
        image.put_u64(key.volume);
        image.put_u32(key.unit);
        image.put_u8(u8::from(key.tweak == Tweak::Sectors512));
        let bytes = key.key.bytes();
        // AES-128-XTS and AES-256-XTS keys have different lengths.
        image.put_u8(bytes.len() as u8);
        image.put(bytes);
    }

    fn load(image: &mut ImageReader<'_>) -> Option<Box<KeyOnNic>> {
        let (tenant, volume, unit) = (image.take_u32()?, image.take_u64()?, image.take_u32()?);
        let tweak = if image.take_u8()? == 1 { Tweak::Sectors512 } else { Tweak::Unit };
        let len = usize::from(image.take_u8()?);
        let key = SecretBytes::new(image.rest().get(..len)?.to_vec());
        Some(KeyOnNic::new(DataKey::again(tenant, volume, unit, tweak, key)))
    }

    fn change(&mut self, tenant: WrappingKey) {
        self.change_for(0, tenant);
    }

    /// Sets the wrapping key of a tenant of `queue`. An empty key removes the entry.
    fn change_for(&mut self, queue: usize, tenant: WrappingKey) {
        if tenant.key.bytes().is_empty() {
            self.tenants.remove(&(queue, tenant.tenant));
        } else {
            self.tenants.insert((queue, tenant.tenant), tenant);
        }
    }

    fn forget_queue(&mut self, queue: usize) {
        self.tenants.retain(|(of, _), _| *of != queue);
    }

    fn lend(context: Context<'_, DataKeys>) -> Option<LentObject> {
        Some(context.state.inline()?.clone())
    }

    fn forget(&mut self) {
        self.tenants.clear();
    }
}

impl JobEngine for DataKeys {
    fn run(&mut self, context: Context<'_, DataKeys>, job: &mut Job, _: &mut NoCounters) -> JobOutcome {
        match context.state.key.session() {
            Ok(session) => perform(session, job),
            Err(_) => JobOutcome::failed(JobStatus::NoSession),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic_engine::ContextImage;

    #[test]
    fn wrapping_keys_go_with_their_queue() {
        let tenant = WrappingKey { tenant: 7, key: SecretBytes::new(vec![1; 32]) };
        let spec = tenant.wrap(1, &SecretBytes::new((0..64).collect()), 512, Tweak::Unit).unwrap();
        let mut keys = DataKeys::default();
        for queue in [0, 1] {
            keys.change_for(queue, tenant.clone());
        }
        keys.forget_queue(1);
        let mut opens = |queue| keys.create_for(queue, Direction::Transmit, spec.clone()).is_some();
        assert_eq!([0, 1, 2].map(&mut opens), [true, false, false]);
    }

    /// After eviction and reload, a key encrypts a block to the same bytes.
    #[test]
    fn a_key_returns_from_host_memory_unchanged() {
        for tweak in [Tweak::Unit, Tweak::Sectors512] {
            let key = KeyOnNic::new(DataKey::again(7, 9, 4096, tweak, SecretBytes::new((0..64).collect())));
            let back = ContextImage::build(|image| DataKeys::save(&key, image)).read(DataKeys::load).unwrap();
            let known = |key: &DataKey| (key.tenant, key.volume, key.unit, key.tweak, key.key.bytes().to_vec());
            assert_eq!(known(&back.key), known(&key.key));
        }
    }
}
