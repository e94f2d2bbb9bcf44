//! The sensors of the device that the models run on. Who starts the server brings them, since it knows no device.

use std::fmt::Debug;

/// Sensors of a device.
pub trait Sensors: Debug + Send + Sync {
    /// Name of the device, such as `hip:0`.
    fn device(&self) -> &str;

    /// What they said last. A thread that serves clients calls this, so it must not wait for a sensor.
    fn newest(&self) -> SensorReading;
}

/// What sensors say. `None` is what they do not say, or not of late.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SensorReading {
    pub power_watts: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Of the compute units.
    pub clock_mhz: Option<f64>,
    /// The causes that can be told apart, and whether each holds the clock down.
    pub clock_limits: Vec<(&'static str, bool)>,
    /// Energy since the server started.
    pub joules: Option<f64>,
}
