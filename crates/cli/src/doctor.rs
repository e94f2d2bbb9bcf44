//! `rocmforge doctor`: finds out what works on this machine, and says what to do about what does not.

mod access;
mod devices;
mod hardware;
mod report;
mod system;

use std::path::PathBuf;

use anyhow::{Result, bail};
use rocmforge_runtime::gpu::{self, OpenOptions};

use crate::args::DoctorArgs;
use crate::output::Out;
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
    let mut report = Report::default();
    report.add(system::system(&root));
    report.add(system::cpu());
    let hardware = hardware::gpus(&root);
    report.add(hardware::found(&hardware));
    for check in access::checks(&root, &hardware) {
        report.add(check);
    }
    report.add(access::environment(|name| std::env::var(name).ok()));
    let options = OpenOptions::from_env();
    let survey = gpu::survey(&options);
    for check in devices::libraries(&survey, &hardware, &options) {
        report.add(check);
    }
    report.add(devices::kernels(&hardware));
    for info in &survey.devices {
        for check in devices::device(info, &options) {
            report.add(check);
        }
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
    match report.has_failed() {
        true => bail!("{}", report.next()),
        false => Ok(()),
    }
}
