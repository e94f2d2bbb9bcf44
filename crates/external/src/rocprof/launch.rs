//! What counters say of a launch: its bytes, the hit rate of its L2 cache, its occupancy.
//!
//! The counters are those of rocprofiler-sdk's `counter_defs.yaml`. FETCH_SIZE and WRITE_SIZE are in KiB. OccupancyPercent is
//! the share of waves that fit, over the time in which the GPU was busy. gfx12 defines neither WRITE_SIZE nor
//! OccupancyPercent.

use crate::table::Launch;

/// Returns the launch of a kernel that took `ns`, from the counters that `value` knows.
pub(super) fn launch(ns: f64, value: impl Fn(&str) -> Option<f64>) -> Launch {
    let bytes = |counter: &str| value(counter).map(|kib| kib * 1024.0);
    let hit_percent = |hits: &str, misses: &str| {
        let (hits, misses) = (value(hits)?, value(misses)?);
        let all = hits + misses;
        (all > 0.0).then(|| 100.0 * hits / all)
    };
    Launch {
        ns,
        read_bytes: bytes("FETCH_SIZE"),
        written_bytes: bytes("WRITE_SIZE"),
        l2_hit_percent: hit_percent("TCC_HIT_sum", "TCC_MISS_sum")
            .or_else(|| hit_percent("GL2C_HIT_sum", "GL2C_MISS_sum")),
        occupancy_percent: value("OccupancyPercent"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_facts_of_a_launch() {
        let of = |counters: &[(&str, f64)]| {
            launch(1000.0, |name| {
                let found = counters.iter().find(|(counter, _)| *counter == name);
                found.map(|(_, value)| *value)
            })
        };
        let cdna = [
            ("FETCH_SIZE", 3.0),
            ("WRITE_SIZE", 1.0),
            ("TCC_HIT_sum", 30.0),
            ("TCC_MISS_sum", 10.0),
            ("OccupancyPercent", 40.0),
        ];
        let all = Launch {
            ns: 1000.0,
            read_bytes: Some(3072.0),
            written_bytes: Some(1024.0),
            l2_hit_percent: Some(75.0),
            occupancy_percent: Some(40.0),
        };
        assert_eq!(of(&cdna), all);
        let rdna = of(&[("GL2C_HIT_sum", 1.0), ("GL2C_MISS_sum", 3.0)]);
        assert_eq!(rdna.l2_hit_percent, Some(25.0));
        for nothing in [
            &[][..],
            &[("GL2C_HIT_sum", 1.0)],
            &[("TCC_HIT_sum", 0.0), ("TCC_MISS_sum", 0.0)],
        ] {
            let launch = of(nothing);
            let expected = Launch {
                ns: 1000.0,
                ..Launch::default()
            };
            assert_eq!(launch, expected);
        }
    }
}
