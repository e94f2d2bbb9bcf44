//! A default build that finds no GPU says so; one that was told what to build does not.

#[path = "../../build/notice.rs"]
mod notice;

#[test]
fn default_build_without_a_gpu_says_that_it_has_no_kernels() {
    let said = notice::no_kernels("native", &[]).unwrap();
    assert!(said.contains("no GPU kernels") && said.contains("ROCMFORGE_GPU_TARGETS"));
    assert_eq!(notice::no_kernels("", &[]), None);
    assert_eq!(notice::no_kernels("native", &["gfx1100".to_string()]), None);
}
