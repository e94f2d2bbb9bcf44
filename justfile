# Everything that must pass before a change lands
ci:
    bash .ci/run

# The same with the exhaustive tests
ci-full:
    bash .ci/run --full

# Tell a story with the embedded model
story:
    cargo run --release -- generate -p "Once upon a time"

test:
    cargo test --workspace

lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# Licences, bans and sources of the dependencies; needs cargo-deny
deny:
    cargo deny --offline check bans licenses sources

# Speed of the CPU kernels
bench:
    cargo bench -p rocmforge-cpu
