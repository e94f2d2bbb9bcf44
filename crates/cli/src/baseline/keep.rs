//! Baselines of a benchmark run: reads the baseline before the first measurement, collects results, and compares and
//! saves them at the end, even of a stopped run.

use anyhow::Result;
use rocmforge_bench::BenchRow;
use rocmforge_bench::baseline::{
    ENOUGH_SAMPLES, Hardware, HardwareRule, Measurement, PerformanceBaseline, RegressionReport,
    Store,
};
use rocmforge_engine::Device;
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::DeviceId;

use super::{check_writable, in_form, shown, store, told, verdict, write};
use crate::args::KeepArgs;
use crate::devices;
use crate::exit::Early;
use crate::output;
use crate::version;

/// Adds the commit, which only the program knows.
fn with_commit(hardware: Hardware) -> Hardware {
    Hardware {
        program_commit: version::known_commit().map(str::to_string),
        ..hardware
    }
}

/// Describes the machine with this device and number of CPU threads.
pub fn hardware(device: &Device, n_threads: usize) -> Hardware {
    let mut hardware = with_commit(Hardware {
        cpu_model: devices::cpu_name(),
        ..Hardware::of_this_build()
    });
    let Device::Gpu(config) = device else {
        hardware.n_threads = Some(n_threads as u64);
        return hardware;
    };
    let known = |text: &str| (!text.is_empty()).then(|| text.to_string());
    let survey = gpu::survey(&config.open);
    let is_meant = |id: DeviceId| config.id.is_none_or(|meant| meant == id);
    let mut found = survey.devices.iter();
    if let Some(info) = found.find(|info| is_meant(info.id) && info.image.is_ok()) {
        hardware.gpu_name = known(&info.name);
        hardware.gpu_architecture = known(&info.architecture);
        hardware.driver = known(&info.driver_version);
        if matches!(info.id, DeviceId::Hip(_)) {
            hardware.rocm_version = known(&info.runtime_version);
        }
    }
    // An unnamed GPU must not be taken for the CPU.
    hardware
        .gpu_name
        .get_or_insert_with(|| "unknown GPU".to_string());
    hardware
}

/// The baselines of a run.
pub struct Keeper<'a> {
    args: &'a KeepArgs,
    /// `None` if no baseline is used.
    store: Option<Store>,
    then: Option<PerformanceBaseline>,
    now: PerformanceBaseline,
}

impl<'a> Keeper<'a> {
    /// Reads the baseline to compare with and checks the name to save under.
    pub fn open(args: &'a KeepArgs) -> Result<Keeper<'a>> {
        let mut keeper = Keeper {
            args,
            store: None,
            then: None,
            now: PerformanceBaseline::default(),
        };
        if args.save_baseline.is_none() && args.compare_baseline.is_none() {
            return Ok(keeper);
        }
        let store = store(&args.store)?;
        if let Some(name) = &args.save_baseline {
            store.check(name).map_err(told)?;
        }
        if let Some(path) = &args.report_file {
            check_writable(path)?;
        }
        if let Some(name) = &args.compare_baseline {
            keeper.then = Some(store.load(name).map_err(told)?);
        }
        keeper.store = Some(store);
        Ok(keeper)
    }

    /// Returns whether results are needed.
    pub fn is_active(&self) -> bool {
        self.store.is_some()
    }

    /// Fails early if no benchmark of the baseline was measured on one of `machines`.
    pub fn check(&self, machines: &[Hardware]) -> Result<()> {
        let (Some(then), Some(name)) = (&self.then, &self.args.compare_baseline) else {
            return Ok(());
        };
        if self.args.rules.rules().hardware == HardwareRule::Any {
            return Ok(());
        }
        let differences = then.benchmarks.iter().flat_map(|benchmark| {
            machines
                .iter()
                .map(|machine| benchmark.hardware.differences(machine))
        });
        let mut closest = None;
        for found in differences {
            if found.is_empty() {
                return Ok(());
            }
            closest = Some(found);
        }
        let Some(found) = closest else {
            return Ok(());
        };
        let facts: Vec<String> = found.iter().map(ToString::to_string).collect();
        Err(Early::HardwareMismatch(format!(
            "'{}' was measured on other hardware ({}); use --allow-other-hardware to compare anyway",
            output::for_terminal(name),
            output::for_terminal(&facts.join("; "))
        ))
        .into())
    }

    /// Adds a result.
    pub fn add(&mut self, hardware: &Hardware, measured: Measurement) {
        if !self.is_active() {
            return;
        }
        self.now
            .extend(PerformanceBaseline::of(hardware, [measured]));
    }

    /// Adds a row of a suite.
    pub fn add_row(&mut self, row: &BenchRow) {
        if self.is_active() {
            self.add(
                &with_commit(Hardware::from(&row.hardware)),
                Measurement::from(row),
            );
        }
    }

    /// Returns the names of results that are worse than the baseline, to measure again in round `round` (from 1).
    pub fn again(&self, round: u8) -> Vec<String> {
        match &self.then {
            Some(then) if round <= self.args.recheck => {
                self.now.worse_than(then, &self.args.rules.rules())
            }
            _ => Vec::new(),
        }
    }

    /// Adds a repeated result.
    pub fn add_again(&mut self, hardware: &Hardware, measured: Measurement) {
        let Some(then) = &self.then else {
            return;
        };
        for again in PerformanceBaseline::of(hardware, [measured]).benchmarks {
            self.now.add_again(again, then, &self.args.rules.rules());
        }
    }

    /// Adds a repeated row of a suite.
    pub fn add_row_again(&mut self, row: &BenchRow) {
        self.add_again(
            &with_commit(Hardware::from(&row.hardware)),
            Measurement::from(row),
        );
    }

    /// Compares and saves the results. `print` gets the report unless it goes to a file.
    ///
    /// # Errors
    /// Includes regressions, which are reported after everything else is done.
    pub fn finish(self, print: impl FnOnce(&str) -> Result<()>) -> Result<()> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        if self.now.benchmarks.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        if let (Some(then), Some(name)) = (&self.then, &self.args.compare_baseline) {
            let report = RegressionReport::compare(then, &self.now, &self.args.rules.rules())
                .called(name, "this run");
            let text = in_form(&report, self.args.report);
            match &self.args.report_file {
                Some(path) => write(path, text.as_bytes())?,
                None => print(&text)?,
            }
            result = verdict(&report, &self.args.rules);
        }
        if let Some(name) = &self.args.save_baseline {
            let n = self.now.benchmarks.len();
            let few = self.now.benchmarks.iter();
            let few = few
                .filter(|of| of.measured.n_samples() < ENOUGH_SAMPLES)
                .count();
            if few > 0 {
                output::note(&format!(
                    "warning: {few} of {n} benchmarks have fewer than {ENOUGH_SAMPLES} samples, too few for an interval: \
                     a later comparison cannot tell noise from a loss; measure more often (bench: -r 10)"
                ));
            }
            let path = store.save(name, self.now)?;
            output::note(&format!(
                "saved {n} benchmarks as '{name}' in {}",
                shown(&path)
            ));
        }
        result
    }
}
