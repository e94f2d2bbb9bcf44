//! What the build must have made of the list of targets that it was given.

use rocmforge_gpu::{image_targets, left_out};

/// Where everything was asked for, as in the tests before a change lands, nothing may be left out.
#[test]
fn nothing_is_left_out_of_ci() {
    if std::env::var("ROCMFORGE_GPU_TARGETS").as_deref() != Ok("ci") {
        println!("skipped: built for other targets than ci");
        return;
    }
    assert_eq!(left_out(), []);
    for target in [
        "gfx1030",
        "gfx1100",
        "gfx1151",
        "gfx1201",
        "gfx90a",
        "gfx942",
        "sm_80",
        "sm_90a",
        "host-gfx10",
        "host-gfx11",
        "host-gfx12",
        "host-cdna",
        "host-nv",
    ] {
        assert!(image_targets().contains(&target), "{target}");
    }
}
