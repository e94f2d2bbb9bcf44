//! rocprofv3's JSON, `*_results.json`: an object `rocprofiler-sdk-tool` with an entry per process.
//!
//! Kernels, calls and counters have ids; the tables of their names are in the same entry. A counter has a record per
//! hardware instance; they are summed, as in the CSV.

use std::collections::HashMap;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Found, TOOL, csv};
use crate::error::ExternalError;

#[derive(Deserialize)]
struct File {
    #[serde(rename = "rocprofiler-sdk-tool")]
    tool: OneOrMany,
}

/// ROCm 6.2 writes the process itself instead of a list. An untagged enum would hold the file twice and lose error
/// details.
struct OneOrMany(Vec<Process>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMany, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a process, or a list of them")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<OneOrMany, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(OneOrMany)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OneOrMany, A::Error> {
                Process::deserialize(MapAccessDeserializer::new(map))
                    .map(|one| OneOrMany(vec![one]))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[derive(Deserialize)]
struct Process {
    #[serde(default)]
    agents: Vec<Agent>,
    #[serde(default)]
    counters: Vec<Counter>,
    #[serde(default)]
    strings: Strings,
    #[serde(default)]
    kernel_symbols: Vec<Kernel>,
    #[serde(default)]
    callback_records: CallbackRecords,
    #[serde(default)]
    buffer_records: BufferRecords,
}

#[derive(Deserialize)]
struct Agent {
    #[serde(default)]
    name: String,
    #[serde(default)]
    product_name: String,
    #[serde(default)]
    cu_count: u64,
    /// Absent for a CPU.
    #[serde(default)]
    simd_count: u64,
}

#[derive(Deserialize)]
struct Handle {
    handle: u64,
}

#[derive(Deserialize)]
struct Counter {
    id: Handle,
    name: String,
}

#[derive(Deserialize, Default)]
struct Strings {
    #[serde(default)]
    buffer_records: Vec<Operations>,
}

#[derive(Deserialize)]
struct Operations {
    #[serde(default)]
    operations: Vec<String>,
}

#[derive(Deserialize)]
struct Kernel {
    kernel_id: u64,
    #[serde(default)]
    formatted_kernel_name: String,
    #[serde(default)]
    kernel_name: String,
}

#[derive(Deserialize, Default)]
struct CallbackRecords {
    #[serde(default)]
    counter_collection: Vec<Counted>,
}

#[derive(Deserialize)]
struct Counted {
    dispatch_data: Dispatch,
    #[serde(default)]
    records: Vec<Record>,
}

#[derive(Deserialize)]
struct Record {
    counter_id: Handle,
    value: f64,
}

#[derive(Deserialize, Default)]
struct BufferRecords {
    #[serde(default)]
    kernel_dispatch: Vec<Dispatch>,
    #[serde(default)]
    hip_api: Vec<Call>,
    #[serde(default)]
    hsa_api: Vec<Call>,
    #[serde(default)]
    memory_copy: Vec<Call>,
}

#[derive(Deserialize)]
struct Dispatch {
    #[serde(default)]
    start_timestamp: u64,
    #[serde(default)]
    end_timestamp: u64,
    dispatch_info: DispatchInfo,
}

#[derive(Deserialize)]
struct DispatchInfo {
    kernel_id: u64,
}

#[derive(Deserialize)]
struct Call {
    kind: usize,
    operation: usize,
    start_timestamp: u64,
    end_timestamp: u64,
}

/// Adds the contents of `bytes` to `found`.
pub(super) fn read(bytes: &[u8], what: &str, found: &mut Found) -> Result<(), ExternalError> {
    let file: File = serde_json::from_slice(bytes)
        .map_err(|error| ExternalError::malformed(TOOL, what, error.to_string()))?;
    for process in file.tool.0 {
        read_process(&process, what, found)?;
    }
    Ok(())
}

fn read_process(process: &Process, what: &str, found: &mut Found) -> Result<(), ExternalError> {
    let wrong = |reason: String| ExternalError::malformed(TOOL, what, reason);
    let kernels: HashMap<u64, &str> = process
        .kernel_symbols
        .iter()
        .map(|kernel| match kernel.formatted_kernel_name.as_str() {
            "" => (kernel.kernel_id, kernel.kernel_name.as_str()),
            name => (kernel.kernel_id, name),
        })
        .collect();
    let kernel = |id: u64| {
        let name = kernels.get(&id).copied();
        name.ok_or_else(|| wrong(format!("kernel {id} has no name")))
    };
    let duration = |start: u64, end: u64| {
        let ns = end.checked_sub(start).map(|ns| ns as f64);
        ns.ok_or_else(|| wrong(format!("a record ends at {end}, before its start {start}")))
    };
    for agent in process.agents.iter().filter(|agent| agent.simd_count > 0) {
        let units = agent.cu_count.to_string();
        csv::add_device(&mut found.devices, &agent.name, &agent.product_name, &units);
    }
    for dispatch in &process.buffer_records.kernel_dispatch {
        let ns = duration(dispatch.start_timestamp, dispatch.end_timestamp)?;
        found
            .kernels
            .add(kernel(dispatch.dispatch_info.kernel_id)?, ns);
    }
    let records = &process.buffer_records;
    let calls = records.hip_api.iter().chain(&records.hsa_api);
    let calls = calls.map(|call| (call, false));
    let copies = records.memory_copy.iter().map(|copy| (copy, true));
    for (call, is_copy) in calls.chain(copies) {
        let kind = process.strings.buffer_records.get(call.kind);
        let name = kind.and_then(|kind| kind.operations.get(call.operation));
        let name = name.ok_or_else(|| {
            wrong(format!(
                "call {} of kind {} has no name",
                call.operation, call.kind
            ))
        })?;
        let times = match is_copy {
            true => &mut found.copies,
            false => &mut found.calls,
        };
        times.add(name, duration(call.start_timestamp, call.end_timestamp)?);
    }
    let names: HashMap<u64, &str> = process
        .counters
        .iter()
        .map(|counter| (counter.id.handle, counter.name.as_str()))
        .collect();
    for counted in &process.callback_records.counter_collection {
        let name = kernel(counted.dispatch_data.dispatch_info.kernel_id)?;
        let mut sums: HashMap<u64, f64> = HashMap::new();
        for record in &counted.records {
            *sums.entry(record.counter_id.handle).or_default() += record.value;
        }
        for (id, sum) in sums {
            let counter = names
                .get(&id)
                .ok_or_else(|| wrong(format!("counter {id} has no name")))?;
            found.counters.add(name, counter, None, sum);
        }
        let (start, end) = (
            counted.dispatch_data.start_timestamp,
            counted.dispatch_data.end_timestamp,
        );
        if end > 0 {
            found.counted.add(name, duration(start, end)?);
        }
    }
    Ok(())
}
