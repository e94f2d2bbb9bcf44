//! The metrics that dashboards read.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use rocmforge_engine::serve::ServeOptions;
use rocmforge_runtime::BackendInfo;
use rocmforge_server::{Config, SensorReading, Sensors};
use serde_json::{Value, json};

use crate::client::{TestServer, forge_mini, local, offer, small, start};
use crate::device::{Before, devices, on};

/// The names of metrics in a query.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = query.split(move |c| !is_part(c));
    words.filter(|word| word.starts_with("vllm:") || word.starts_with("rocmforge_"))
}

/// Sensors that say what a test wants.
#[derive(Debug, Default)]
struct Given(Mutex<SensorReading>);

impl Sensors for Given {
    fn device(&self) -> &str {
        "hip:0"
    }

    fn newest(&self) -> SensorReading {
        self.0.lock().unwrap().clone()
    }
}

fn all_known() -> SensorReading {
    SensorReading {
        power_watts: Some(250.5),
        temperature: Some(61.0),
        clock_mhz: Some(2304.0),
        clock_limits: vec![("power", true), ("temperature", false)],
        joules: Some(1000.0),
    }
}

fn with_sensors(sensors: &Arc<Given>) -> Config {
    Config {
        sensors: Some(Arc::clone(sensors) as Arc<dyn Sensors>),
        ..local()
    }
}

/// Lines about the device's sensors.
fn device_lines(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| {
        line.starts_with("rocmforge_device_") && !line.starts_with("rocmforge_device_seconds")
    });
    lines.collect()
}

#[test]
fn sensors_are_told_as_far_as_they_are_known() {
    let sensors = Arc::new(Given::default());
    let server = TestServer::start(with_sensors(&sensors), vec![forge_mini(small())]);
    assert_eq!(device_lines(&server.get("/metrics").text), [""; 0]);
    *sensors.0.lock().unwrap() = all_known();
    assert_eq!(
        device_lines(&server.get("/metrics").text),
        [
            r#"rocmforge_device_clock_hertz{device="hip:0"} 2304000000"#,
            r#"rocmforge_device_clock_limited{cause="power",device="hip:0"} 1"#,
            r#"rocmforge_device_clock_limited{cause="temperature",device="hip:0"} 0"#,
            r#"rocmforge_device_energy_joules_total{device="hip:0"} 1000"#,
            r#"rocmforge_device_power_watts{device="hip:0"} 250.5"#,
            r#"rocmforge_device_temperature_celsius{device="hip:0"} 61"#,
        ]
    );
    // The gauge has failed; what it counted stays.
    *sensors.0.lock().unwrap() = SensorReading {
        joules: Some(1500.0),
        ..SensorReading::default()
    };
    assert_eq!(
        device_lines(&server.get("/metrics").text),
        [r#"rocmforge_device_energy_joules_total{device="hip:0"} 1500"#]
    );
    // A server without sensors has no such lines.
    assert_eq!(device_lines(&start().get("/metrics").text), [""; 0]);
}

/// The guide names each metric of the board.
#[test]
fn the_guide_names_the_metrics_of_the_board() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
    let read = |name: &str| std::fs::read_to_string(format!("{docs}{name}")).unwrap();
    let guide = read("SERVING.md");
    let board: Value = serde_json::from_str(&read("grafana.json")).unwrap();
    let missing: BTreeSet<&str> = shown(&board)
        .into_iter()
        .filter(|name| !guide.contains(&format!("`{name}`")))
        .collect();
    assert_eq!(missing, BTreeSet::new());
}

/// The metrics that a board shows.
fn shown(board: &Value) -> BTreeSet<&str> {
    let panels = board["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    targets
        .flat_map(|target| names(target["expr"].as_str().unwrap()))
        .map(|name| name.strip_suffix("_bucket").unwrap_or(name))
        .collect()
}

/// The board shows each metric of the server, and no other.
#[test]
fn the_board_shows_the_metrics_that_exist() {
    let board = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(board).unwrap()).unwrap();
    let mut devices = devices(small(), || Box::new(|| Ok(())), with_slow_ops);
    let device = devices().unwrap();
    let model = offer("forge-mini", on(device, small(), ServeOptions::default()));
    let sensors = Arc::new(Given(Mutex::new(all_known())));
    let server = TestServer::start(with_sensors(&sensors), vec![model]);
    let body = json!({"prompt": "Once", "max_tokens": 3});
    server.post("/v1/completions", &body).ok();
    let text = server.get("/metrics").text;
    // A metric has this line if it has values.
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let existing: BTreeSet<&str> = types.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(shown(&board), existing);
}

fn with_slow_ops(info: BackendInfo) -> BackendInfo {
    BackendInfo {
        slow_ops: vec![("Q9_9".to_string(), 2), ("Q9_9".to_string(), 1)],
        ..info
    }
}

#[test]
fn a_replaced_device_and_its_slow_operations_are_told() {
    let steps_left = Arc::new(AtomicI32::new(i32::MAX));
    let of_device = Arc::clone(&steps_left);
    let hook = move || -> Before {
        let steps_left = Arc::clone(&of_device);
        Box::new(move || match steps_left.fetch_sub(1, Ordering::SeqCst) {
            1 => panic!("a fault of the test"),
            _ => Ok(()),
        })
    };
    let mut devices = devices(small(), hook, with_slow_ops);
    let device = devices().unwrap();
    let options = ServeOptions {
        restart: Some(devices),
        ..ServeOptions::default()
    };
    let model = offer("forge-mini", on(device, small(), options));
    let server = TestServer::start(local(), vec![model]);
    let body = json!({"prompt": "Once", "max_tokens": 9, "temperature": 0});
    let expected = server.post("/v1/completions", &body).ok()["choices"].clone();
    let restarts = || server.metric("rocmforge_engine_restarts_total");
    let before = restarts();
    steps_left.store(5, Ordering::SeqCst);
    let reply = server.post("/v1/completions", &body).ok();
    assert_eq!(reply["choices"], expected);
    assert_eq!(restarts(), before + 1.0);
    assert_eq!(server.metric("rocmforge_failed_steps_total"), 1.0);
    // Those of all devices of the model.
    let slow = r#"rocmforge_slow_ops{cause="Q9_9",engine="0",model_name="forge-mini"} 3"#;
    let text = server.get("/metrics").text;
    assert!(text.lines().any(|line| line == slow), "{text}");
}

#[test]
fn each_mask_is_timed() {
    let server = start();
    let n_masks = || server.metric("rocmforge_mask_seconds_count");
    assert_eq!(n_masks(), 0.0);
    let body = json!({"prompt": "Once", "guided_regex": "[a-z ]{20}", "max_tokens": 60});
    let reply = server.post("/v1/completions", &body).ok();
    let n_tokens = reply["usage"]["completion_tokens"].as_f64().unwrap();
    // One before each token, and perhaps one that came too late to be used.
    assert!(n_tokens > 0.0);
    assert!(
        (n_tokens..=n_tokens + 1.0).contains(&n_masks()),
        "{n_tokens} {}",
        n_masks()
    );
    assert!(server.metric("rocmforge_mask_seconds_sum") > 0.0);
}
