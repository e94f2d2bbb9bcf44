//! Other load: the share of the machine that other programs took while something was measured.
//!
//! The kernel counts the time of all cores (`/proc/stat`, with the time that the host of a virtual machine took) and
//! that of this process (`/proc/self/stat`), both in ticks (proc(5)). What is left is other programs'.

use std::fs;

/// Share of the cores from which on a machine counts as busy. A thread that shares its core loses far more: its caches,
/// and the time that the other threads of a step wait for it.
pub const BUSY: f64 = 0.05;
/// With this share of the cores idle, other programs take none away.
const ENOUGH_IDLE: f64 = 0.2;
/// Fewer ticks than these, a fifth of a second of one core, say nothing.
const MIN_TICKS: u64 = 20;

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Ticks of all cores, and those that were not idle.
    all: u64,
    busy: u64,
    /// Ticks of this process.
    own: u64,
}

impl Load {
    /// Reads the counters; `None` if the system has none.
    pub fn now() -> Option<Load> {
        let read = |path| fs::read_to_string(path).ok();
        Load::parse(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    fn parse(all: &str, own: &str) -> Option<Load> {
        let fields = all.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guests are part of user and nice.
        let mut ticks = [0u64; 8];
        let mut fields = fields.split_whitespace();
        for tick in &mut ticks {
            // Old kernels have fewer fields.
            match fields.next() {
                Some(field) => *tick = field.parse().ok()?,
                None => break,
            }
        }
        let idle = ticks[3].checked_add(ticks[4])?;
        let sum = ticks.iter().try_fold(0u64, |sum, n| sum.checked_add(*n))?;
        // The name of the program may hold spaces and brackets. utime and stime are the 14th and 15th field.
        let (_, own) = own.rsplit_once(')')?;
        let mut own = own.split_whitespace().skip(11);
        let mut tick = || own.next()?.parse::<u64>().ok();
        Some(Load {
            all: sum,
            busy: sum - idle,
            own: tick()?.checked_add(tick()?)?,
        })
    }

    /// Returns the share of all cores, 0 to 1, that other programs took since `before`; 0 if enough cores were idle.
    /// `None` if that was too short.
    pub fn of_others_since(&self, before: &Load) -> Option<f64> {
        let all = self.all.checked_sub(before.all)?;
        let busy = self.busy.saturating_sub(before.busy).min(all);
        let own = self.own.saturating_sub(before.own);
        if all < MIN_TICKS {
            return None;
        }
        let share = |ticks: u64| ticks as f64 / all as f64;
        Some(match share(all - busy) >= ENOUGH_IDLE {
            true => 0.0,
            false => share(busy.saturating_sub(own)),
        })
    }

    /// Like [`Load::of_others_since`], until now.
    pub fn of_others_since_then(before: Option<Load>) -> Option<f64> {
        Load::now()?.of_others_since(&before?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "42 (a) b (c) R 1 42 42 0 -1 4194304 100 0 0 0 30 12 5 5 20 0 3 0 100 1 1";

    #[test]
    fn counts_what_is_neither_idle_nor_ours() {
        let before = Load::parse("cpu  100 50 30 1000 20 1 2 7 0 0\ncpu0 1 1", OWN).unwrap();
        // By hand: 100 + 50 + 30 + 1 + 2 + 7 are busy, 1020 idle; 30 + 12 ours.
        let expected = Load {
            all: 1210,
            busy: 190,
            own: 42,
        };
        assert_eq!(before, expected);
        let own = OWN.replace(" 30 12 ", " 80 22 ");
        // 160 ticks later: 20 idle, 140 busy, 60 of them ours, so 80 of 160 are of others.
        let after = Load::parse("cpu  170 90 40 1020 20 1 2 27 0 0\n", &own).unwrap();
        assert_eq!(after.of_others_since(&before), Some(0.5));
        // As much, but 60 of 200 ticks are idle: nobody had to wait.
        let calm = Load::parse("cpu  170 90 40 1060 20 1 2 27 0 0\n", &own).unwrap();
        assert_eq!(calm.of_others_since(&before), Some(0.0));
        assert_eq!(before.of_others_since(&before), None);
        // Counters that go back, as after a suspended machine.
        assert_eq!(before.of_others_since(&after), None);
    }

    #[test]
    fn rejects_other_text() {
        for (all, own) in [
            ("", OWN),
            ("cpu x", OWN),
            ("cpu  1 2 3 4 5 6 7 8", ""),
            ("cpu  1 2 3 4 5 6 7 8", "1 (a) R"),
            ("cpu  18446744073709551615 2 3 4 5 6 7 8", OWN),
        ] {
            assert_eq!(Load::parse(all, own), None, "{all:?} {own:?}");
        }
        assert!(Load::parse("cpu  1 2 3 4", OWN).is_some());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn reads_the_counters_of_this_system() {
        let before = Load::now().unwrap();
        assert!(before.all >= before.busy);
        let after = Load::now().unwrap();
        assert!(
            after
                .of_others_since(&before)
                .is_none_or(|share| (0.0..=1.0).contains(&share))
        );
    }
}
