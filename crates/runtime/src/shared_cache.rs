//! The KV cache of a started model, for a drafter whose layers read it and that has none of its own. The model writes it; steps
//! of the drafter run between the model's, and read what steps have written whose results are known. A drafter may also write
//! positions that the model writes later.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use rocmforge_gpu::{Buffer, DeviceId, KvShape};
use rocmforge_plan::Plan;

use crate::cpu::LayerCache;
use crate::error::ConfigError;

/// A layer of a cache on the host.
pub(crate) type HostLayer = Arc<RwLock<LayerCache>>;
/// K and V of a layer of a cache on a GPU.
pub(crate) type DeviceLayer = (KvShape, Arc<[Buffer; 2]>);

/// Where the cache of a model is. It does not keep the cache.
#[derive(Clone, Default)]
pub struct SharedCache {
    host: Vec<Weak<RwLock<LayerCache>>>,
    device: Option<OnDevice>,
}

#[derive(Clone)]
struct OnDevice {
    id: DeviceId,
    layers: Vec<(KvShape, Weak<[Buffer; 2]>)>,
}

/// The layers of a cache that a plan reads, in its order.
pub(crate) enum Borrowed {
    Host(Vec<HostLayer>),
    Device(DeviceId, Vec<DeviceLayer>),
}

impl SharedCache {
    pub(crate) fn on_host(layers: &[HostLayer]) -> SharedCache {
        SharedCache {
            host: layers.iter().map(Arc::downgrade).collect(),
            device: None,
        }
    }

    pub(crate) fn on_device(id: DeviceId, layers: &[DeviceLayer]) -> SharedCache {
        let layers = layers.iter();
        let layers = layers.map(|(shape, memory)| (*shape, Arc::downgrade(memory)));
        SharedCache {
            host: Vec::new(),
            device: Some(OnDevice {
                id,
                layers: layers.collect(),
            }),
        }
    }

    /// Joins the parts of a cache on the host and on a GPU. Layers of the other part have no heads.
    pub(crate) fn on_both(host: SharedCache, device: SharedCache) -> SharedCache {
        SharedCache {
            host: host.host,
            device: device.device,
        }
    }

    /// Returns the layers that `plan` reads.
    ///
    /// # Errors
    /// [`ConfigError::SplitCache`] if they are not on one device, [`ConfigError::NoCache`] if there is no such cache any more.
    pub(crate) fn borrow(&self, plan: &Plan) -> Result<Borrowed, ConfigError> {
        let layers = plan.borrowed.iter();
        if let Some(OnDevice { id, layers: all }) = &self.device {
            let of = |&at: &usize| all.get(at).filter(|(shape, _)| shape.n_kv_heads > 0);
            let found: Option<Vec<_>> = layers.clone().map(of).collect();
            if let Some(found) = found {
                let held = found.into_iter();
                let held = held.map(|(shape, memory)| Some((*shape, memory.upgrade()?)));
                let held = held.collect::<Option<Vec<DeviceLayer>>>();
                let held = held.ok_or(ConfigError::NoCache)?;
                return Ok(Borrowed::Device(*id, held));
            }
        }
        let held = layers.map(|&at| self.host.get(at)?.upgrade());
        let held: Option<Vec<HostLayer>> = held.collect();
        let held = held.ok_or(ConfigError::NoCache)?;
        match held.iter().all(|layer| read(layer).n_kv_heads() > 0) {
            true => Ok(Borrowed::Host(held)),
            false => Err(ConfigError::SplitCache),
        }
    }
}

pub(crate) fn read(layer: &HostLayer) -> RwLockReadGuard<'_, LayerCache> {
    layer.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write(layer: &HostLayer) -> RwLockWriteGuard<'_, LayerCache> {
    layer.write().unwrap_or_else(PoisonError::into_inner)
}
