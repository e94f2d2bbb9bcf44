//! Prints a profile as tables.

use anyhow::Result;
use rocmforge_profile::schema::{
    Bound, Launches, Memory, OpRow, Phase, Profile, Recommendation, Utilization, is_above_peak,
};
use rocmforge_profile::stats::Summary;

use crate::output::{self, Out};

/// Rows per table; the rest is summed up.
const MAX_ROWS: usize = 16;

pub fn print(profile: &Profile, out: &mut Out) -> Result<()> {
    let mut text = Text(out);
    text.head(profile)?;
    text.ttft(profile)?;
    for phase in &profile.phases {
        text.phase(phase)?;
    }
    text.launches(profile.launches.as_ref())?;
    text.telemetry(profile)?;
    text.memory(&profile.memory)?;
    text.utilization(profile.utilization.as_ref())?;
    text.overhead(profile)?;
    text.advice(profile)
}

struct Text<'a>(&'a mut Out);

impl Text<'_> {
    fn line(&mut self, line: &str) -> Result<()> {
        self.0.line(&output::for_terminal(line))
    }

    fn title(&mut self, title: &str) -> Result<()> {
        self.line("")?;
        self.line(title)
    }

    fn head(&mut self, profile: &Profile) -> Result<()> {
        let (model, workload) = (&profile.model, &profile.workload);
        self.line(&format!(
            "{} ({} {}, {}) on {}",
            model.name,
            model.arch,
            model.format,
            output::size(model.weight_bytes),
            profile.machine.device
        ))?;
        self.line(&format!(
            "prompt of {} tokens, {} generated; {} runs with profiling, {} without, alternating",
            workload.n_prompt, workload.n_gen, workload.n_profiled, workload.n_unprofiled
        ))?;
        let Some(ceilings) = &profile.ceilings else {
            return Ok(());
        };
        let rate = |value: Option<f64>, unit: &str| match value {
            Some(value) => format!("{:.1} {unit}", value / 1e9),
            None => format!("{unit} not measured"),
        };
        self.line(&format!(
            "peaks: reads {}, floats {}, int8 {}, {} to start an operation",
            rate(Some(ceilings.read_bytes_per_s), "GB/s"),
            rate(ceilings.f32_ops_per_s, "GFLOP/s"),
            rate(ceilings.i8_ops_per_s, "GOP/s"),
            match ceilings.start_us {
                Some(us) => format!("{us:.2} us"),
                None => "n/a".to_string(),
            }
        ))
    }

    fn ttft(&mut self, profile: &Profile) -> Result<()> {
        self.title("Time to first token")?;
        for line in profile.ttft.format_table().lines() {
            self.line(&format!("  {line}"))?;
        }
        self.line(&format!("  {}", profile.ttft.optimization_summary()))?;
        self.notes(&profile.ttft.notes)
    }

    fn notes(&mut self, notes: &[String]) -> Result<()> {
        for note in notes {
            self.line(&format!("  note: {note}"))?;
        }
        Ok(())
    }

    fn phase(&mut self, phase: &Phase) -> Result<()> {
        let plural = |n: usize, word: &str| match n {
            1 => format!("1 {word}"),
            n => format!("{n} {word}s"),
        };
        self.title(&format!(
            "{}: {} in {}",
            phase.name,
            plural(phase.n_tokens, "token"),
            plural(phase.n_steps, "step")
        ))?;
        self.line(&format!(
            "  without profiling {}: {:.1} tok/s",
            wall(&phase.unprofiled),
            phase.tokens_per_s
        ))?;
        self.line(&format!(
            "  with profiling    {}: {:.3} in operations + {:.3} between them ({})",
            wall(&phase.profiled),
            phase.ops_ms,
            phase.between_ops_ms,
            percent(phase.between_ops_ms / phase.profiled.mean)
        ))?;
        if let Some((least, share)) = phase.least_ms.zip(phase.roofline_share()) {
            let above = match is_above_peak(share) {
                true => ", faster than memory: the weights stay in a cache",
                false => "",
            };
            self.line(&format!(
                "  roofline {least:.3} ms: {} of the time without profiling{above}",
                percent(share)
            ))?;
        }
        self.rows("operation", &phase.ops)?;
        if !phase.kernels.is_empty() {
            self.line("")?;
            self.rows("kernel", &phase.kernels)?;
        }
        Ok(())
    }

    fn rows(&mut self, what: &str, rows: &[OpRow]) -> Result<()> {
        let head = [
            what,
            "calls",
            "ms",
            "share",
            "p50 us",
            "p95 us",
            "MB",
            "Mop",
            "of reads",
            "of ops",
            "waits for",
        ];
        let mut table = vec![head.map(str::to_string)];
        for row in rows.iter().take(MAX_ROWS) {
            let share = |share: Option<f64>, is_above: bool| match share {
                Some(share) if is_above => format!("{}*", percent(share)),
                Some(share) => percent(share),
                None => "n/a".to_string(),
            };
            table.push([
                row.name.clone(),
                row.calls.to_string(),
                format!("{:.3}", row.total_ms),
                percent(row.share),
                format!("{:.1}", row.call_us.p50),
                format!("{:.1}", row.call_us.p95),
                format!("{:.2}", row.bytes as f64 / 1e6),
                format!("{:.2}", (row.f32_ops + row.i8_ops) as f64 / 1e6),
                share(row.bandwidth_share, row.is_above_bandwidth()),
                share(row.ops_share, row.is_above_ops()),
                match row.bound {
                    Some(Bound::Memory) => "memory",
                    Some(Bound::Compute) => "compute",
                    Some(Bound::Launch) => "launch",
                    None => "",
                }
                .to_string(),
            ]);
        }
        for line in columns(&table) {
            self.line(&format!("  {line}"))?;
        }
        let rest = rows.get(MAX_ROWS..).unwrap_or_default();
        if !rest.is_empty() {
            let total: f64 = rest.iter().map(|row| row.total_ms).sum();
            self.line(&format!(
                "  and {} more, {total:.3} ms; --json has them",
                rest.len()
            ))?;
        }
        Ok(())
    }

    fn launches(&mut self, launches: Option<&Launches>) -> Result<()> {
        let Some(launches) = launches else {
            return Ok(());
        };
        self.title("Launches")?;
        self.line(&format!(
            "  {:.0} per token, {}; {:.2} us of host time each (p95 {:.2}); {:.0} us overhead per token",
            launches.per_token,
            match launches.graphs {
                true => "as one graph",
                false => "one by one",
            },
            launches.submit_us.p50,
            launches.submit_us.p95,
            launches.overhead_us
        ))?;
        for verdict in &launches.verdicts {
            let applies = match verdict.applies {
                true => "yes",
                false => "no",
            };
            let name = recommendation(verdict.recommendation);
            self.line(&format!("  {name:<21} {applies:<3} {}", verdict.reason))?;
        }
        Ok(())
    }

    fn telemetry(&mut self, profile: &Profile) -> Result<()> {
        self.title("Execution of one run")?;
        let times = profile.time_by_backend.iter();
        let times: Vec<String> = times
            .map(|(name, ms)| match profile.ops_by_backend.get(name) {
                Some(n) => format!("{name} {ms:.3} ms in {n} operations"),
                None => format!("{name} {ms:.3} ms"),
            })
            .collect();
        self.line(&format!("  time by backend: {}", times.join(", ")))?;
        let ops = profile.ops_by_type.iter();
        let ops: Vec<String> = ops.map(|(name, n)| format!("{name} {n}")).collect();
        self.line(&format!("  operations by type: {}", ops.join(", ")))?;
        if profile.slow_ops.is_empty() {
            return self.line("  slow paths: none");
        }
        for slow in &profile.slow_ops {
            self.line(&format!(
                "  slow path: {} operations of a step, {}",
                slow.count, slow.reason
            ))?;
        }
        Ok(())
    }

    fn memory(&mut self, memory: &Memory) -> Result<()> {
        self.title("Memory")?;
        let size = |bytes: Option<u64>| bytes.map_or("n/a".to_string(), output::size);
        self.line(&format!(
            "  weights {}, KV cache {} ({} a token), scratch {}, peak {}",
            output::size(memory.weights),
            output::size(memory.kv_pool),
            output::size(memory.kv_per_token),
            size(memory.scratch),
            size(memory.peak)
        ))?;
        self.line(&format!(
            "  {} of the slots in used pages are empty",
            percent(memory.fragmentation)
        ))
    }

    fn utilization(&mut self, utilization: Option<&Utilization>) -> Result<()> {
        match utilization {
            None => self.line("  busy: n/a, see the notes"),
            Some(found) => self.line(&format!(
                "  busy {:.0} % (p95 {:.0} %) by {}, target of 80 %: {}",
                found.busy_percent.mean,
                found.busy_percent.p95,
                found.source,
                match found.meets_target {
                    true => "met",
                    false => "missed",
                }
            )),
        }
    }

    fn overhead(&mut self, profile: &Profile) -> Result<()> {
        let overhead = &profile.overhead;
        self.title("Profiling")?;
        self.line(&format!(
            "  a run takes {:.3} ms with profiling and {:.3} ms without: {:+.1} %; a timed scope costs {:.0} ns",
            overhead.profiled_ms,
            overhead.unprofiled_ms,
            100.0 * (overhead.profiled_ms / overhead.unprofiled_ms - 1.0),
            overhead.scope_ns
        ))?;
        self.notes(&profile.notes)
    }

    fn advice(&mut self, profile: &Profile) -> Result<()> {
        self.title("Recommendations")?;
        if profile.advice.is_empty() {
            return self.line("  none: nothing would save 5 % of a phase in every run");
        }
        for (i, advice) in profile.advice.iter().enumerate() {
            self.line(&format!(
                "  {}. {} ({})",
                i + 1,
                advice.title,
                advice.gain_text()
            ))?;
            self.line(&format!("     {}", advice.reason))?;
        }
        Ok(())
    }
}

fn recommendation(recommendation: Recommendation) -> &'static str {
    match recommendation {
        Recommendation::NoAction => "no action",
        Recommendation::DeferSynchronization => "defer synchronization",
        Recommendation::BatchOperations => "batch operations",
        Recommendation::UseHipGraph => "use a graph",
    }
}

fn wall(summary: &Summary) -> String {
    format!("{:.3} ms ± {:.3}", summary.mean, summary.std_dev)
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Aligns columns: the first and last left, numbers right.
fn columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|i| width(i).unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(i, (cell, width))| match i == 0 || i + 1 == N {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        let cells: Vec<String> = cells.collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows = [["op", "ms", ""], ["matmul", "1.5", "memory"]];
        let rows = rows.map(|row| row.map(str::to_string));
        assert_eq!(columns(&rows), ["op       ms", "matmul  1.5  memory"]);
    }
}
