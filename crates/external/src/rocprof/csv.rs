//! rocprofv3's CSV: one row per dispatch, call, or counter of a dispatch.
//!
//! ROCm 6.2 to 7 added columns (streams, register counts, times of counted kernels); the columns read here kept their
//! names. Times are in nanoseconds. A kernel and the HIP call that launched it have the same correlation id.

use std::io::BufRead;

use super::TOOL;
use super::ranges::Ranges;
use crate::csv::Table;
use crate::error::ExternalError;
use crate::table::{Counters, Times};

fn table<R: BufRead>(reader: R, what: &str, column: &str) -> Result<Table<R>, ExternalError> {
    Table::open(reader, TOOL, what, |fields| {
        fields.iter().any(|field| field == column)
    })
}

/// `*_kernel_trace.csv`. `ranges` are given if the run has some.
pub(super) fn kernels(
    reader: impl BufRead,
    what: &str,
    times: &mut Times,
    mut ranges: Option<&mut Ranges>,
) -> Result<(), ExternalError> {
    let mut table = table(reader, what, "Kernel_Name")?;
    while let Some(row) = table.next_row()? {
        let ns = row.between("Start_Timestamp", "End_Timestamp")?;
        times.add(row.text("Kernel_Name")?, ns);
        if let Some(ranges) = &mut ranges {
            ranges.kernel(row.id("Correlation_Id")?, ns);
        }
    }
    Ok(())
}

/// `*_hip_api_trace.csv`, `*_hsa_api_trace.csv`.
pub(super) fn calls(
    reader: impl BufRead,
    what: &str,
    times: &mut Times,
    mut ranges: Option<&mut Ranges>,
) -> Result<(), ExternalError> {
    let mut table = table(reader, what, "Function")?;
    while let Some(row) = table.next_row()? {
        let ns = row.between("Start_Timestamp", "End_Timestamp")?;
        times.add(row.text("Function")?, ns);
        if let Some(ranges) = &mut ranges {
            let (thread, start) = (row.id("Thread_Id")?, row.time("Start_Timestamp")?);
            ranges.call(row.id("Correlation_Id")?, thread, start);
        }
    }
    Ok(())
}

/// `*_marker_api_trace.csv`: `Function` is the name that the program gave. A range of the whole process has thread 0.
pub(super) fn markers(
    reader: impl BufRead,
    what: &str,
    ranges: &mut Ranges,
) -> Result<(), ExternalError> {
    let mut table = table(reader, what, "Function")?;
    while let Some(row) = table.next_row()? {
        row.between("Start_Timestamp", "End_Timestamp")?;
        let times = (row.time("Start_Timestamp")?, row.time("End_Timestamp")?);
        // A mark has no length.
        if times.0 < times.1 {
            ranges.range(row.id("Thread_Id")?, times, row.text("Function")?);
        }
    }
    Ok(())
}

/// `*_memory_copy_trace.csv`.
pub(super) fn copies(
    reader: impl BufRead,
    what: &str,
    times: &mut Times,
) -> Result<(), ExternalError> {
    let mut table = table(reader, what, "Direction")?;
    while let Some(row) = table.next_row()? {
        let ns = row.between("Start_Timestamp", "End_Timestamp")?;
        times.add(row.text("Direction")?, ns);
    }
    Ok(())
}

/// `*_counter_collection.csv`. A dispatch has a row per counter; its time is counted once.
pub(super) fn counters(
    reader: impl BufRead,
    what: &str,
    counters: &mut Counters,
    times: &mut Times,
) -> Result<(), ExternalError> {
    let mut table = table(reader, what, "Counter_Name")?;
    let mut last = None;
    while let Some(row) = table.next_row()? {
        let kernel = row.text("Kernel_Name")?;
        counters.add(
            kernel,
            row.text("Counter_Name")?,
            None,
            row.number("Counter_Value")?,
        );
        let dispatch = row.text("Dispatch_Id")?;
        // ROCm 6.2 has no times here.
        if row.get("Start_Timestamp").is_some() && last.as_deref() != Some(dispatch) {
            times.add(kernel, row.between("Start_Timestamp", "End_Timestamp")?);
            last = Some(dispatch.to_string());
        }
    }
    Ok(())
}

/// `*_agent_info.csv`: the GPUs.
pub(super) fn agents(
    reader: impl BufRead,
    what: &str,
    devices: &mut Vec<String>,
) -> Result<(), ExternalError> {
    let mut table = table(reader, what, "Agent_Type")?;
    while let Some(row) = table.next_row()? {
        if row.text("Agent_Type")? != "GPU" {
            continue;
        }
        let (name, product) = (
            row.text("Name")?,
            row.get("Product_Name").unwrap_or_default(),
        );
        let units = row.get("Cu_Count").unwrap_or("?");
        add_device(devices, name, product, units);
    }
    Ok(())
}

/// Adds the description of a GPU once, up to more GPUs than any machine has.
pub(super) fn add_device(devices: &mut Vec<String>, name: &str, product: &str, units: &str) {
    let device = format!("{product} ({name}, {units} compute units)");
    let device = crate::process::printable(device.trim(), 200);
    if !devices.contains(&device) && devices.len() < 64 {
        devices.push(device);
    }
}
