//! `rocmforge doctor`: finds out what works on this machine, and says what to do about what does not.

mod access;
mod bundle;
mod classes;
mod devices;
mod environment;
mod groups;
mod hardware;
mod libraries;
mod memory;
mod parts;
mod processes;
mod report;
mod root;
mod system;
mod tar;

use std::time::Duration;

use anyhow::{Result, bail};
use rocmforge_gguf::escape_control;
use rocmforge_hub::display;

use crate::args::DoctorArgs;
use crate::output::{self, Out};
use parts::Part;
pub use parts::run as run_part;
use report::{Check, Report, Status};
use root::Root;

pub fn run(args: &DoctorArgs) -> Result<()> {
    let root = Root::of_system();
    let limit = Duration::from_secs(args.limit);
    let bundle = match &args.bundle {
        Some(path) => Some((bundle::create(path)?, path)),
        None => None,
    };
    let mut report = Report::default();
    report.add(system::system(&root));
    report.add(system::cpu());
    let hardware = hardware::gpus(&root);
    report.add(hardware::found(&hardware));
    for check in access::checks(&root, &hardware) {
        report.add(check);
    }
    report.add(environment::environment(|name| {
        let value = std::env::var_os(name)?;
        Some(escape_control(&value.to_string_lossy()).into_owned())
    }));
    let kernels = devices::kernels(&hardware);
    let are_damaged = kernels.is_fatal;
    report.add(kernels);
    let found = processes::run(Part::Drivers, limit, &mut report)?;
    for &id in &found.gpus {
        match are_damaged {
            true => {
                let why = "not opened, as kernels are damaged";
                report.add(Check::new(id.to_string(), Status::Skipped, why));
            }
            false => drop(processes::run(Part::Gpu(id), limit, &mut report)?),
        }
    }
    if found.gpus.is_empty() {
        report.add(devices::no_graphs());
    }
    if let Some(id) = args.emulated {
        processes::run(Part::Gpu(id), limit, &mut report)?;
    }
    processes::run(Part::Cpu, limit, &mut report)?;

    let mut out = Out::new();
    match args.json {
        true => out.json(&report.summary())?,
        false => report.print(&mut out)?,
    }
    out.finish()?;
    if let Some((file, path)) = bundle {
        bundle::write(file, path, &root, &report, &found.versions)?;
        output::note(&format!("wrote {}", display::path(path)));
    }
    match report.has_failed() {
        true => bail!("{}", report.next()),
        false => Ok(()),
    }
}
