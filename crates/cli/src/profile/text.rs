//! Prints a profile as tables.

use anyhow::Result;
use rocmforge_profile::schema::{
    Bound, Launches, Memory, OpRow, Phase, Profile, Recommendation, Utilization, is_above_peak,
};
use rocmforge_profile::stats::Summary;

use crate::output::{self, Out};
use crate::wrap;

/// Rows per table; the rest is summed up.
const MAX_ROWS: usize = 16;

/// Columns of the tables of operations, and those that narrow terminals leave out, first the first.
const HEAD: [&str; 11] = [
    "",
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
const OPTIONAL: [&str; 6] = ["Mop", "MB", "p95 us", "of ops", "p50 us", "calls"];

/// Characters of an operation's name that a table shows on a line at least.
const NAME: usize = 24;

pub fn print(profile: &Profile, out: &mut Out) -> Result<()> {
    let width = match out.is_terminal() {
        true => wrap::terminal_width(&std::io::stdout()),
        false => None,
    };
    let mut text = Text { out, width };
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

struct Text<'a> {
    out: &'a mut Out,
    /// Columns of the terminal; none: lines are not broken.
    width: Option<usize>,
}

impl Text<'_> {
    fn line(&mut self, line: &str) -> Result<()> {
        let line = output::for_terminal(line);
        match self.width {
            Some(width) => self.out.line(&wrap::hanging(&line, width)),
            None => self.out.line(&line),
        }
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
        let mut head = HEAD.map(str::to_string);
        head[0] = what.to_string();
        let mut table = vec![head];
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
        for line in columns(&table, self.width.map(|width| width.saturating_sub(2))) {
            self.out
                .line(&format!("  {}", output::for_terminal(&line)))?;
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
            Some(found) => {
                self.line(&format!(
                    "  busy {:.0} % (p95 {:.0} %) by {}, target of 80 %: {}",
                    found.busy_percent.mean,
                    found.busy_percent.p95,
                    found.source,
                    match found.meets_target {
                        true => "met",
                        false => "missed",
                    }
                ))?;
                match found.condition() {
                    None => Ok(()),
                    Some(condition) => self.line(&format!("  {condition}")),
                }
            }
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

/// Aligns columns: the first and last left, numbers right. If they are wider than `width`, optional columns are left out, and
/// names continue on further lines.
fn columns(rows: &[[String; HEAD.len()]], width: Option<usize>) -> Vec<String> {
    let widths: [usize; HEAD.len()] = std::array::from_fn(|i| {
        let cells = rows.iter().map(|row| row[i].chars().count());
        cells.max().unwrap_or(0)
    });
    let mut shown: Vec<usize> = (1..HEAD.len()).collect();
    let beside_name = |shown: &[usize]| shown.iter().map(|i| 2 + widths[*i]).sum::<usize>();
    let mut name_width = widths[0];
    if let Some(width) = width {
        for name in OPTIONAL {
            if width >= beside_name(&shown) + widths[0].min(NAME) {
                break;
            }
            shown.retain(|i| HEAD[*i] != name);
        }
        let rest = width.saturating_sub(beside_name(&shown));
        name_width = name_width.min(rest.max(NAME));
    }
    let mut lines = Vec::new();
    for row in rows {
        let name = match row[0].chars().count() > name_width {
            true => wrap::hanging(&row[0], name_width),
            false => row[0].clone(),
        };
        let mut names = name.lines();
        let mut line = format!("{:<name_width$}", names.next().unwrap_or(""));
        for i in &shown {
            let (cell, width) = (&row[*i], widths[*i]);
            line += &match *i + 1 == HEAD.len() {
                true => format!("  {cell:<width$}"),
                false => format!("  {cell:>width$}"),
            };
        }
        lines.push(line.trim_end().to_string());
        lines.extend(names.map(str::to_string));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(names: &[&str]) -> Vec<[String; HEAD.len()]> {
        let mut rows = vec![HEAD.map(str::to_string)];
        for name in names {
            let mut row = HEAD.map(|_| "1.5".to_string());
            row[0] = name.to_string();
            row[HEAD.len() - 1] = "memory".to_string();
            rows.push(row);
        }
        rows
    }

    #[test]
    fn columns_fit_their_widest_cell() {
        assert_eq!(
            columns(&rows(&["matmul"]), None),
            [
                "        calls   ms  share  p50 us  p95 us   MB  Mop  of reads  of ops  waits for",
                "matmul    1.5  1.5    1.5     1.5     1.5  1.5  1.5       1.5     1.5  memory",
            ]
        );
    }

    #[test]
    fn columns_fit_the_terminal() {
        let name = "matmuls attn_q+attn_k+attn_v Q4_K+Q4_K+Q6_K [256+128+128, 256]";
        let rows = rows(&[name, "rope [256]"]);
        for width in [60, 78, 100, 118] {
            let lines = columns(&rows, Some(width));
            assert!(lines.iter().all(|line| line.len() <= width), "{lines:#?}");
            assert!(
                lines[0].ends_with("of reads  waits for") || width > 60,
                "{lines:#?}"
            );
        }
        assert_eq!(
            columns(&rows, Some(60)),
            [
                "                              ms  share  of reads  waits for",
                "matmuls                      1.5    1.5       1.5  memory",
                "  attn_q+attn_k+attn_v",
                "  Q4_K+Q4_K+Q6_K",
                "  [256+128+128, 256]",
                "rope [256]                   1.5    1.5       1.5  memory",
            ]
        );
    }
}
