//! amd-smi, the successor of rocm-smi: its commands, and the JSON of `amd-smi metric`.
//!
//! The format follows the tool's documentation and source, versions 24 to 27: an array with an object per GPU, inside
//! `{"gpu_data": [...]}` since version 26. Values are `{"value": 87, "unit": "%"}`, plain numbers in versions before
//! 24.6, or `"N/A"`. Its `MB` is 2^20 bytes.

use serde_json::Value;

use super::command::CommandLine;
use super::error::ExternalError;

/// Readings of a GPU from `amd-smi metric`. `None` stands for `N/A`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GpuMetric {
    /// The GPU's number in amd-smi.
    pub gpu: u64,
    pub gfx_percent: Option<f64>,
    /// Activity of the memory controller.
    pub memory_percent: Option<f64>,
    pub vram_used_bytes: Option<u64>,
    pub vram_total_bytes: Option<u64>,
    pub power_watts: Option<f64>,
    /// Degrees Celsius.
    pub hotspot: Option<f64>,
    /// Of the first group of compute units.
    pub clock_mhz: Option<f64>,
    /// Whether a limit holds the clock down. MI300 and newer report it elsewhere.
    pub is_throttled: Option<bool>,
}

/// Returns the command that prints one reading as JSON: of all GPUs, or of one, given by its number in amd-smi, its PCI
/// address or its UUID.
pub fn metric(gpu: Option<&str>) -> CommandLine {
    let flags = [
        "--usage",
        "--mem-usage",
        "--power",
        "--temperature",
        "--clock",
        "--json",
    ];
    let command = CommandLine::new("amd-smi").arg("metric");
    match gpu {
        None => command.args(flags),
        Some(gpu) => command.args(["-g", gpu]).args(flags),
    }
}

/// Returns the command that prints a line per second for the terminal: power, temperature, GPU and memory use.
pub fn monitor() -> CommandLine {
    CommandLine::new("amd-smi").args([
        "monitor",
        "--power-usage",
        "--temperature",
        "--gfx",
        "--mem",
        "--vram-usage",
        "--watch",
        "1",
    ])
}

/// Parses the output of [`metric`].
///
/// # Errors
/// If it is not such JSON, or lists no GPU.
pub fn parse_metric(json: &[u8]) -> Result<Vec<GpuMetric>, ExternalError> {
    let wrong = |reason: String| {
        ExternalError::malformed("amd-smi", "the output of amd-smi metric", reason)
    };
    let value = first_value(json).map_err(|error| wrong(error.to_string()))?;
    let gpus = value.get("gpu_data").unwrap_or(&value);
    let gpus = gpus
        .as_array()
        .ok_or_else(|| wrong("it has no list of GPUs".to_string()))?;
    let found: Vec<GpuMetric> = gpus.iter().filter_map(gpu_metric).collect();
    match found.is_empty() {
        true => Err(wrong("it lists no GPU".to_string())),
        false => Ok(found),
    }
}

/// Reads the JSON in `bytes`. Lines before it are warnings, as of a driver that is older than the tool.
fn first_value(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let mut first_error = None;
    let mut next = 0;
    let starts = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let start = next;
        next += line.len() + 1;
        // A warning may begin with a bracket, too.
        let text = line.trim_ascii_start();
        (text.starts_with(b"{") || text.starts_with(b"[")).then_some(start)
    });
    for start in starts.take(MAX_STARTS) {
        let mut values = serde_json::Deserializer::from_slice(&bytes[start..]).into_iter();
        match values.next() {
            Some(Ok(value)) => return Ok(value),
            Some(Err(error)) => first_error = first_error.or(Some(error)),
            None => {}
        }
    }
    match first_error {
        Some(error) => Err(error),
        None => serde_json::from_slice(bytes),
    }
}

/// Most lines at which JSON may seem to begin.
const MAX_STARTS: usize = 16;

fn gpu_metric(gpu: &Value) -> Option<GpuMetric> {
    let at = |path: &str| number(gpu.pointer(path)?);
    let mib = |path: &str| Some((at(path)? * f64::from(1 << 20)) as u64);
    let percent = |path: &str| at(path).filter(|percent| *percent <= 100.0);
    Some(GpuMetric {
        gpu: gpu.get("gpu")?.as_u64()?,
        gfx_percent: percent("/usage/gfx_activity"),
        memory_percent: percent("/usage/umc_activity"),
        vram_used_bytes: mib("/mem_usage/used_vram"),
        vram_total_bytes: mib("/mem_usage/total_vram"),
        power_watts: at("/power/socket_power"),
        hotspot: at("/temperature/hotspot"),
        clock_mhz: at("/clock/gfx_0/clk"),
        is_throttled: match gpu
            .pointer("/power/throttle_status")
            .and_then(Value::as_str)
        {
            Some("THROTTLED") => Some(true),
            Some("UNTHROTTLED") => Some(false),
            _ => None,
        },
    })
}

/// A value with or without its unit.
fn number(value: &Value) -> Option<f64> {
    let value = value.get("value").unwrap_or(value).as_f64()?;
    (value.is_finite() && value >= 0.0).then_some(value)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A card of version 26: keys and units of `metric_gpu` in `amdsmi_cli/subcommands/metric.py` of AMD SMI, and of the
    /// samples of `amd-smi metric --json` in its changelog.
    pub(crate) const METRIC: &str = include_str!(sample!("amd-smi-metric"));

    #[test]
    fn parses_all_versions() {
        let expected = GpuMetric {
            gpu: 0,
            gfx_percent: Some(97.0),
            memory_percent: Some(61.0),
            vram_used_bytes: Some(5120 << 20),
            vram_total_bytes: Some(20464 << 20),
            power_watts: Some(268.0),
            hotspot: Some(81.0),
            clock_mhz: Some(2304.0),
            is_throttled: Some(false),
        };
        assert_eq!(parse_metric(METRIC.as_bytes()).unwrap(), [expected]);
        let warnings =
            format!("WARNING: User is missing groups\n[amdgpu] {{old}} driver\n{METRIC}\nend\n");
        assert_eq!(parse_metric(warnings.as_bytes()).unwrap(), [expected]);
        let throttled = METRIC.replace("UNTHROTTLED", "THROTTLED");
        let is_throttled = parse_metric(throttled.as_bytes()).unwrap()[0].is_throttled;
        assert_eq!(is_throttled, Some(true));
        // Version 24: a bare list, and plain numbers for memory.
        let older = r#"[{"gpu": 1, "usage": {"gfx_activity": {"value": 5, "unit": "%"}, "umc_activity": "N/A"},
            "mem_usage": {"total_vram": 20464, "used_vram": 26}}]"#;
        let expected = GpuMetric {
            gpu: 1,
            gfx_percent: Some(5.0),
            vram_used_bytes: Some(26 << 20),
            vram_total_bytes: Some(20464 << 20),
            ..GpuMetric::default()
        };
        assert_eq!(parse_metric(older.as_bytes()).unwrap(), [expected]);
        for wrong in [
            "",
            "{}",
            "[]",
            "[{}]",
            "[1]",
            r#"{"gpu_data": {}}"#,
            "[[[[",
            "\u{0}",
        ] {
            let error = parse_metric(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("amd-smi"), "{wrong}: {error}");
        }
    }
}
