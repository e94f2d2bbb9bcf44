//! Tests of commands and results, with a script in place of rocprofv3.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::fixtures::{AGENTS, CALLS, COUNTERS, COUNTERS_6_2, JSON, TRACE};
use super::*;
use crate::table::TimeRow;
use crate::tools::tests::script;

fn written(dir: &Path, files: &[(&str, &str)]) -> Result<ToolReport, ExternalError> {
    for (name, text) in files {
        let file = dir.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    RocprofSession::new(dir).parse_results()
}

fn times(rows: &[TimeRow]) -> Vec<(&str, u64, f64)> {
    rows.iter()
        .map(|row| (row.name.as_str(), row.calls, row.total_ms))
        .collect()
}

#[test]
fn one_command_collects_everything() {
    let config = ProfilingConfig::new("out")
        .with_name("decode")
        .with_hip_trace(true)
        .with_hsa_trace(true)
        .with_memory_copy_trace(true)
        .with_counters(["SQ_WAVES", "GRBM_COUNT"])
        .with_formats([OutputFormat::Csv, OutputFormat::Json]);
    let session = RocprofSession::with_config(config);
    let command = session.build_command("./app", ["--arg1", "a b"]);
    assert_eq!(
        command.to_string(),
        "rocprofv3 --kernel-trace --hip-trace --hsa-trace --memory-copy-trace --pmc SQ_WAVES GRBM_COUNT --output-format csv json -d out -o \
         decode -- ./app --arg1 'a b'"
    );
    let commands: Vec<String> = session
        .commands("app", [""; 0])
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        commands,
        [
            "rocprofv3 --kernel-trace --hip-trace --hsa-trace --memory-copy-trace --output-format csv json -d out -o decode -- app",
            "rocprofv3 --pmc SQ_WAVES GRBM_COUNT --output-format csv json -d out -o decode_pmc1 -- app",
        ]
    );
    let nothing = RocprofSession::with_config(ProfilingConfig::new("out").with_kernel_trace(false));
    let error = nothing.run("app", [""; 0], &|| false).unwrap_err();
    assert!(error.to_string().contains("nothing to collect"), "{error}");
}

#[test]
fn csv_and_json_give_the_same_result() {
    let csv = tempfile::tempdir().unwrap();
    let found_csv = written(
        csv.path(),
        &[
            ("rocmforge_kernel_trace.csv", TRACE),
            ("rocmforge_hip_api_trace.csv", CALLS),
            ("rocmforge_agent_info.csv", AGENTS),
            ("rocmforge_pmc1_counter_collection.csv", COUNTERS),
            // Ignored next to CSV, or everything would count twice.
            ("rocmforge_results.json", JSON),
        ],
    )
    .unwrap();
    let json = tempfile::tempdir().unwrap();
    let found_json = written(json.path(), &[("host/15606_results.json", JSON)]).unwrap();
    for found in [&found_csv, &found_json] {
        let rms = "void rms<float, 4>(float*, float const*)";
        assert_eq!(
            times(&found.kernels),
            [("matvec_2_1", 2, 0.026), (rms, 1, 0.004)]
        );
        assert_eq!(found.kernels[0].share, 26.0 / 30.0);
        assert_eq!(
            times(&found.calls),
            [
                ("hipStreamSynchronize", 1, 0.0375),
                ("hipModuleLaunchKernel", 1, 0.0025)
            ]
        );
        let counters: Vec<_> = found
            .counters
            .iter()
            .map(|row| {
                (
                    row.kernel.as_deref().unwrap(),
                    row.counter.as_str(),
                    row.calls,
                    row.total,
                    row.mean,
                )
            })
            .collect();
        assert_eq!(
            counters,
            [
                ("matvec_2_1", "SQ_WAVES", 2, Some(4096.0), 2048.0),
                (rms, "SQ_WAVES", 1, Some(8.0), 8.0)
            ]
        );
        assert_eq!(found.unavailable, ["GL2C_HIT_sum"]);
        assert!(
            found.notes[0].contains("GL2C_HIT_sum read zero"),
            "{:?}",
            found.notes
        );
        assert_eq!(
            found.devices,
            ["AMD Radeon RX 7900 XT (gfx1100, 84 compute units)"]
        );
    }
    assert_eq!((found_csv.files.len(), found_json.files.len()), (5, 1));
    // ROCm 6.2: one process, not a list.
    let older = tempfile::tempdir().unwrap();
    let one = JSON
        .replacen("[\n  {", "{", 1)
        .replacen("}\n ]\n}", "}\n}", 1);
    let found_older = written(older.path(), &[("rocmforge_results.json", &one)]).unwrap();
    assert_eq!(found_older.kernels, found_json.kernels);
}

#[test]
fn counted_kernels_have_times_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let found = written(dir.path(), &[("pmc_1/x_counter_collection.csv", COUNTERS)]).unwrap();
    // Two counters of one dispatch each.
    assert_eq!(times(&found.kernels)[0], ("matvec_2_1", 2, 0.04));
    assert!(
        found
            .notes
            .iter()
            .any(|note| note.contains("one after the other"))
    );
    let older = tempfile::tempdir().unwrap();
    let found = written(older.path(), &[("x_counter_collection.csv", COUNTERS_6_2)]).unwrap();
    assert_eq!(found.kernels, []);
    assert_eq!(found.counters[0].total, Some(32768.0));
}

#[test]
fn rejects_files_of_other_formats() {
    let dir = tempfile::tempdir().unwrap();
    let none = written(dir.path(), &[("other.csv", "a,b\n")])
        .unwrap_err()
        .to_string();
    assert!(none.contains("rocprofv3 wrote no *_results.db"), "{none}");
    let gone = RocprofSession::new(dir.path().join("gone")).parse_results();
    assert!(gone.unwrap_err().to_string().contains("gone"));
    let reversed = TRACE.replace("1550151853060500", "1");
    let untimed = TRACE.replace("1550151853060500", "soon");
    for (name, text, part) in [
        ("x_kernel_trace.csv", "", "no header"),
        ("x_kernel_trace.csv", "a,b\n1,2\n", "no header"),
        (
            "x_kernel_trace.csv",
            &reversed,
            "line 4: End_Timestamp is before Start_Timestamp",
        ),
        (
            "x_kernel_trace.csv",
            &untimed,
            "line 4: End_Timestamp is no time: \"soon\"",
        ),
        ("x_results.json", "{", "line 1"),
        (
            "x_results.json",
            r#"{"rocprofiler-sdk-tool": 1}"#,
            "a process, or a list",
        ),
        (
            "x_results.json",
            r#"{"rocprofiler-sdk-tool": {"buffer_records": {"kernel_dispatch": [{"dispatch_info": {"kernel_id": 9}}]}}}"#,
            "kernel 9 has no name",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let error = written(dir.path(), &[(name, text)])
            .unwrap_err()
            .to_string();
        assert!(error.contains(name) && error.contains(part), "{error}");
    }
}

/// A rocprofv3 that writes the requested files, after running other commands.
fn fake(dir: &Path, first: &str) -> std::path::PathBuf {
    let of = |name: &str, text: &str| {
        let file = dir.join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let (trace, counters) = (of("trace.csv", TRACE), of("counters.csv", COUNTERS));
    let text = format!(
        r#"{first}
pmc=; dir=; name=
while [ $# -gt 0 ]; do
  case "$1" in
    --pmc) pmc=1;;
    -d) dir=$2; shift;;
    -o) name=$2; shift;;
    --) shift; break;;
  esac
  shift
done
"$@" || exit 1
if [ -n "$pmc" ]; then cp {counters} "$dir/${{name}}_counter_collection.csv"
else cp {trace} "$dir/${{name}}_kernel_trace.csv"; fi"#
    );
    script(dir, "rocprofv3", &text)
}

#[test]
fn session_runs_its_commands() {
    let (tools, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config =
        ProfilingConfig::new(out.path().join("new")).with_counters(["SQ_WAVES", "GL2C_HIT_sum"]);
    let session = RocprofSession::with_config(config.clone()).with_program(fake(tools.path(), ""));
    let found = session.run("true", [""; 0], &|| false).unwrap();
    assert_eq!(
        (found.kernels.len(), found.counters.len(), found.files.len()),
        (2, 2, 2)
    );
    // A second run into the same folder would mix both.
    let again = session
        .run("true", [""; 0], &|| false)
        .unwrap_err()
        .to_string();
    assert!(again.contains("use an empty folder"), "{again}");
    let program_fails = ProfilingConfig::new(out.path().join("fails"));
    let session =
        RocprofSession::with_config(program_fails).with_program(tools.path().join("rocprofv3"));
    let error = session
        .run("false", [""; 0], &|| false)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("rocprofv3 failed (exit status: 1)"),
        "{error}"
    );
}

#[test]
fn tool_failures_say_what_to_do() {
    for (first, part) in [
        (
            "echo 'Unable to open /dev/kfd read-write: Permission denied' >&2; exit 1",
            "groups render and video",
        ),
        (
            "echo 'Request exceeds the capabilities of the hardware to collect' >&2; exit 134",
            "fewer at a time",
        ),
        ("exit 0", "did the program use the GPU?"),
        ("sleep 1000", "--pmc is known to hang"),
    ] {
        let (tools, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut config = ProfilingConfig::new(out.path()).with_counters(["SQ_WAVES"]);
        if first.starts_with("sleep") {
            config = config.with_timeout(Duration::from_millis(50));
        }
        let session = RocprofSession::with_config(config).with_program(fake(tools.path(), first));
        let error = session
            .run("true", [""; 0], &|| false)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{first}: {error}");
    }
}
