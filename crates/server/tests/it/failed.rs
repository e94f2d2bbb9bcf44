//! Engines that fail for good: the server of one model ends, one of several goes on with the others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocmforge_engine::serve::{Handle, ServeOptions};
use rocmforge_model::Purpose;
use rocmforge_server::{Config, Offer, Prepared, ServerError};
use serde_json::{Value, json};

use crate::client::{FORGE_MINI, TestServer, forge_mini, loaded, local, offer, small};
use crate::device::{Before, devices, on};

const COMPLETIONS: &str = "/v1/completions";

fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8})
}

#[test]
fn a_server_whose_only_model_is_lost_ends_with_an_error() {
    let is_lost = Arc::new(AtomicBool::new(false));
    let lost = Arc::clone(&is_lost);
    let hook = move || -> Before {
        let lost = Arc::clone(&lost);
        Box::new(move || {
            assert!(!lost.load(Ordering::SeqCst), "the device's panic");
            Ok(())
        })
    };
    let device = devices(small(), hook, |info| info)().unwrap();
    let model = on(device, small(), ServeOptions::default());
    let server = TestServer::start(local(), vec![offer("forge-mini", model)]);
    server.post(COMPLETIONS, &ask("forge-mini")).ok();
    is_lost.store(true, Ordering::SeqCst);
    server.post(COMPLETIONS, &ask("forge-mini")).error(500);
    let ended = server.join();
    let Err(ServerError::ModelFailed { name, message }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(name, "forge-mini");
    assert!(message.contains("the device's panic"), "{message}");
}

/// forge-mini, of which each loading tells its engine.
fn told(name: &str, engines: &Arc<Mutex<Vec<Handle>>>) -> Offer {
    let engines = Arc::clone(engines);
    Offer {
        name: name.to_string(),
        prepare: Box::new(move || {
            let engines = Arc::clone(&engines);
            let start = move |_| {
                let options = ServeOptions::default();
                let model = loaded(FORGE_MINI.as_ref(), Purpose::Text, small(), options);
                engines.lock().unwrap().push(Handle::clone(&model.engine));
                Ok(model)
            };
            Ok(Prepared {
                bytes: 1,
                start: Box::new(start),
            })
        }),
        ..forge_mini(small())
    }
}

static N_NOTICES: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_failed_model_of_several_can_be_loaded_again() {
    let engines = Arc::default();
    let mut config = Config {
        notice: |text| {
            if text.contains("error: a has failed") {
                N_NOTICES.fetch_add(1, Ordering::SeqCst);
            }
        },
        ..local()
    };
    config.limits.load_retry_time = Duration::from_secs(3600);
    let server = TestServer::start(config, vec![told("a", &engines), told("b", &engines)]);
    let expected = server.post(COMPLETIONS, &ask("a")).ok();
    assert_eq!(server.get("/health").ok(), json!({"status": "ok"}));

    let engine = engines.lock().unwrap()[0].clone();
    assert!(engine.with_engine(|_| panic!("a defect")).is_err());
    for _ in 0..400 {
        if server.get("/health").ok() == json!({"status": "ok", "failed": ["a"]}) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        server.get("/health/ready").ok(),
        json!({"status": "ok", "failed": ["a"]})
    );
    assert_eq!(N_NOTICES.load(Ordering::SeqCst), 1);
    let error = server.post(COMPLETIONS, &ask("a")).error(503);
    assert_eq!(error["code"], "model_load_failed");
    server.post(COMPLETIONS, &ask("b")).ok();

    server.post("/models/load", &json!({"model": "a"})).ok();
    let again = server.post(COMPLETIONS, &ask("a")).ok();
    assert_eq!(again["choices"], expected["choices"]);
    assert_eq!(server.get("/health").ok(), json!({"status": "ok"}));
}
