//! Data-encryption keys, as many as host memory holds: AES-XTS with a key for each tenant and volume.
//!
//! A key's image in host memory is the key; it is fetched, and expanded, when a job needs it. Nothing of it is held beside, so the
//! memory for a key is that of the image and of its place in the table.

use super::{Context, Engine, ImageReader, ImageWriter, JobEngine};
use core::convert::Infallible;
use offload_api::{Direction, Job, JobStatus, Outcome};
use offload_jobs::{DATA_KEYS, DataKey, DataKeySpec, WrappingKey, perform};
use offload_transforms::{Secret, Tweak};
use std::collections::BTreeMap;

/// The engine [`DATA_KEYS`](offload_jobs::DATA_KEYS). It is changed by a [`WrappingKey`], and makes contexts from a
/// [`DataKeySpec`] of the same tenant.
#[derive(Debug, Default)]
pub struct DataKeys {
    tenants: BTreeMap<u32, WrappingKey>,
}

impl Engine for DataKeys {
    const NAME: &'static str = DATA_KEYS;
    type Spec = DataKeySpec;
    type Command = Infallible;
    type Change = WrappingKey;
    /// Behind a pointer, so that it is nowhere else: what is moved leaves a copy behind.
    type State = Box<DataKey>;
    type Held = ();

    fn create(&mut self, _: Direction, spec: DataKeySpec) -> Option<(Box<DataKey>, ())> {
        let key = self.tenants.get(&spec.tenant)?.unwrap(&spec).ok()?;
        Some((Box::new(key), ()))
    }

    fn save(key: &Box<DataKey>, image: &mut ImageWriter<'_>) {
        image.put_u32(key.tenant);
        image.put_u64(key.volume);
        image.put_u32(key.unit);
        image.put_u8(u8::from(key.tweak == Tweak::Sectors512));
        let bytes = key.key.bytes();
        image.put_u8(bytes.len() as u8);
        image.put(bytes);
    }

    fn load(image: &mut ImageReader<'_>) -> Option<Box<DataKey>> {
        let (tenant, volume, unit) = (image.take_u32()?, image.take_u64()?, image.take_u32()?);
        let tweak = if image.take_u8()? == 1 { Tweak::Sectors512 } else { Tweak::Unit };
        let len = usize::from(image.take_u8()?);
        let key = Secret::new(image.rest().get(..len)?.to_vec());
        Some(Box::new(DataKey::again(tenant, volume, unit, tweak, key)))
    }

    /// A key of no bytes takes the tenant's away.
    fn change(&mut self, tenant: WrappingKey) {
        if tenant.key.bytes().is_empty() {
            self.tenants.remove(&tenant.tenant);
        } else {
            self.tenants.insert(tenant.tenant, tenant);
        }
    }

    fn forget(&mut self) {
        self.tenants.clear();
    }
}

impl JobEngine for DataKeys {
    fn run(&mut self, context: Context<'_, DataKeys>, job: &mut Job) -> Outcome {
        match context.state.session() {
            Ok(session) => perform(session, job),
            Err(_) => Outcome::failed(JobStatus::NoSession),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ContextImage;

    /// Evicted, and fetched again, a key makes of a block what it made of it before.
    #[test]
    fn a_key_comes_back_from_host_memory_as_it_was() {
        for tweak in [Tweak::Unit, Tweak::Sectors512] {
            let key = Box::new(DataKey::again(7, 9, 4096, tweak, Secret::new((0..64).collect())));
            let back = ContextImage::of(|image| DataKeys::save(&key, image)).read(DataKeys::load).unwrap();
            let known = |key: &DataKey| (key.tenant, key.volume, key.unit, key.tweak, key.key.bytes().to_vec());
            assert_eq!(known(&back), known(&key));
        }
    }
}
