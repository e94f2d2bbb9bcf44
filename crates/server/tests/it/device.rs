//! forge-mini on devices of the tests: a CPU with a hook before each step.

use std::path::Path;
use std::sync::Arc;

use rocmforge_engine::EngineConfig;
use rocmforge_engine::serve::{Restart, ServeOptions, serve};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Purpose;
use rocmforge_plan::Batch;
use rocmforge_runtime::{
    Backend, BackendInfo, DeviceError, Executor, OpObserver, Reply, StepObserver,
};
use rocmforge_server::Model;

use crate::client::{FORGE_MINI, loaded};

/// Called before each step. An error is that of the step; a panic ends the device.
pub(crate) type Before = Box<dyn FnMut() -> Result<(), DeviceError> + Send>;

struct Hooked {
    cpu: Executor,
    before: Before,
    info: BackendInfo,
}

impl Backend for Hooked {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        match (self.before)() {
            Ok(()) => reply(self.cpu.submit(batch).wait()),
            Err(error) => reply(Err(error.into())),
        }
    }

    fn observe(&mut self, observer: Option<Box<dyn OpObserver>>) {
        self.cpu.observe(observer);
    }

    fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.cpu.observe_steps(observer);
    }

    fn info(&self) -> BackendInfo {
        self.info.clone()
    }
}

/// Returns what starts devices for forge-mini, each with a hook of its own. `describe` changes what they say of themselves.
pub(crate) fn devices(
    config: EngineConfig,
    mut hook: impl FnMut() -> Before + Send + 'static,
    describe: fn(BackendInfo) -> BackendInfo,
) -> Restart {
    let gguf = Gguf::open(Path::new(FORGE_MINI), LoadMode::Mmap).unwrap();
    let loaded = rocmforge_model::Model::load_for(Purpose::Text, Arc::new(gguf), &[]).unwrap();
    Box::new(move || {
        let cpu = rocmforge_runtime::start(&loaded, &config)?.executor;
        let hooked = Hooked {
            before: hook(),
            info: describe(cpu.info().clone()),
            cpu,
        };
        Ok(Executor::start(1, move || Ok((hooked, ())))?.0)
    })
}

/// Returns forge-mini on a device for this configuration.
pub(crate) fn on(device: Executor, config: EngineConfig, options: ServeOptions) -> Model {
    let purpose = Purpose::Text;
    let mut model = loaded(
        FORGE_MINI.as_ref(),
        purpose,
        config,
        ServeOptions::default(),
    );
    let mut engine = model.engine.stop().unwrap();
    engine.restart(device);
    model.engine = serve(engine, options).unwrap();
    model
}
