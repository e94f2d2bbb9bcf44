//! `profile-with` with fake tools: shell scripts in a separate PATH that write the tools' output.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{Run, command, finish, run};

/// Folders of the fake tools and their results.
struct Tools(tempfile::TempDir);

impl Tools {
    fn new() -> Tools {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        Tools(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Installs a shell script. Another process writes it: a file that is open for writing while a parallel test forks
    /// cannot be executed.
    fn script(&self, name: &str, text: &str) -> &Tools {
        let (file, source) = (
            self.path("bin").join(name),
            self.path(&format!("{name}.sh")),
        );
        fs::write(&source, format!("#!/bin/sh\n{text}\n")).unwrap();
        let copied = Command::new("/bin/cp")
            .arg("--")
            .args([&source, &file])
            .status()
            .unwrap();
        assert!(copied.success());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// Writes a file for the scripts.
    fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    fn run(&self, args: &[&str]) -> Run {
        finish(self.command(args))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&["profile-with"]);
        command.args(args);
        // The scripts need the system's commands, but must not find its profilers.
        let linked = self.path("bin");
        for name in ["cat", "cp", "mv", "sleep", "true"] {
            // May exist from the previous run.
            let _ = std::os::unix::fs::symlink(Path::new("/bin").join(name), linked.join(name));
        }
        command.env("PATH", linked);
        command
    }

    fn out(&self) -> String {
        self.path("out").display().to_string()
    }
}

/// `*_kernel_trace.csv` of ROCm 7, and `*_counter_collection.csv`: columns of `generate_csv` in ROCm/rocm-systems,
/// `projects/rocprofiler-sdk/source/lib/output/generateCSV.cpp`.
const TRACE: &str = r#""Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 1",1,1,1,1,10,"matvec_2_1",1,1000000,4000000,0,0,40,0,128,128,1,1,65536,1,1
"KERNEL_DISPATCH","Agent 1",1,1,1,2,11,"rms_norm_team_f32",2,5000000,6000000,0,0,24,0,128,256,1,1,256,1,1
"#;

const COUNTERS: &str = r#""Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"
1,1,"Agent 1",1,1,1,65536,10,"matvec_2_1",128,0,0,40,0,128,"GL2C_HIT_sum",0.000000,1000000,4000000
1,1,"Agent 1",1,1,1,65536,10,"matvec_2_1",128,0,0,40,0,128,"GL2C_MISS_sum",73728.000000,1000000,4000000
"#;

#[test]
fn rocprofv3_runs_separately_for_times_and_counters() {
    let tools = Tools::new();
    let (trace, counters) = (tools.file("t.csv", TRACE), tools.file("c.csv", COUNTERS));
    let log = tools.path("log").display().to_string();
    tools.script(
        "rocprofv3",
        &format!(
            "[ \"$1\" = --version ] && exit 2\necho \"$*\" >> {log}\ncase \"$*\" in\n\
             *--pmc*) cp {counters} {out}/rocmforge_pmc1_counter_collection.csv;;\n\
             *) cp {trace} {out}/rocmforge_kernel_trace.csv;; esac",
            out = tools.out()
        ),
    );
    let out = tools.out();
    let args = [
        "rocprofv3",
        "--counters",
        "cache",
        "--arch",
        "gfx1100",
        "-o",
        &out,
        "--",
        "app",
        "-n 1",
    ];
    let found = tools.run(&args).ok();
    for part in [
        "        1        3.000      3000.00   75.0%  matvec_2_1",
        "rms_norm_team_f32",
        "73728",
        "not available here: GL2C_HIT_sum",
    ] {
        assert!(
            found.text().contains(part),
            "{part:?} is not in {}",
            found.text()
        );
    }
    assert!(
        found.stderr.contains("GL2C_HIT_sum read zero"),
        "{}",
        found.stderr
    );
    let run = fs::read_to_string(tools.path("log")).unwrap();
    let expected = format!(
        "--kernel-trace --hip-trace --output-format csv -d {out} -o rocmforge -- app -n 1\n\
         --pmc GL2C_HIT_sum GL2C_MISS_sum --output-format csv -d {out} -o rocmforge_pmc1 -- app -n 1\n"
    );
    assert_eq!(run, expected);
    // A second run would mix with the first.
    tools.run(&args).fails(1, "use an empty folder");

    let dry = [
        "rocprofv3",
        "--counters",
        "cache",
        "--arch",
        "gfx1100",
        "--dry-run",
        "--",
        "app",
        "-n 1",
    ];
    let dry = tools.run(&dry).ok();
    assert_eq!(
        dry.text(),
        "rocprofv3 --kernel-trace --hip-trace --output-format csv -d DIR -o rocmforge -- app '-n 1'\n\
         rocprofv3 --pmc GL2C_HIT_sum GL2C_MISS_sum --output-format csv -d DIR -o rocmforge_pmc1 -- app '-n 1'\n"
    );
}

/// In the formats of the versions that `--version` tells.
#[test]
fn traces_are_chosen_on_the_command_line() {
    let tools = Tools::new();
    let dry = |traces: &str| {
        let args = [
            "rocprofv3",
            "--trace",
            traces,
            "--counters",
            "cache",
            "--arch",
            "gfx1100",
            "--dry-run",
            "--",
            "app",
        ];
        tools.run(&args)
    };
    let csv = dry("hsa,copies,markers").ok();
    assert_eq!(
        csv.text(),
        "rocprofv3 --kernel-trace --hip-trace --hsa-trace --memory-copy-trace --marker-trace --output-format csv -d DIR \
         -o rocmforge -- app\n\
         rocprofv3 --pmc GL2C_HIT_sum GL2C_MISS_sum --output-format csv -d DIR -o rocmforge_pmc1 -- app\n"
    );
    tools.script("rocprofv3", "echo '   version: 1.1.0'");
    let rocpd = dry("hsa,copies,markers").ok();
    assert_eq!(
        rocpd.text(),
        "rocprofv3 --kernel-trace --hsa-trace --memory-copy-trace --marker-trace --kernel-rename --output-format rocpd \
         -d DIR -o rocmforge -- app\n\
         rocprofv3 --marker-trace --kernel-rename --pmc GL2C_HIT_sum GL2C_MISS_sum --output-format rocpd -d DIR \
         -o rocmforge_pmc1 -- app\n"
    );
    dry("hsa,cuda").fails(2, "unknown trace 'cuda'; known: hip, hsa, copies, markers");
}

#[test]
fn rocprof_compute_measures_a_roofline_and_reads_its_files() {
    let tools = Tools::new();
    let dry = |tool: &str, flags: &[&str]| {
        tools.run(&[&[tool], flags, &["--dry-run", "--", "app"]].concat())
    };
    for (flags, roof) in [(&[][..], "--no-roof "), (&["--roofline"], "")] {
        assert_eq!(
            dry("rocprof-compute", flags).ok().text(),
            format!(
                "rocprof-compute profile --output-directory DIR/rocprof-compute {roof}-- app\n\
                 rocprof-compute analyze -p DIR/rocprof-compute\n"
            )
        );
    }
    dry("nsys", &["--roofline"]).fails(2, "nsys measures no roofline");
    let folder = tools.path("workload");
    fs::create_dir(&folder).unwrap();
    let table = "Dispatch_ID,Kernel_Name,Start_Timestamp,End_Timestamp\n0,matvec_2_1,1000,3000\n";
    fs::write(folder.join("pmc_perf.csv"), table).unwrap();
    let folder = folder.display().to_string();
    let found = tools.run(&["rocprof-compute", "--read", &folder]).ok();
    assert!(found.text().contains("matvec_2_1"), "{}", found.text());
}

#[test]
fn reads_results_of_earlier_runs() {
    let tools = Tools::new();
    let results = tools.path("results");
    fs::create_dir_all(results.join("host")).unwrap();
    fs::write(results.join("host/7_kernel_trace.csv"), TRACE).unwrap();
    let results = results.display().to_string();
    let found = tools.run(&["rocprofv3", "--read", &results]).ok();
    assert!(
        found.text().contains("rms_norm_team_f32"),
        "{}",
        found.text()
    );
    let trace = tools.file("7_results.pftrace", "");
    tools
        .run(&["rocprofv3", "--read", &trace])
        .fails(1, "7_results.pftrace is a trace for another viewer");
    tools
        .run(&["perf", "--read", &results])
        .fails(2, "results of perf cannot be read later");
    tools
        .run(&["rocprofv3", "--read", &results, "--", "app"])
        .fails(2, "--read");
}

#[test]
fn reads_nsys_and_ncu() {
    let tools = Tools::new();
    let kernels = tools.file(
        "k.csv",
        "Processing [a.sqlite] with [cuda_gpu_kern_sum.py]...\n\
         Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n\
         80.0,4000000,400,10000.0,9984.0,9600,12000,310.2,matvec_2_1\n\
         20.0,1000000,100,10000.0,10000.0,10000,10000,0.0,rms_norm_team_f32\n",
    );
    let calls = tools.file(
        "a.csv",
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n\
         100.0,2000000,10,200000.0,2.0,1,2,0.1,cuGraphLaunch\n",
    );
    let ranges = tools.file(
        "r.csv",
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n\
         80.0,4000000,400,10000.0,9984.0,9600,12000,310.2,:matmul ffn_up/matvec_2_1\n",
    );
    tools.script(
        "nsys",
        &format!(
            "case \"$*\" in *nvtx-name*) cat {ranges};; *cuda_gpu_kern_sum*) cat {kernels};; *cuda_api_sum*) cat {calls};; esac"
        ),
    );
    let found = tools
        .run(&["nsys", "-o", &tools.out(), "--json", "--", "app"])
        .json();
    let report = &found["report"];
    assert_eq!(report["kernels"][0]["name"], "matvec_2_1");
    assert_eq!(report["kernels"][0]["calls"], 400);
    assert_eq!(report["kernels"][0]["share"], 0.8);
    assert_eq!(report["calls"][0]["name"], "cuGraphLaunch");
    assert_eq!(report["operations"][0]["name"], "matmul ffn_up");
    assert_eq!(report["operations"][0]["launches"], 400);

    let ncu = tools.file(
        "n.csv",
        "==PROF== Connected to process 1 (/bin/app)\n\
         \"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\
         \"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg\",\
         \"Kernel Name\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\",\"gpu__time_duration.sum\"\n\
         \"\",\"\",\"\",\"\",\"\",\"\",\"byte\",\"byte\",\"nsecond\"\n\
         \"0\",\"1\",\"app\",\"h\",\"7  \"\"<default domain>:matmul ffn_up:none:none:none:none:none:none\"\" \",\
         \"matvec_2_1\",\"9,437,184\",\"562,816\",\"10,000\"\n",
    );
    let out2 = tools.path("out2").display().to_string();
    tools.script("ncu", &format!("cp {ncu} {out2}/rocmforge-ncu.csv"));
    let found = tools
        .run(&["ncu", "--counters", "memory", "-o", &out2, "--", "app"])
        .ok();
    for part in [
        "0.010        10.00  100.0%  matvec_2_1",
        "9437184",
        "dram__bytes_read.sum [byte]",
        "        1        0.010  100.0%     1000     n/a       n/a  matmul ffn_up",
    ] {
        assert!(
            found.text().contains(part),
            "{part:?} is not in {}",
            found.text()
        );
    }
    let refused = tools.file(
        "r.csv",
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n",
    );
    let out3 = tools.path("out3").display().to_string();
    tools.script("ncu", &format!("cp {refused} {out3}/rocmforge-ncu.csv"));
    tools
        .run(&["ncu", "-o", &out3, "--", "app"])
        .fails(1, "NVreg_RestrictProfilingToAdminUsers=0");
}

#[test]
fn perf_samples_and_counts() {
    let tools = Tools::new();
    let functions = tools.file(
        "f.txt",
        "# Samples: 7  of event 'cpu-clock'\n\
         # Overhead|     Samples|      Period|Symbol\n\
          75.00% | 3          | 3003000    |[.] dot_q4_k\n \
          25.00% | 1          | 1001000    |[k] clear_page_erms\n",
    );
    let events = tools.file(
        "e.csv",
        "# started on Sat Nov 21 19:42:09 2026\n\n10,,branches,1460154,100.00,,\n\
         <not supported>,,instructions,0,100.00,,\n",
    );
    let out = tools.out();
    tools.script(
        "perf",
        &format!(
            "case \"$1\" in record) ;; report) cat {functions};; stat) cp {events} {out}/rocmforge-perf-stat.csv;; esac"
        ),
    );
    let found = tools.run(&["perf", "-o", &out, "--", "app"]).ok();
    assert!(
        found
            .text()
            .contains("        3        3.003      1001.00   75.0%  dot_q4_k"),
        "{}",
        found.text()
    );
    assert!(
        found.text().contains("[k] clear_page_erms"),
        "{}",
        found.text()
    );
    let found = tools
        .run(&[
            "perf",
            "--counters",
            "instructions",
            "-o",
            &out,
            "--",
            "app",
        ])
        .ok();
    assert!(found.text().contains("branches"), "{}", found.text());
    assert!(
        found.text().contains("not available here: instructions"),
        "{}",
        found.text()
    );
    tools.script(
        "perf",
        "echo 'Error:' >&2; echo 'Access to performance monitoring and observability operations is limited.' >&2; exit 255",
    );
    tools
        .run(&["perf", "-o", &out, "--", "app"])
        .fails(1, "kernel.perf_event_paranoid=1");
}

#[test]
fn samples_gauges_while_the_command_runs() {
    let tools = Tools::new();
    tools.script(
        "nvidia-smi",
        "while :; do\necho '91, 2048'\ncase \"$*\" in *-lms*) sleep 0.05;; *) exit 0;; esac\ndone",
    );
    let out = tools.out();
    let found = tools.run(&["nvidia-smi", "-o", &out, "--", "true"]).ok();
    assert!(
        found.text().contains("busy 91 % (above 80 %"),
        "{}",
        found.text()
    );
    assert!(
        found.text().contains("memory in use 2.0 GiB"),
        "{}",
        found.text()
    );
    tools.script(
        "nvidia-smi",
        "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9",
    );
    tools
        .run(&["nvidia-smi", "-o", &out, "--", "true"])
        .fails(1, "could not communicate");
    tools.script("amd-smi", "exit 1");
    tools
        .run(&["amd-smi", "-o", &out, "--", "true"])
        .fails(1, "amd-smi cannot measure device utilization");
}

#[test]
fn retired_tools_name_their_replacements() {
    let tools = Tools::new();
    for (old, part) in [
        ("rocprof", "use rocprofv3: rocprofv3 --kernel-trace"),
        ("omniperf", "use rocprof-compute: rocprof-compute profile"),
        ("rocperf", "use rocprofv3: rocprofv3 --pmc"),
        ("rocm-smi", "use amd-smi: amd-smi monitor"),
    ] {
        tools.run(&[old, "-o", "x", "--", "app"]).fails(2, part);
    }
    tools
        .run(&["gprof", "-o", "x", "--", "app"])
        .fails(2, "unknown tool 'gprof'");
}

#[test]
fn reports_wrong_usage_and_missing_tools() {
    let tools = Tools::new();
    let out = tools.out();
    tools
        .run(&["nsys", "-o", &out, "--", "app"])
        .fails(1, "nsys is not in PATH; install NVIDIA Nsight Systems");
    tools
        .run(&["perf", "-o", &out])
        .fails(2, "no command to profile");
    tools.run(&["perf", "--", "app"]).fails(2, "--output");
    tools.run(&[]).fails(2, "TOOL");
    for (args, part) in [
        (
            &["perf", "--counters", "lds"][..],
            "a CPU has no counters of the category lds",
        ),
        (
            &["perf", "--counters", "wave"],
            "unknown counter category 'wave'",
        ),
        (&["perf", "--pmc", "a b"], "'a b' is not a counter name"),
        (&["nsys", "--counters", "cache"], "nsys takes no counters"),
        (&["nsys", "--trace", "hsa"], "nsys has no choice of traces"),
        (&["rocprofv3", "--trace", "hsu"], "unknown trace 'hsu'"),
        (&["amd-smi", "--gpu", "a b"], "'a b' is no GPU"),
        (
            &["rocprofv3", "--counters", "cache", "--arch", "gfx803"],
            "--pmc",
        ),
        (&["rocprofv3", "--timeout", "0"], "--timeout"),
    ] {
        let mut args = args.to_vec();
        args.extend(["--dry-run", "--", "app"]);
        tools.run(&args).fails(2, part);
    }
    tools.script("rocprofv3", "sleep 1000");
    tools
        .run(&["rocprofv3", "--timeout", "0.05", "-o", &out, "--", "app"])
        .fails(1, "did not end within 0.05 s");
}

#[test]
fn list_has_every_tool() {
    let tools = Tools::new();
    tools.script("perf", "echo perf version 6.1.187");
    let found = tools.run(&["--list", "--json"]).json();
    let of = |name: &str| {
        let all = found["tools"].as_array().unwrap();
        all.iter()
            .find(|tool| tool["tool"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(of("perf")["version"], "perf version 6.1.187");
    assert!(of("rocprofv3")["path"].is_null());
    assert_eq!(found["former"]["rocm-smi"], "amd-smi");
    let text = tools.run(&["--list"]).ok();
    for part in [
        "perf version 6.1.187",
        "/opt/rocm/bin",
        "omniperf is rocprof-compute",
    ] {
        assert!(
            text.text().contains(part),
            "{part:?} is not in {}",
            text.text()
        );
    }
    run(&["profile-with", "--list", "perf"]).fails(2, "--list");
}

#[test]
fn ctrl_c_stops_the_tool() {
    let tools = Tools::new();
    let pid = tools.path("pid");
    tools.script(
        "rocprofv3",
        &format!(
            "echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 1; done",
            pid.display()
        ),
    );
    let mut child = tools
        .command(&["rocprofv3", "-o", &tools.out(), "--", "app"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let waits = || start.elapsed() < Duration::from_secs(60);
    while !pid.exists() && waits() {
        thread::sleep(Duration::from_millis(5));
    }
    let tool = fs::read_to_string(&pid).unwrap();
    let interrupt = ["-c".to_string(), format!("kill -INT {}", child.id())];
    assert!(
        Command::new("sh")
            .args(interrupt)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let process = Path::new("/proc").join(tool.trim());
    while process.exists() && waits() {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!process.exists(), "{} runs", process.display());
}
