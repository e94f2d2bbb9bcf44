//! The checks, and what follows from them.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::output::Out;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// It works, but maybe not as wanted.
    Warning,
    /// A device cannot be used, or its results are wrong.
    Failed,
    /// There is nothing to check.
    Skipped,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub status: Status,
    pub detail: String,
    /// What to do about it.
    #[serde(skip)]
    pub advice: Option<String>,
    /// Whether results are wrong or nothing runs, so that other devices are no way out.
    #[serde(skip)]
    pub is_fatal: bool,
}

impl Check {
    pub fn new(name: impl Into<String>, status: Status, detail: impl Into<String>) -> Check {
        Check {
            name: name.into(),
            status,
            detail: detail.into(),
            advice: None,
            is_fatal: false,
        }
    }

    pub fn advice(self, advice: impl Into<String>) -> Check {
        Check {
            advice: Some(advice.into()),
            ..self
        }
    }

    pub fn fatal(self) -> Check {
        Check {
            is_fatal: true,
            ..self
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Models run, but not on all devices, or not as wanted.
    Degraded,
    Failed,
}

/// The output of `--json`.
#[derive(Serialize)]
pub struct Summary<'a> {
    verdict: Verdict,
    next: String,
    checks: &'a [Check],
}

#[derive(Default)]
pub struct Report {
    checks: Vec<Check>,
}

impl Report {
    pub fn add(&mut self, check: Check) {
        self.checks.push(check);
    }

    fn verdict(&self) -> Verdict {
        let bad = || {
            let all = self.checks.iter();
            all.filter(|check| matches!(check.status, Status::Warning | Status::Failed))
        };
        match bad().next() {
            None => Verdict::Ok,
            Some(_) if bad().any(|check| check.is_fatal) => Verdict::Failed,
            Some(_) => Verdict::Degraded,
        }
    }

    pub fn has_failed(&self) -> bool {
        self.verdict() == Verdict::Failed
    }

    /// What to do next about the worst check, the first of these.
    pub fn next(&self) -> String {
        let rank = |check: &&Check| match (check.status, check.is_fatal) {
            (Status::Failed, true) => 0,
            (Status::Failed, false) => 1,
            (Status::Warning, _) => 2,
            (Status::Ok | Status::Skipped, _) => 3,
        };
        let worst = self.checks.iter().min_by_key(rank);
        match worst.filter(|check| rank(check) < 3) {
            Some(check) => check.advice.clone().unwrap_or_else(|| check.detail.clone()),
            None => "run a model: rocmforge chat -m FILE".into(),
        }
    }

    pub fn summary(&self) -> Summary<'_> {
        Summary {
            verdict: self.verdict(),
            next: self.next(),
            checks: &self.checks,
        }
    }

    pub fn print(&self, out: &mut Out) -> Result<()> {
        out.line(self.text().trim_end())
    }

    /// The checks, the verdict and the next step, in lines.
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        let width = self.checks.iter().map(|check| check.name.len()).max();
        let width = width.unwrap_or(0);
        for check in &self.checks {
            let status = match check.status {
                Status::Ok => "ok",
                Status::Warning => "warning",
                Status::Failed => "FAILED",
                Status::Skipped => "skipped",
            };
            lines.push(format!(
                "{status:<8} {:<width$}  {}",
                check.name, check.detail
            ));
            let is_bad = matches!(check.status, Status::Warning | Status::Failed);
            if let Some(advice) = check.advice.as_ref().filter(|_| is_bad) {
                lines.push(format!("{:<8} {:<width$}  -> {advice}", "", ""));
            }
        }
        let verdict = match self.verdict() {
            Verdict::Ok => "ok",
            Verdict::Degraded => "degraded: models run, but see above",
            Verdict::Failed => "FAILED",
        };
        lines.push(format!("\nverdict  {verdict}"));
        lines.push(format!("next     {}\n", self.next()));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checks: impl IntoIterator<Item = Check>) -> Report {
        Report {
            checks: checks.into_iter().collect(),
        }
    }

    #[test]
    fn the_worst_check_decides() {
        let ok = || Check::new("a", Status::Ok, "").advice("not needed");
        let warning = || Check::new("b", Status::Warning, "").advice("look at b");
        let failed = || Check::new("c", Status::Failed, "").advice("repair c");
        let fatal = || {
            Check::new("d", Status::Failed, "")
                .advice("report d")
                .fatal()
        };
        for (checks, verdict, next) in [
            (vec![ok()], Verdict::Ok, "run a model"),
            (vec![ok(), warning()], Verdict::Degraded, "look at b"),
            (vec![warning(), failed()], Verdict::Degraded, "repair c"),
            (
                vec![failed(), warning(), fatal()],
                Verdict::Failed,
                "report d",
            ),
        ] {
            let report = report(checks);
            assert_eq!(report.verdict(), verdict);
            assert!(report.next().starts_with(next), "{}", report.next());
        }
    }
}
