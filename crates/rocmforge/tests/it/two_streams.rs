//! The example front end, compiled into this program and run.

use rocmforge::{Device, FinishReason};

#[path = "../../examples/two_streams.rs"]
mod example;

#[test]
fn serves_two_streams_and_aborts_one() {
    let path = crate::path();
    let (answers, blocks) = example::serve_two(path.to_str().unwrap(), Device::Cpu).unwrap();
    let [whole, aborted] = answers;
    assert_eq!((whole.n_tokens, whole.reason), (60, FinishReason::Length));
    assert_eq!(aborted.reason, FinishReason::Aborted);
    assert!(aborted.n_tokens >= example::ENOUGH);
    assert_eq!(blocks.used, 0);
    // Both begin as what the model says to this prompt alone.
    let session = crate::start(Device::Cpu);
    for answer in [whole, aborted] {
        let alone = session.generate(answer.prompt).greedy().max_tokens(60);
        let alone = alone.text().unwrap();
        let n = alone.len().min(answer.text.len());
        assert!(
            n > 0 && alone.as_bytes()[..n] == answer.text.as_bytes()[..n],
            "{answer:?}"
        );
    }
}
