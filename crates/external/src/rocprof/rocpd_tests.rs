//! Tests of rocpd databases, which are made here from [`fixtures`].

use std::path::PathBuf;

use rusqlite::Connection;

use super::fixtures::{
    AGENTS, CALLS, COPIES, HSA_CALLS, MARKERS, RANGED_CALLS, RANGED_TRACE, ROCPD, ROCPD_4_0,
    ROCPD_4_1, ROCPD_COUNTED_READS, ROCPD_COUNTED_WRITES, ROCPD_COUNTERS, ROCPD_HSA, ROCPD_RANGES,
    ROCPD_RENAMED, ROCPD_TRACE, TO_ROCPD_4, TRACE,
};
use super::*;

/// End of the tables' names; the tool replaces the `-` of an id.
const PROCESS: &str = "_019a5b40_7f3c_7d21_9c11_0242ac120002";

/// Creates a database from statements in which `{}` after a name stands for the end of the tables' names.
fn database(path: &Path, process: &str, statements: &[&str]) {
    let db = Connection::open(path).unwrap();
    for text in statements {
        db.execute_batch(&text.replace("{}\"", &format!("{process}\"")))
            .unwrap();
    }
}

fn made(dir: &Path, name: &str, statements: &[&str]) -> PathBuf {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    database(&path, PROCESS, statements);
    path
}

#[test]
fn rocpd_and_csv_give_the_same_result() {
    let (csv, db) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (name, text) in [
        ("a_kernel_trace.csv", TRACE),
        ("a_hip_api_trace.csv", CALLS),
        ("a_hsa_api_trace.csv", HSA_CALLS),
        ("a_memory_copy_trace.csv", COPIES),
        ("a_agent_info.csv", AGENTS),
    ] {
        fs::write(csv.path().join(name), text).unwrap();
    }
    let from_csv = read_results(csv.path()).unwrap();
    let all = [ROCPD, ROCPD_TRACE, ROCPD_HSA];
    let path = made(db.path(), "pass_1/host/7_results.db", &all);
    // Ignored beside the database, or everything would count twice.
    fs::write(db.path().join("a_kernel_trace.csv"), TRACE).unwrap();
    fs::write(db.path().join("a.pftrace"), "").unwrap();
    let from_db = read_results(db.path()).unwrap();
    assert_eq!(from_db.kernels.len(), 2);
    assert_eq!(from_db.kernels, from_csv.kernels);
    assert_eq!(from_db.calls, from_csv.calls);
    let hsa = from_db
        .calls
        .iter()
        .find(|row| row.name == "hsa_signal_create");
    assert_eq!(
        hsa.map(|row| (row.calls, row.total_ms)),
        Some((2, 0.007)),
        "{:?}",
        from_db.calls
    );
    assert_eq!(from_db.copies, from_csv.copies);
    assert_eq!(from_db.devices, from_csv.devices);
    assert_eq!((from_db.notes.len(), from_db.files.len()), (0, 2));
    let first = &from_db.kernels[0];
    assert_eq!(
        (first.name.as_str(), first.calls, first.mean_us),
        ("matvec_2_1", 2, 13.0)
    );
    assert_eq!((first.min_us, first.max_us), (Some(12.0), Some(14.0)));
    // A file is read by itself, whatever its name.
    let renamed = db.path().join("decode.db");
    fs::rename(&path, &renamed).unwrap();
    assert_eq!(read_results(&renamed).unwrap().kernels, from_csv.kernels);
}

fn operations(report: &ToolReport) -> Vec<(&str, u64, f64)> {
    let rows = report.operations.iter();
    rows.map(|row| (row.name.as_str(), row.launches, row.total_ms))
        .collect()
}

const MATMUL: &str = "matmul ffn_down Q6_K [4096, 14336]";

/// By the calls that launched them; one kernel was launched in no range, and of another nothing says by which call.
#[test]
fn kernels_are_summed_by_the_ranges_of_their_launches() {
    let (dir, db) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (name, text) in [
        ("hip_kernel_trace.csv", RANGED_TRACE),
        ("hip_hip_api_trace.csv", RANGED_CALLS),
        ("hip_marker_api_trace.csv", MARKERS),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let from_csv = read_results(dir.path()).unwrap();
    // Of another process, in which the same ids mean other calls.
    fs::write(dir.path().join("7_kernel_trace.csv"), RANGED_TRACE).unwrap();
    let beside_others = read_results(dir.path()).unwrap();
    assert_eq!(beside_others.operations, from_csv.operations);
    let path = made(db.path(), "a_results.db", &[ROCPD, ROCPD_RANGES]);
    let from_db = read_results(&path).unwrap();
    for report in [&from_csv, &from_db] {
        assert_eq!(
            operations(report),
            [
                (MATMUL, 1, 0.008),
                ("rms_norm", 1, 0.002),
                ("step of 1 rows", 1, 0.001)
            ]
        );
        let [note] = &report.notes[..] else {
            panic!("{:?}", report.notes);
        };
        assert!(
            note.starts_with("1 of 5 kernels are of no operation"),
            "{note}"
        );
        assert!(note.contains("--trace hip,markers"), "{note}");
    }
    // Without HIP calls nothing can be told.
    fs::remove_file(dir.path().join("hip_hip_api_trace.csv")).unwrap();
    let report = read_results(dir.path()).unwrap();
    assert_eq!(operations(&report), []);
    assert!(
        report.notes[0].starts_with("5 of 5 kernels"),
        "{:?}",
        report.notes
    );
}

/// What rocprofv3 says of each kernel comes first.
#[test]
fn names_of_ranges_with_the_kernels_need_no_calls() {
    let dir = tempfile::tempdir().unwrap();
    let without_calls = r#"DELETE FROM "rocpd_region{}" WHERE "name_id" = 1"#;
    let all = [ROCPD, ROCPD_RANGES, ROCPD_RENAMED, without_calls];
    let report = read_results(&made(dir.path(), "a_results.db", &all)).unwrap();
    assert_eq!(
        operations(&report),
        [
            (MATMUL, 2, 0.009),
            ("rms_norm", 1, 0.002),
            ("step of 1 rows", 1, 0.001)
        ]
    );
    assert_eq!(report.notes, [""; 0]);
    // The kernels keep their own names.
    assert_eq!(report.kernels[0].name, "matvec_2_1");
}

#[test]
fn counters_sum_their_instances() {
    let dir = tempfile::tempdir().unwrap();
    made(dir.path(), "a_results.db", &[ROCPD, ROCPD_TRACE]);
    made(dir.path(), "a_pmc1_results.db", &[ROCPD, ROCPD_COUNTERS]);
    let found = read_results(dir.path()).unwrap();
    let rows = found.counters.iter();
    let rows = rows.map(|row| (row.kernel.as_deref().unwrap(), row.calls, row.total));
    let rms = "void rms<float, 4>(float*, float const*)";
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [("matvec_2_1", 2, Some(4096.0)), (rms, 1, Some(8.0))]
    );
    assert_eq!(found.unavailable, ["GL2C_HIT_sum"]);
    // The times are those of the trace, not of the counted kernels.
    assert_eq!(found.kernels[0].total_ms, 0.026);
    fs::remove_file(dir.path().join("a_results.db")).unwrap();
    let counted = read_results(dir.path()).unwrap();
    assert_eq!(counted.kernels[0].total_ms, 0.04);
    assert!(
        counted
            .notes
            .iter()
            .any(|note| note.contains("one after the other"))
    );
}

/// Version 3.0.3 of the schema added columns, among them the sample of a value that was measured over time.
#[test]
fn samples_over_time_are_no_counters() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(
        dir.path(),
        "a_results.db",
        &[
            ROCPD,
            r#"ALTER TABLE "rocpd_pmc_event{}" ADD COLUMN "sample_id" INTEGER;
               ALTER TABLE "rocpd_kernel_dispatch{}" ADD COLUMN "graph_exec_id" INTEGER;"#,
            ROCPD_COUNTERS,
            r#"INSERT INTO "rocpd_pmc_event{}" ("event_id", "pmc_id", "value", "sample_id") VALUES (1, 5, 1e9, 1)"#,
        ],
    );
    let found = read_results(&path).unwrap();
    assert_eq!(found.counters[0].total, Some(4096.0));
}

/// Threads, categories and in version 4.0 times are in tables of their own.
#[test]
fn versions_4_0_and_4_1_say_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for (name, rows) in [
        ("trace", &[ROCPD_TRACE, ROCPD_HSA][..]),
        ("counters", &[ROCPD_COUNTERS]),
        ("ranges", &[ROCPD_RANGES]),
        ("renamed", &[ROCPD_RANGES, ROCPD_RENAMED]),
        (
            "counted",
            &[ROCPD_RANGES, ROCPD_RENAMED, ROCPD_COUNTED_READS],
        ),
    ] {
        let statements = [&[ROCPD], rows].concat();
        let before = made(dir.path(), &format!("{name}_3.db"), &statements);
        let before = read_results(&before).unwrap();
        assert!(!before.kernels.is_empty(), "{name}");
        let has_ranges = !matches!(name, "trace" | "counters");
        assert_eq!(before.operations.is_empty(), !has_ranges, "{name}");
        for version in [ROCPD_4_0, ROCPD_4_1] {
            let statements = [&statements[..], &[TO_ROCPD_4, version]].concat();
            let path = made(dir.path(), &format!("{name}_4.db"), &statements);
            let report = read_results(&path).unwrap();
            fs::remove_file(path).unwrap();
            assert_eq!(report.kernels, before.kernels, "{name}");
            assert_eq!(report.calls, before.calls, "{name}");
            assert_eq!(report.copies, before.copies, "{name}");
            assert_eq!(report.counters, before.counters, "{name}");
            assert_eq!(report.operations, before.operations, "{name}");
            assert_eq!(report.notes, before.notes, "{name}");
        }
    }
    let lost = [
        ROCPD,
        ROCPD_TRACE,
        TO_ROCPD_4,
        ROCPD_4_0,
        r#"DELETE FROM "rocpd_timestamp{}""#,
    ];
    let path = made(dir.path(), "lost.db", &lost);
    let error = read_results(&path).unwrap_err().to_string();
    assert!(error.contains("start_id is no timestamp"), "{error}");
}

/// A run has the times, and two others the counters.
#[test]
fn counters_of_launches_are_summed_by_operation() {
    let dir = tempfile::tempdir().unwrap();
    let ranges = [ROCPD, ROCPD_RANGES, ROCPD_RENAMED];
    let with = |counters| [&ranges[..], &[counters]].concat();
    made(dir.path(), "a_results.db", &ranges);
    made(dir.path(), "a_pmc1_results.db", &with(ROCPD_COUNTED_READS));
    let rates = |report: &ToolReport| -> Vec<_> {
        let rows = report.operations.iter().map(|row| {
            let name = row.name.split(' ').next().unwrap().to_string();
            let rates = (row.gb_s, row.l2_hit_percent, row.occupancy_percent);
            (name, row.launches, rates)
        });
        rows.collect()
    };
    let row = |name: &str, launches, rates| (name.to_string(), launches, rates);
    let read = read_results(dir.path()).unwrap();
    // 40 % for 8 us and 4 % for 1 us; 75 % and 0 % of hits.
    let (hits, occupancy) = (Some(600.0 / 9.0), Some(324.0 / 9.0));
    assert_eq!(
        rates(&read),
        [
            row("matmul", 2, (None, hits, occupancy)),
            row("rms_norm", 1, (None, Some(50.0), Some(0.0))),
            // It found nothing, and missed nothing.
            row("step", 1, (None, None, Some(1.0))),
        ]
    );
    made(dir.path(), "a_pmc2_results.db", &with(ROCPD_COUNTED_WRITES));
    let both = read_results(dir.path()).unwrap();
    // KiB, of 9 us, 2 us and 1 us.
    let gb_s = |read: f64, written: f64, us: f64| Some((read + written) * 1.024 / us);
    assert_eq!(
        rates(&both),
        [
            row("matmul", 2, (gb_s(1125.0, 90.0, 9.0), hits, occupancy)),
            row("rms_norm", 1, (gb_s(2.0, 2.0, 2.0), Some(50.0), Some(0.0))),
            row("step", 1, (gb_s(0.0, 1.0, 1.0), None, Some(1.0))),
        ]
    );
    // The times are those of the run that does not count.
    assert_eq!(operations(&both), operations(&read));
    assert_eq!(both.operations[0].total_ms, 0.009);
    // Without it, those of the launches that were counted.
    fs::remove_file(dir.path().join("a_results.db")).unwrap();
    fs::remove_file(dir.path().join("a_pmc2_results.db")).unwrap();
    let counted = read_results(dir.path()).unwrap();
    assert_eq!(rates(&counted), rates(&read));
    assert_eq!(operations(&counted), operations(&read));
}

/// A merged file has the tables of several processes.
#[test]
fn processes_of_a_file_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("merged_results.db");
    let tables = ROCPD.split("CREATE VIEW").next().unwrap();
    let rows = ROCPD.find("INSERT INTO \"rocpd_metadata").unwrap();
    for process in ["", "_1"] {
        database(&path, process, &[tables, &ROCPD[rows..], ROCPD_TRACE]);
    }
    let found = read_results(&path).unwrap();
    assert_eq!(
        (found.kernels[0].calls, found.kernels[0].total_ms),
        (4, 0.052)
    );
    assert_eq!(found.devices.len(), 1);
}

#[test]
fn refuses_databases_that_are_no_results() {
    let end = |text: &str| text.replace("{}\"", &format!("{PROCESS}\""));
    for (statements, part) in [
        (&["CREATE TABLE a (b)"][..], "no table rocpd_metadata"),
        (
            &[ROCPD, "DROP TABLE \"rocpd_kernel_dispatch{}\""],
            "no table rocpd_kernel_dispatch_019a",
        ),
        (
            &[
                ROCPD,
                "INSERT INTO \"rocpd_region{}\" (\"nid\", \"pid\", \"tid\", \"start\", \"end\", \"name_id\")
                 VALUES (1, 1, 1, 5, 4, 1)",
            ],
            "end is before start",
        ),
        (
            &[
                ROCPD,
                "INSERT INTO \"rocpd_region{}\" (\"nid\", \"pid\", \"tid\", \"start\", \"end\", \"name_id\")
                 VALUES (1, 1, 1, 'soon', 4, 1)",
            ],
            "start is no number",
        ),
        (
            &[ROCPD, ROCPD_TRACE, "UPDATE \"rocpd_kernel_dispatch{}\" SET \"kernel_id\" = 77"],
            "kernel 77 has no name",
        ),
        (
            &[
                ROCPD,
                "DROP TABLE \"rocpd_region{}\"; CREATE TABLE \"rocpd_region{}\" (\"name_id\", \"start\")",
            ],
            "no such column: end",
        ),
        // What runs code of the file instead of holding rows.
        (
            &[
                ROCPD,
                "DROP TABLE \"rocpd_region{}\"; CREATE TABLE \"rocpd_region{}\" (\"name_id\", \"start\",
                 \"end\" AS (length(hex(zeroblob(400000)))))",
            ],
            "has computed columns",
        ),
        (
            &[
                ROCPD,
                "DROP VIEW \"rocpd_kernel_dispatch\"; DROP TABLE \"rocpd_kernel_dispatch{}\";
                 CREATE VIEW \"rocpd_kernel_dispatch{}\" AS WITH RECURSIVE n(kernel_id) AS
                 (SELECT 1 UNION ALL SELECT kernel_id + 1 FROM n) SELECT kernel_id, 1 AS start, 2 AS end,
                 3 AS event_id FROM n",
            ],
            "no table rocpd_kernel_dispatch_019a",
        ),
        (
            &[
                ROCPD,
                "DROP TABLE \"rocpd_region{}\"; CREATE VIRTUAL TABLE \"rocpd_region{}\" USING rtree(a, b, c)",
            ],
            "is a virtual table",
        ),
        // Reading so many tables takes a time that grows with the square of their number.
        (
            &[
                ROCPD,
                "PRAGMA writable_schema = ON;
                 INSERT INTO sqlite_schema WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
                 SELECT 'table', 'a' || i, 'a' || i, 2, 'CREATE TABLE a' || i || '(b)' FROM n",
            ],
            "takes more steps than a file of its size needs",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = made(dir.path(), "x_results.db", statements);
        let error = read_results(&path).unwrap_err().to_string();
        assert!(
            error.contains("x_results.db") && error.contains(part),
            "{}: {error}",
            end(statements.last().unwrap())
        );
    }
}

#[test]
fn refuses_damaged_and_foreign_files() {
    let dir = tempfile::tempdir().unwrap();
    let good = made(dir.path(), "a_results.db", &[ROCPD, ROCPD_TRACE]);
    let bytes = fs::read(&good).unwrap();
    let bad = dir.path().join("b_results.db");
    for (bytes, part) in [
        (&b""[..], "not a SQLite database"),
        (b"SQLite format 2", "not a SQLite database"),
        (&bytes[..100], ""),
        (&bytes[..bytes.len() / 2], ""),
    ] {
        fs::write(&bad, bytes).unwrap();
        let error = read_results(&bad).unwrap_err().to_string();
        assert!(
            error.contains("b_results.db") && error.contains(part),
            "{error}"
        );
    }
    // Anything may come out, but no panic.
    for at in (0..bytes.len()).step_by(97) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0xff;
        let _ = rocpd::read_bytes(&flipped, "flipped", &mut Found::default());
    }
    let sparse = fs::File::create(&bad).unwrap();
    sparse.set_len(5 << 30).unwrap();
    let error = read_results(&bad).unwrap_err().to_string();
    assert!(
        error.contains("larger than 4096 MiB; profile a shorter run"),
        "{error}"
    );
}

/// The fuzzers' seed, in the fewest columns.
#[test]
fn reads_the_seed() {
    let mut found = Found::default();
    let seed = include_bytes!(sample!("rocprof-rocpd"));
    rocpd::read_bytes(seed, "seed", &mut found).unwrap();
    let report = found.report();
    assert_eq!((report.kernels.len(), report.calls.len()), (1, 1));
    assert_eq!(report.counters[0].total, Some(2048.0));
    // Changed in two ways; the result does not matter.
    for at in (0..seed.len()).step_by(5) {
        for change in [0x01, 0xff] {
            let mut bytes = seed.to_vec();
            bytes[at] ^= change;
            let _ = rocpd::read_bytes(&bytes, "changed", &mut Found::default());
        }
    }
}

/// An inner page whose thousands of entries all lead to the same page of rows. SQLite reads these rows again and again.
#[test]
fn files_that_repeat_their_pages_end() {
    const PAGE: usize = 65536;
    let dir = tempfile::tempdir().unwrap();
    let rows = r#"INSERT INTO "rocpd_region{}" ("nid", "pid", "tid", "start", "end", "name_id")
        WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT 1, 1, 1, 1, 2, 1 FROM n"#;
    let size = format!("PRAGMA page_size = {PAGE}");
    let path = made(dir.path(), "x_results.db", &[&size, ROCPD, rows]);
    let root: u32 = Connection::open(&path)
        .unwrap()
        .query_row(
            "SELECT rootpage FROM sqlite_schema WHERE name LIKE 'rocpd_region%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(read_results(&path).unwrap().calls[0].calls, 5000);
    let mut bytes = fs::read(&path).unwrap();
    let end = root as usize * PAGE;
    let page = &mut bytes[end - PAGE..end];
    assert_eq!(page[0], 5, "an inner page of a table");
    let first = usize::from(u16::from_be_bytes([page[12], page[13]]));
    let leaf: [u8; 4] = page[first..first + 4].try_into().unwrap();
    page.fill(0);
    // Format of SQLite files: kind, free block, number of cells, start of cells, fragments, rightmost page; then the
    // places of the cells, which are a page and a key.
    let n = 8000;
    let cells = PAGE - 5 * n;
    page[0] = 5;
    page[3..5].copy_from_slice(&(n as u16).to_be_bytes());
    page[5..7].copy_from_slice(&(cells as u16).to_be_bytes());
    page[8..12].copy_from_slice(&leaf);
    for i in 0..n {
        let at = cells + 5 * i;
        page[12 + 2 * i..14 + 2 * i].copy_from_slice(&(at as u16).to_be_bytes());
        page[at..at + 4].copy_from_slice(&leaf);
        page[at + 4] = 1;
    }
    fs::write(&path, bytes).unwrap();
    let error = read_results(&path).unwrap_err().to_string();
    assert!(
        error.contains("takes more steps than a file of its size needs"),
        "{error}"
    );
}

#[test]
fn traces_for_other_viewers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("host/12_results.pftrace");
    fs::create_dir_all(trace.parent().unwrap()).unwrap();
    fs::write(&trace, "x").unwrap();
    for path in [dir.path(), &trace] {
        let error = read_results(path).unwrap_err().to_string();
        assert!(
            error.contains("12_results.pftrace is a trace for another viewer")
                && error.contains("--output-format rocpd, csv or json"),
            "{error}"
        );
    }
}
