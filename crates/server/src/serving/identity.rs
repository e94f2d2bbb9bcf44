//! What the answers of a model depend on besides the request, and when they are the same again.

use rocmforge_engine::serve::Handle;
use sha2::{Digest as _, Sha256};

use crate::serving::model::Model;

/// Bytes of a fingerprint: enough to tell servers apart.
const N_BYTES: usize = 6;

/// What answers say of the model that made them.
pub(crate) struct Identity {
    /// A hash of all that answers depend on. Of the weights it has names, shapes and formats: to read their bytes takes as
    /// long as loading a model.
    pub(crate) fingerprint: String,
    /// `batch_invariant`: a request with the same seed has the same answer, whatever else runs. `same_step`: only if each
    /// of its steps has as many rows again, since a GPU chooses its kernels by them.
    pub(crate) reproducible: &'static str,
}

impl Identity {
    pub(crate) fn of(model: &Model) -> Identity {
        Identity {
            fingerprint: fingerprint(model),
            reproducible: reproducible(&model.engine),
        }
    }
}

fn reproducible(engine: &Handle) -> &'static str {
    match engine.backend_info().batch_invariant {
        true => "batch_invariant",
        false => "same_step",
    }
}

fn fingerprint(model: &Model) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    add(env!("CARGO_PKG_VERSION").as_bytes());
    model.gguf.headers().for_each(&mut add);
    // An adapter changes the plan.
    add(model.costs.describe_plan().as_bytes());
    add(model.costs.kv_types().to_string().as_bytes());
    add(devices(&model.engine).as_bytes());
    add(reproducible(&model.engine).as_bytes());
    let digest = hash.finalize();
    let digits = digest[..N_BYTES].iter().map(|byte| format!("{byte:02x}"));
    format!("rf-{}", digits.collect::<String>())
}

/// Describes the devices of a model, and what each has of it.
fn devices(engine: &Handle) -> String {
    let info = engine.backend_info();
    let parts = info.parts.iter();
    let parts = parts.map(|part| (&part.device, part.n_layers, part.n_ops));
    format!("{} {:?}", info.device, parts.collect::<Vec<_>>())
}
