//! `rocmforge doctor`: finds out what works on this machine, and says what to do about what does not.

mod access;
mod bundle;
mod devices;
mod environment;
mod groups;
mod hardware;
mod libraries;
mod memory;
mod report;
mod system;
mod tar;

use std::path::PathBuf;

use anyhow::{Result, bail};
use rocmforge_gguf::escape_control;
use rocmforge_hub::display;
use rocmforge_runtime::gpu::{self, OpenOptions};

use crate::args::DoctorArgs;
use crate::output::{self, Out};
use report::Report;

/// The folder that `/proc`, `/sys`, `/dev` and `/etc` are in. Tests have others.
struct Root(PathBuf);

impl Root {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The text of a file, without what surrounds it; nothing if it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_string())
    }
}

pub fn run(args: &DoctorArgs) -> Result<()> {
    let root = Root("/".into());
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
    let options = OpenOptions::from_env();
    let survey = gpu::survey(&options);
    report.add(libraries::found(&root, &options, &survey));
    for check in devices::libraries(&survey, &hardware, &options) {
        report.add(check);
    }
    report.add(devices::kernels(&hardware));
    for check in memory::memory(&root, &hardware, &survey) {
        report.add(check);
    }
    for info in &survey.devices {
        for check in devices::device(info, &options) {
            report.add(check);
        }
    }
    if survey.devices.is_empty() {
        report.add(devices::no_graphs());
    }
    if let Some(id) = args.emulated {
        report.add(devices::emulated(id));
    }
    report.add(devices::results_of_cpu());

    let mut out = Out::new();
    match args.json {
        true => out.json(&report.summary())?,
        false => report.print(&mut out)?,
    }
    out.finish()?;
    if let Some((file, path)) = bundle {
        bundle::write(file, path, &root, &report, &survey)?;
        output::note(&format!("wrote {}", display::path(path)));
    }
    match report.has_failed() {
        true => bail!("{}", report.next()),
        false => Ok(()),
    }
}
