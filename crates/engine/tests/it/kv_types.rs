//! Each pair of types of the KV cache, of keys and of values.

use crate::common::{apart, load, logits, models};
use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_plan::{KvType, KvTypes};

/// What a pair rounds is what both types round, and a token takes the bytes of both.
#[test]
fn pairs_have_the_errors_and_bytes_of_both() {
    let model = load(&models().join("forge-mini-Q4_K_M.gguf")).model;
    let prompt: Vec<u32> = (0..40).map(|i| 100 + 7 * i).collect();
    let run = |kv_types: KvTypes| {
        let config = EngineConfig {
            n_ctx: Some(64),
            page: 16,
            kv_types,
            ..EngineConfig::default()
        };
        let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
        let n_bytes = engine.backend_info().kv_bytes;
        (logits(&mut engine, &prompt).concat(), n_bytes)
    };
    let (exact, wide_bytes) = run(KvType::F32.into());
    let largest = exact.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let errors = |keys, values| {
        let (logits, n_bytes) = run(apart(keys, values));
        let differences = logits.iter().zip(&exact).map(|(a, b)| f64::from(a - b));
        let squares: f64 = differences.map(|x| x * x).sum();
        let error = (squares / exact.len() as f64).sqrt() / f64::from(largest);
        (error, n_bytes)
    };
    let of_keys = KvType::ALL.map(|ty| errors(ty, KvType::F32));
    let of_values = KvType::ALL.map(|ty| errors(KvType::F32, ty));
    for (&keys, (key_error, key_bytes)) in KvType::ALL.iter().zip(of_keys) {
        for (&values, (value_error, value_bytes)) in KvType::ALL.iter().zip(of_values) {
            let (error, n_bytes) = errors(keys, values);
            let name = apart(keys, values);
            println!("{name}: {error:.1e}, keys {key_error:.1e}, values {value_error:.1e}");
            let most = key_error + value_error;
            assert!(error <= 1.5 * most, "{name}: {error:e}");
            assert!(error >= 0.3 * most, "{name}: {error:e}");
            // Keys and values have heads of the same width.
            assert_eq!(n_bytes + wide_bytes, key_bytes + value_bytes, "{name}");
        }
    }
}
