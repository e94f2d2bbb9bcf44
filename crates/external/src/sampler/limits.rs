//! What keeps a GPU's clock down.

/// Causes that hold a clock below what was asked for. `None` is what the source does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockLimits {
    /// The power limit.
    pub power: Option<bool>,
    /// The limit of the current that the board's regulators give.
    pub current: Option<bool>,
    /// The temperature of the chip, its memory or its regulators.
    pub temperature: Option<bool>,
    /// A signal of the board or the machine, such as a power brake.
    pub hardware: Option<bool>,
    /// The source says whether there is a limit, and not which.
    pub unnamed: Option<bool>,
}

impl ClockLimits {
    /// The bits of `clocks_event_reasons.active`, as NVML's documentation has them ("Clocks Event Reasons"): 0x4 software
    /// power cap, 0x8 hardware slowdown, 0x20 and 0x40 thermal slowdown by software and hardware, 0x80 power brake. The
    /// others say that the GPU is idle, or that somebody set its clocks.
    pub(super) fn of_nvidia(bits: u64) -> ClockLimits {
        ClockLimits {
            power: Some(bits & 0x4 != 0),
            temperature: Some(bits & 0x60 != 0),
            // 0x8 comes with 0x40 and 0x80.
            hardware: Some(bits & 0x80 != 0 || bits & 0x48 == 0x8),
            ..ClockLimits::default()
        }
    }

    /// `indep_throttle_status` of amdgpu's `gpu_metrics`, as `amdgpu_smu.h` groups its bits.
    pub(crate) fn of_amd(bits: u64) -> ClockLimits {
        let any =
            |range: std::ops::Range<u32>| Some(range.into_iter().any(|bit| bits >> bit & 1 == 1));
        ClockLimits {
            power: any(0..16),
            current: any(16..32),
            temperature: any(32..56),
            hardware: any(56..64),
            unnamed: None,
        }
    }

    /// The causes that the source tells apart, the most usual first, and which of them hold the clock down.
    pub fn known(self) -> impl Iterator<Item = (&'static str, bool)> {
        [
            ("power", self.power),
            ("temperature", self.temperature),
            ("current", self.current),
            ("hardware", self.hardware),
            ("unknown", self.unnamed),
        ]
        .into_iter()
        .filter_map(|(name, is_set)| Some((name, is_set?)))
    }

    /// Names of the causes that hold the clock down.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        self.known()
            .filter_map(|(name, is_set)| is_set.then_some(name))
    }
}

impl std::ops::BitOr for ClockLimits {
    type Output = ClockLimits;

    fn bitor(self, other: ClockLimits) -> ClockLimits {
        // `Some(true)` is the largest and `None` the least.
        ClockLimits {
            power: self.power.max(other.power),
            current: self.current.max(other.current),
            temperature: self.temperature.max(other.temperature),
            hardware: self.hardware.max(other.hardware),
            unnamed: self.unnamed.max(other.unnamed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(limits: ClockLimits) -> Vec<&'static str> {
        limits.names().collect()
    }

    #[test]
    fn bits_have_the_names_of_their_groups() {
        assert_eq!(
            names(ClockLimits::of_nvidia(0x1 | 0x2 | 0x10 | 0x100)),
            [""; 0]
        );
        assert_eq!(names(ClockLimits::of_nvidia(0x4)), ["power"]);
        assert_eq!(names(ClockLimits::of_nvidia(0x8 | 0x40)), ["temperature"]);
        assert_eq!(names(ClockLimits::of_nvidia(0x8 | 0x80)), ["hardware"]);
        assert_eq!(names(ClockLimits::of_nvidia(0x8)), ["hardware"]);
        // PPT0, TDC_GFX and the hot spot.
        assert_eq!(names(ClockLimits::of_amd(1)), ["power"]);
        assert_eq!(names(ClockLimits::of_amd(1 << 16)), ["current"]);
        let both = ClockLimits::of_amd(1 << 36) | ClockLimits::of_amd(1 << 2);
        assert_eq!(names(both), ["power", "temperature"]);
        assert_eq!(names(ClockLimits::of_amd(0)), [""; 0]);
        // What a source does not tell apart is not known to be off.
        let known = |limits: ClockLimits| limits.known().collect::<Vec<_>>();
        assert_eq!(known(ClockLimits::default()), []);
        assert_eq!(
            known(ClockLimits::of_nvidia(0x4) | ClockLimits::default()),
            [("power", true), ("temperature", false), ("hardware", false)]
        );
    }
}
