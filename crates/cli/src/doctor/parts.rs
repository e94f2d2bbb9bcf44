//! The parts of a diagnosis, each of which runs in a process of its own (`processes.rs`): a driver may crash or never return.
//! A part writes messages as lines of JSON.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::Result;
use rocmforge_engine::Device;
use rocmforge_gpu::Gpu;
use rocmforge_hub::display;
use rocmforge_runtime::gpu::{self, DeviceId, DeviceInfo, GpuConfig, OpenOptions};
use serde::{Deserialize, Serialize};

use super::report::{Check, Status};
use super::root::Root;
use super::{classes, devices, hardware, libraries, memory};
use crate::args::DoctorPartArgs;
use crate::exit::usage;
use crate::output::{Out, for_terminal};

/// What a process diagnoses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The vendors' libraries, and which GPUs they offer. Opens none.
    Drivers,
    Cpu,
    Gpu(DeviceId),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Drivers => f.write_str("drivers"),
            Part::Cpu => f.write_str("cpu"),
            Part::Gpu(id) => id.fmt(f),
        }
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        match text {
            "drivers" => Ok(Part::Drivers),
            "cpu" => Ok(Part::Cpu),
            id => Ok(Part::Gpu(id.parse()?)),
        }
    }
}

/// What a part says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// A check of this name begins.
    Begins(String),
    Done {
        check: Check,
        advice: Option<String>,
        is_fatal: bool,
    },
    /// A GPU that is there, as in `--device`.
    Gpu(String),
    /// A line about versions.
    Version(String),
}

impl Message {
    fn done(mut check: Check) -> Message {
        Message::Done {
            advice: check.advice.take(),
            is_fatal: check.is_fatal,
            check,
        }
    }
}

/// Runs a part, and writes its messages.
pub fn run(args: &DoctorPartArgs) -> Result<()> {
    let mut out = Messages(Out::new());
    match args.part.parse().map_err(usage)? {
        Part::Drivers => drivers(&mut out),
        Part::Cpu => {
            out.begin("cpu results")?;
            out.done(devices::results_of_cpu())
        }
        Part::Gpu(id) => {
            // The rest of the time is for the model that is compared then.
            let until = Instant::now() + Duration::from_secs(args.limit) * 3 / 4;
            of_gpu(&mut out, id, until)
        }
    }
}

fn drivers(out: &mut Messages) -> Result<()> {
    out.begin("drivers")?;
    let root = Root::of_system();
    let options = OpenOptions::from_env();
    let hardware = hardware::gpus(&root);
    let survey = gpu::survey(&options);
    out.done(libraries::found(&root, &options, &survey))?;
    for check in devices::libraries(&survey, &hardware, &options) {
        out.done(check)?;
    }
    for check in memory::of_unlisted(&root, &hardware, &survey) {
        out.done(check)?;
    }
    for (label, path) in &survey.libraries {
        out.say(&Message::Version(format!(
            "{label} library: {}",
            display::path(path)
        )))?;
    }
    for info in &survey.devices {
        out.say(&Message::Version(format!(
            "{}: {}, driver {}, runtime {}",
            info.id,
            for_terminal(&info.name),
            info.driver_version,
            info.runtime_version
        )))?;
        out.say(&Message::Gpu(info.id.to_string()))?;
    }
    Ok(())
}

fn of_gpu(out: &mut Messages, id: DeviceId, until: Instant) -> Result<()> {
    let config = GpuConfig {
        id: Some(id),
        open: OpenOptions::from_env(),
        ..GpuConfig::default()
    };
    let name = id.to_string();
    if !matches!(id, DeviceId::Host(_)) {
        out.begin(&name)?;
        match opened(id, &config.open) {
            Err(check) => return out.done(check),
            Ok(info) => {
                out.done(devices::found(&info))?;
                if info.image.is_err() {
                    return Ok(());
                }
                out.done(memory::of_device(&Root::of_system(), &info))?;
            }
        }
        out.begin(&format!("{name} bandwidth"))?;
        out.done(devices::bandwidth(&name, &config))?;
    }
    out.begin(&format!("{name} results"))?;
    let results = devices::results(&name, Device::Gpu(config.clone()));
    let are_right = results.status == Status::Ok;
    out.done(results)?;
    if !are_right {
        let skipped = "not measured, as the results are not right";
        return out.done(Check::new(
            format!("{name} graphs"),
            Status::Skipped,
            skipped,
        ));
    }
    if matches!(id, DeviceId::Host(_)) {
        // An emulated GPU takes minutes for the other classes, and starts no graph.
        return Ok(());
    }
    out.begin(&format!("{name} graphs"))?;
    out.done(devices::graphs(&name, &config))?;
    for class in classes::ALL {
        let check = format!("{name} {}", class.name());
        if Instant::now() > until {
            let why = "not compared, as there was no time left; see --limit";
            out.done(Check::new(check, Status::Skipped, why))?;
            continue;
        }
        out.begin(&check)?;
        out.done(devices::class(&name, class, &config, until))?;
    }
    Ok(())
}

/// Returns the facts about a device, with its free memory if this build has kernels for it.
fn opened(id: DeviceId, options: &OpenOptions) -> Result<DeviceInfo, Check> {
    let listed = { gpu::survey(options).devices.into_iter() }.find(|info| info.id == id);
    match listed {
        Some(info) if info.image.is_err() => Ok(info),
        _ => Gpu::open_with(id, options)
            .and_then(|gpu| gpu.info())
            .map_err(|error| Check::new(id.to_string(), Status::Failed, error.to_string())),
    }
}

/// Writes messages, each at once.
struct Messages(Out);

impl Messages {
    fn say(&mut self, message: &Message) -> Result<()> {
        self.0.line(&serde_json::to_string(message)?)?;
        self.0.flush()
    }

    fn begin(&mut self, name: &str) -> Result<()> {
        self.say(&Message::Begins(name.to_string()))
    }

    fn done(&mut self, check: Check) -> Result<()> {
        self.say(&Message::done(check))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names() {
        for name in ["drivers", "cpu", "hip:1", "host:gfx11"] {
            assert_eq!(name.parse::<Part>().unwrap().to_string(), name);
        }
        assert!("gpu".parse::<Part>().is_err());
    }
}
