//! The build's images.

use rocmforge_gpu::{image_targets, left_out};

/// A build for `ci` must not leave any target out.
#[test]
fn ci_builds_every_target() {
    if std::env::var("ROCMFORGE_GPU_TARGETS").as_deref() != Ok("ci") {
        println!("skipped: built for other targets than ci");
        return;
    }
    assert_eq!(left_out(), []);
    for target in [
        "gfx1100",
        "gfx942",
        "sm_90a",
        "host-quick",
        "host-gfx11",
        "host-gfx12",
        "host-cdna",
        "host-nv",
    ] {
        assert!(image_targets().contains(&target), "{target}");
    }
}
