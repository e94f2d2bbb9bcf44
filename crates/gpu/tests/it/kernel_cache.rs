//! The build's cache of compiled kernels.

#[path = "../../build/cache.rs"]
#[expect(dead_code, reason = "the build finds its folder")]
mod cache;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use cache::Cache;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// An empty folder and a cache in it.
fn empty(name: &str) -> (PathBuf, Cache) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    let cache = Cache::open(&folder).unwrap();
    (folder, cache)
}

fn set_age(folder: &std::path::Path, name: &str, age: Duration) {
    let file = fs::File::options().append(true).open(folder.join(name));
    file.unwrap().set_modified(SystemTime::now() - age).unwrap();
}

#[test]
fn concurrent_builds_read_whole_files() {
    let (folder, cache) = empty("cache-concurrent");
    assert_eq!(cache.get("norm.1.lz4"), None);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    cache.put("norm.1.lz4", &[7; 10_000]).unwrap();
                    assert_eq!(cache.get("norm.1.lz4").unwrap(), [7; 10_000]);
                }
            });
        }
    });
    assert_eq!(
        fs::read_dir(folder).unwrap().count(),
        1,
        "no parts are left"
    );
}

#[test]
fn removes_files_that_no_build_uses() {
    let (folder, cache) = empty("cache-prune");
    for (name, age) in [("used", 20u32), ("old", 31), ("read", 40), ("new", 0)] {
        cache.put(name, &[0; 100]).unwrap();
        set_age(&folder, name, age * DAY);
    }
    cache.get("read").unwrap();
    cache.prune_to(30 * DAY, 1000);
    let kept = |name| cache.get(name).is_some();
    assert!(kept("used") && !kept("old") && kept("read") && kept("new"));
    set_age(&folder, "used", 20 * DAY);
    cache.prune_to(30 * DAY, 250);
    let kept = |name| cache.get(name).is_some();
    assert!(!kept("used") && kept("read") && kept("new"));
}
