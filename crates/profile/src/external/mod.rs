//! The vendors' profilers and the counters of the system.
