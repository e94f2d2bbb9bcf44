//! rocprofv3's database, `*_results.db`: rocpd, a SQLite file, which is the default format since ROCm 7.
//!
//! Tables and columns are those of `source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql` in rocprofiler-sdk, versions
//! 3.0.0 to 3.0.5 and 4.1.0, and of `rocpd_v4.0_tables.sql` of ROCm's profiler-hub. Since version 4.0, threads and
//! categories are in tables of their own; in 4.0, times are, too. The name of a table ends with the id of the process that
//! wrote it, and a file may hold several processes. A counter has a row per hardware instance; they are summed, as in the
//! CSV.
//!
//! A database is code as much as data, so little of SQLite is used: every table is read whole and row by row, without
//! views, triggers, indexes, joins and conditions. Names are looked up here. SQLite's limits bound the length of a row
//! and, in proportion to the file's size, the number of its steps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row};

use super::ranges::Ranges;
use super::{Found, TOOL, csv, launch};
use crate::error::ExternalError;
use crate::process::printable;
use crate::table::Launch;

/// First bytes of a SQLite file.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Largest file.
const MAX_MIB: u64 = 4096;

/// Most rows read from all tables.
const MAX_ROWS: u64 = 20_000_000;

/// Most tables, views and indexes.
const MAX_OBJECTS: usize = 10_000;

/// Most processes in a file.
const MAX_PROCESSES: usize = 256;

/// Longest row or text in bytes, and longest statement of the schema.
const MAX_ROW: i32 = 1 << 20;
const MAX_STATEMENT: i32 = 1 << 16;

/// Most bytes of text read from all tables.
const MAX_TEXT: u64 = 512 << 20;

/// Bytes kept of a name.
const MAX_NAME: usize = 4096;

/// Steps of SQLite's virtual machine between two calls of the progress handler.
const STEPS: u64 = 1000;

/// Steps for reading the schema. Its time grows with the square of its length.
const SCHEMA_STEPS: u64 = 200_000;

/// Categories of ranges: ROCm 7.0's, and that of later versions.
const MARKERS: [&str; 2] = ["MARKER_CORE_API", "MARKER_CORE_RANGE_API"];

/// The correlation id of no call.
const NO_CALL: i64 = -1;

/// Thread of ranges and calls that have none.
const NO_THREAD: i64 = -1;

/// Advice about files that are too large.
const SHORTER: &str = "profile a shorter run";

/// Adds the contents of the file at `path` to `found`.
pub(super) fn read(path: &Path, found: &mut Found) -> Result<(), ExternalError> {
    let what = path.display().to_string();
    let io = |error| ExternalError::io("read", path, error);
    let facts = fs::metadata(path).map_err(io)?;
    if !facts.is_file() {
        return Err(ExternalError::malformed(TOOL, what, "it is not a file"));
    }
    if facts.len() > MAX_MIB << 20 {
        return Err(ExternalError::TooLarge {
            what,
            limit_mib: MAX_MIB,
            hint: SHORTER,
        });
    }
    let mut start = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAGIC.len() as u64)
        .read_to_end(&mut start)
        .map_err(io)?;
    check_magic(&start, &what)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // A relative path may look like a URI.
    let db = Connection::open_with_flags(std::path::absolute(path).map_err(io)?, flags);
    let db = db.map_err(|error| wrong(&what, &error))?;
    Database::new(db, facts.len(), &what)?.read(found)
}

/// Adds the contents of a file in memory to `found`.
pub(super) fn read_bytes(bytes: &[u8], what: &str, found: &mut Found) -> Result<(), ExternalError> {
    check_magic(bytes, what)?;
    let open = || {
        let mut db = Connection::open_in_memory()?;
        db.deserialize_read_exact("main", bytes, bytes.len(), true)?;
        Ok(db)
    };
    let db = open().map_err(|error| wrong(what, &error))?;
    Database::new(db, bytes.len() as u64, what)?.read(found)
}

fn check_magic(start: &[u8], what: &str) -> Result<(), ExternalError> {
    match start.starts_with(MAGIC) {
        true => Ok(()),
        false => Err(ExternalError::malformed(
            TOOL,
            what,
            "it is not a SQLite database",
        )),
    }
}

fn wrong(what: &str, error: &rusqlite::Error) -> ExternalError {
    let reason = match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => {
            "reading it takes more steps than a file of its size needs; is it damaged, or does a file with `-wal` at its \
             end belong to it?"
                .to_string()
        }
        _ => printable(&error.to_string(), 200),
    };
    ExternalError::malformed(TOOL, what, reason)
}

/// Makes what runs in a database end after `steps`.
fn stop_after(db: &mut Connection, steps: u64) -> rusqlite::Result<()> {
    let mut calls_left = steps / STEPS;
    let stop = move || {
        calls_left = calls_left.saturating_sub(1);
        calls_left == 0
    };
    db.progress_handler(STEPS as i32, Some(stop))
}

/// An open file.
struct Database<'a> {
    db: Connection,
    what: &'a str,
    rows_left: u64,
    /// Bytes of text that may still be read: rows of a damaged file can share their text.
    text_left: u64,
}

impl<'a> Database<'a> {
    fn new(mut db: Connection, bytes: u64, what: &'a str) -> Result<Database<'a>, ExternalError> {
        let mut protect = || {
            for (setting, on) in [
                (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
                (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
                (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
                (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
            ] {
                db.set_db_config(setting, on)?;
            }
            for (limit, most) in [
                (Limit::SQLITE_LIMIT_LENGTH, MAX_ROW),
                (Limit::SQLITE_LIMIT_SQL_LENGTH, MAX_STATEMENT),
                (Limit::SQLITE_LIMIT_COLUMN, 500),
                (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
                (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 50),
                (Limit::SQLITE_LIMIT_VDBE_OP, 25_000),
                (Limit::SQLITE_LIMIT_ATTACHED, 0),
                (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
                (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
            ] {
                db.set_limit(limit, most)?;
            }
            stop_after(&mut db, SCHEMA_STEPS)?;
            db.execute_batch("PRAGMA query_only = ON; PRAGMA cell_size_check = ON;")?;
            // Reads the schema.
            db.prepare("SELECT 1 FROM sqlite_schema")?;
            // A row takes five to ten steps and at least twenty bytes.
            stop_after(&mut db, SCHEMA_STEPS + bytes)
        };
        protect().map_err(|error| wrong(what, &error))?;
        Ok(Database {
            db,
            what,
            rows_left: MAX_ROWS,
            text_left: bytes.min(MAX_TEXT),
        })
    }

    fn read(mut self, found: &mut Found) -> Result<(), ExternalError> {
        let tables = self.tables()?;
        let metadata = tables.iter().filter_map(|name| {
            let process = name.strip_prefix("rocpd_metadata")?;
            is_process(process).then(|| process.to_string())
        });
        let mut processes: Vec<String> = metadata.collect();
        processes.sort();
        if processes.is_empty() {
            return Err(self.malformed("it has no table rocpd_metadata; is it a rocpd database?"));
        }
        if processes.len() > MAX_PROCESSES {
            return Err(self.malformed(&format!("it has more than {MAX_PROCESSES} processes")));
        }
        for process in &processes {
            self.read_process(&tables, process, found)?;
        }
        Ok(())
    }

    /// Returns the names of the ordinary tables.
    fn tables(&mut self) -> Result<HashSet<String>, ExternalError> {
        let mut found = HashSet::new();
        let mut virtual_table = None;
        let columns = ["type", "name", "rootpage"];
        self.rows("sqlite_schema", &columns, |row| {
            if row.text(0)? == "table" {
                let name = row.text(1)?;
                // Virtual tables run code of their own and have no page.
                if row.whole(2)? > 0 {
                    found.insert(name);
                } else if name.starts_with("rocpd_") {
                    virtual_table = Some(name);
                }
            }
            match found.len() > MAX_OBJECTS {
                true => Err(format!("it has more than {MAX_OBJECTS} tables")),
                false => Ok(()),
            }
        })?;
        match virtual_table {
            None => Ok(found),
            Some(name) => Err(self.malformed(&format!(
                "{} is a virtual table, which is not read; convert the file with `rocpd convert --output-format csv`",
                printable(&name, 100)
            ))),
        }
    }

    fn read_process(
        &mut self,
        tables: &HashSet<String>,
        process: &str,
        found: &mut Found,
    ) -> Result<(), ExternalError> {
        let table = |name: &str| {
            let name = format!("{name}{process}");
            tables.contains(&name).then_some(name)
        };
        let needed = |name: &str| {
            table(name).ok_or_else(|| {
                let reason = format!("it has no table {name}{process}");
                ExternalError::malformed(TOOL, self.what, reason)
            })
        };
        let (strings, symbols, dispatches) = (
            needed("rocpd_string")?,
            needed("rocpd_info_kernel_symbol")?,
            needed("rocpd_kernel_dispatch")?,
        );
        if let Some(agents) = table("rocpd_info_agent") {
            self.agents(&agents, found)?;
        }
        let mut kernels: HashMap<i64, String> = HashMap::new();
        self.rows(&symbols, &["id", "display_name", "kernel_name"], |row| {
            let (display, plain) = (row.text(1)?, row.text(2)?);
            let name = if display.is_empty() { plain } else { display };
            kernels.insert(row.whole(0)?, name);
            Ok(())
        })?;
        let kernel = |id: i64| match kernels.get(&id) {
            Some(name) => Ok(name.as_str()),
            // The tool's id of a kernel that it does not know.
            None if id == 0 => Ok("(unknown)"),
            None => Err(format!("kernel {id} has no name")),
        };
        let counted = match (table("rocpd_info_pmc"), table("rocpd_pmc_event")) {
            (Some(names), Some(events)) => self.counters(&names, &events)?,
            _ => Counted::default(),
        };
        let times = match table("rocpd_timestamp") {
            Some(values) => Times::Apart(self.numbers(&values, "value")?),
            None => Times::Within,
        };
        let mut counted_kernels: HashMap<i64, i64> = HashMap::new();
        let [start, end] = times.columns();
        let columns = ["kernel_id", start, end, "event_id"];
        self.rows(&dispatches, &columns, |row| {
            let (id, span, event) = (row.whole(0)?, times.span(row, 1)?, row.maybe(3)?);
            let event = event.filter(|event| counted.events.contains(event));
            // Counting serializes kernels, which changes their times.
            let found = match event {
                Some(_) => &mut found.counted,
                None => &mut found.kernels,
            };
            found.add(kernel(id)?, span.ns);
            if let Some(event) = event {
                counted_kernels.insert(event, id);
            }
            Ok(())
        })?;
        for ((event, counter), value) in &counted.sums {
            // Other events, such as page faults, have counters too.
            let Some(id) = counted_kernels.get(event) else {
                continue;
            };
            let name = kernel(*id).map_err(|reason| self.malformed(&reason))?;
            let (counter, unit) = counted.names.get(counter).ok_or_else(|| {
                let reason = format!("counter {counter} has no name");
                ExternalError::malformed(TOOL, self.what, reason)
            })?;
            let unit = (!unit.is_empty()).then_some(unit.as_str());
            found.counters.add(name, counter, unit, *value);
        }
        let names = self.texts(&strings, "string")?;
        let regions = table("rocpd_region");
        if let (Some(events), Some(regions)) = (table("rocpd_event"), &regions) {
            let tables = RangeTables {
                events: &events,
                regions,
                tracks: table("rocpd_track"),
                categories: table("rocpd_info_category"),
                dispatches: &dispatches,
            };
            self.ranges(&tables, &times, &names, &counted, found)?;
        }
        self.host(&names, &times, regions, table("rocpd_memory_copy"), found)
    }

    /// Returns the numbers of a column by the ids of their rows, except those that are NULL.
    fn numbers(&mut self, table: &str, column: &str) -> Result<HashMap<i64, i64>, ExternalError> {
        let mut numbers = HashMap::new();
        self.rows(table, &["id", column], |row| {
            if let Some(number) = row.maybe(1)? {
                numbers.insert(row.whole(0)?, number);
            }
            Ok(())
        })?;
        Ok(numbers)
    }

    /// Returns the texts of a column by the ids of their rows.
    fn texts(&mut self, table: &str, column: &str) -> Result<HashMap<i64, String>, ExternalError> {
        let mut names = HashMap::new();
        self.rows(table, &["id", column], |row| {
            names.insert(row.whole(0)?, row.text(1)?);
            Ok(())
        })?;
        Ok(names)
    }

    /// Sums kernels by the ranges that they were launched in. An event has the correlation id (`stack_id`) of a call or a
    /// kernel, and the name of a range (`extdata`). Those that were counted belong to the range that the tool names.
    fn ranges(
        &mut self,
        tables: &RangeTables<'_>,
        times: &Times,
        names: &HashMap<i64, String>,
        counted: &Counted,
        found: &mut Found,
    ) -> Result<(), ExternalError> {
        let categories = match &tables.categories {
            Some(table) => Some(self.texts(table, "name")?),
            None => None,
        };
        let categories = categories.as_ref().unwrap_or(names);
        let is_marker = |category: Option<i64>| {
            let name = category.and_then(|category| categories.get(&category));
            name.is_some_and(|name| MARKERS.contains(&name.as_str()))
        };
        let mut messages: HashMap<i64, String> = HashMap::new();
        self.rows(tables.events, &["id", "category_id", "extdata"], |row| {
            if is_marker(row.maybe(1)?) {
                let facts: Option<serde_json::Value> = serde_json::from_slice(&row.bytes(2)?).ok();
                let message = facts
                    .as_ref()
                    .and_then(|facts| facts.get("message")?.as_str());
                if let Some(message) = message {
                    messages.insert(row.whole(0)?, message.to_string());
                }
            }
            Ok(())
        })?;
        if messages.is_empty() {
            return Ok(());
        }
        let correlations = self.numbers(tables.events, "stack_id")?;
        // Since version 4.0, threads are in a table of tracks. A range of the whole process has none.
        let columns = self.columns(tables.regions)?;
        let by_track = columns.iter().any(|name| name == "track_id");
        let threads = match &tables.tracks {
            Some(tracks) if by_track => self.numbers(tracks, "tid")?,
            _ => HashMap::new(),
        };
        let [start, end] = times.columns();
        let thread = if by_track { "track_id" } else { "tid" };
        let mut ranges = Ranges::default();
        let columns = ["name_id", start, end, thread, "event_id"];
        self.rows(tables.regions, &columns, |row| {
            let Some(event) = row.maybe(4)? else {
                return Ok(());
            };
            let (span, thread) = (times.span(row, 1)?, row.whole(3)?);
            let thread = match by_track {
                true => threads.get(&thread).copied().unwrap_or(NO_THREAD),
                false => thread,
            };
            let is_hip = |name: &String| name.starts_with("hip") || name.starts_with("__hip");
            if let Some(message) = messages.get(&event) {
                ranges.range(thread, (span.start, span.end), message);
            } else if let Some(correlation) = correlations.get(&event)
                && names.get(&row.whole(0)?).is_some_and(is_hip)
            {
                ranges.call(*correlation, thread, span.start);
            }
            Ok(())
        })?;
        // Kernels of which the tool itself says in which range they were launched.
        let mut named: Vec<(i64, f64)> = Vec::new();
        let mut is_named = false;
        let columns = ["event_id", start, end, "region_name_id"];
        self.rows(tables.dispatches, &columns, |row| {
            let (event, ns) = (row.maybe(0)?, times.span(row, 1)?.ns);
            let number = row.maybe(3)?.unwrap_or_default();
            let name = names.get(&number).filter(|name| !name.is_empty());
            if let Some(event) = event.filter(|event| counted.events.contains(event)) {
                if let Some(name) = name {
                    let launch = launch::launch(ns, |counter| counted.value(event, counter));
                    found.counted_operations.add(name, launch);
                }
                return Ok(());
            }
            is_named |= name.is_some();
            named.push((number, ns));
            let correlation = event.and_then(|event| correlations.get(&event));
            ranges.kernel(correlation.copied().unwrap_or(NO_CALL), ns);
            Ok(())
        })?;
        if !is_named {
            found.assign(ranges);
            return Ok(());
        }
        for (name, ns) in named {
            let name = names.get(&name).filter(|name| !name.is_empty());
            if let Some(name) = name {
                let launch = Launch {
                    ns,
                    ..Launch::default()
                };
                found.operations.add(name, launch);
            }
        }
        Ok(())
    }

    fn agents(&mut self, table: &str, found: &mut Found) -> Result<(), ExternalError> {
        let columns = ["type", "name", "product_name", "extdata"];
        self.rows(table, &columns, |row| {
            if row.text(0)? != "GPU" {
                return Ok(());
            }
            let facts: Option<serde_json::Value> = serde_json::from_slice(&row.bytes(3)?).ok();
            let units = facts.and_then(|facts| facts.get("cu_count")?.as_u64());
            let units = units.map_or("?".to_string(), |units| units.to_string());
            csv::add_device(&mut found.devices, &row.text(1)?, &row.text(2)?, &units);
            Ok(())
        })
    }

    fn counters(&mut self, names: &str, events: &str) -> Result<Counted, ExternalError> {
        let mut counted = Counted::default();
        self.rows(names, &["id", "name", "units"], |row| {
            let (name, unit) = (row.text(1)?, row.text(2)?);
            counted.names.insert(row.whole(0)?, (name, unit));
            Ok(())
        })?;
        // Since version 3.0.3, values sampled over time are in the same table.
        let sampled = self.columns(events)?.iter().any(|name| name == "sample_id");
        let columns: &[&str] = match sampled {
            true => &["event_id", "pmc_id", "value", "sample_id"],
            false => &["event_id", "pmc_id", "value"],
        };
        self.rows(events, columns, |row| {
            let sample = if sampled { row.maybe(3)? } else { None };
            let (Some(event), None) = (row.maybe(0)?, sample) else {
                return Ok(());
            };
            let (counter, value) = (row.whole(1)?, row.number(2)?);
            counted.events.insert(event);
            *counted.sums.entry((event, counter)).or_default() += value;
            if value != 0.0 {
                counted.counting.insert(counter);
            }
            Ok(())
        })?;
        Ok(counted)
    }

    /// Adds API calls and memory copies.
    fn host(
        &mut self,
        names: &HashMap<i64, String>,
        times: &Times,
        regions: Option<String>,
        copies: Option<String>,
        found: &mut Found,
    ) -> Result<(), ExternalError> {
        let name = |id: i64| {
            let name = names.get(&id).map(String::as_str);
            name.ok_or_else(|| format!("string {id} is missing"))
        };
        let [start, end] = times.columns();
        let columns = ["name_id", start, end];
        if let Some(regions) = regions {
            self.rows(&regions, &columns, |row| {
                let (name, ns) = (name(row.whole(0)?)?, times.span(row, 1)?.ns);
                // Regions are also the program's own markers and events of the driver.
                if ["hip", "__hip", "hsa_"]
                    .iter()
                    .any(|api| name.starts_with(api))
                {
                    found.calls.add(name, ns);
                }
                Ok(())
            })?;
        }
        if let Some(copies) = copies {
            self.rows(&copies, &columns, |row| {
                let (name, ns) = (name(row.whole(0)?)?, times.span(row, 1)?.ns);
                found.copies.add(name, ns);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns the columns of a table. Computed ones are refused: they run expressions of the file.
    fn columns(&self, table: &str) -> Result<Vec<String>, ExternalError> {
        let mut computed = false;
        let mut list = || {
            let mut statement = self.db.prepare(&format!("PRAGMA table_xinfo(`{table}`)"))?;
            let mut rows = statement.query([])?;
            let mut names = Vec::new();
            while let Some(row) = rows.next()? {
                names.push(row.get::<_, String>("name")?);
                computed |= row.get::<_, i64>("hidden")? != 0;
            }
            Ok(names)
        };
        let names = list().map_err(|error| wrong(self.what, &error))?;
        match computed {
            false => Ok(names),
            true => Err(self.malformed(&format!("{table} has computed columns"))),
        }
    }

    /// Calls `each` for every row. The names of table and columns need no quoting.
    fn rows(
        &mut self,
        table: &str,
        columns: &[&str],
        mut each: impl FnMut(&mut Cells<'_, '_>) -> Result<(), String>,
    ) -> Result<(), ExternalError> {
        self.columns(table)?;
        // Unlike double quotes, these never make a text of a missing column.
        let list = columns.join("`, `");
        let query = format!("SELECT `{list}` FROM `{table}` NOT INDEXED");
        let failed = |error| wrong(self.what, &error);
        let mut statement = self.db.prepare(&query).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let mut cells = Cells {
                row,
                columns,
                text_left: &mut self.text_left,
            };
            self.rows_left = self.rows_left.saturating_sub(1);
            let read = match self.rows_left {
                0 => Err(format!("it has more than {MAX_ROWS} rows; {SHORTER}")),
                _ => each(&mut cells),
            };
            read.map_err(|reason| {
                ExternalError::malformed(TOOL, self.what, format!("{table}: {reason}"))
            })?;
        }
        Ok(())
    }

    fn malformed(&self, reason: &str) -> ExternalError {
        ExternalError::malformed(TOOL, self.what, reason)
    }
}

/// Whether it is the end of a table's name: nothing, or `_` and an id.
fn is_process(end: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    end.is_empty() || (end.starts_with('_') && end.len() <= 100 && end.chars().all(plain))
}

/// The tables of a process by which kernels belong to ranges.
struct RangeTables<'a> {
    events: &'a str,
    regions: &'a str,
    tracks: Option<String>,
    categories: Option<String>,
    dispatches: &'a str,
}

/// When things began and ended.
enum Times {
    /// In their own rows.
    Within,
    /// In rows of `rocpd_timestamp`, by their ids: version 4.0.
    Apart(HashMap<i64, i64>),
}

/// In nanoseconds.
struct Span {
    start: i64,
    end: i64,
    /// Between them.
    ns: f64,
}

impl Times {
    fn columns(&self) -> [&'static str; 2] {
        match self {
            Times::Within => ["start", "end"],
            Times::Apart(_) => ["start_id", "end_id"],
        }
    }

    /// Returns the span whose start is in a column, and whose end in the next one.
    fn span(&self, row: &Cells<'_, '_>, i: usize) -> Result<Span, String> {
        let time = |i| {
            let value = row.whole(i)?;
            match self {
                Times::Within => Ok(value),
                Times::Apart(values) => {
                    let time = values.get(&value).copied();
                    time.ok_or_else(|| row.wrong(i, "is no timestamp"))
                }
            }
        };
        let (start, end) = (time(i)?, time(i + 1)?);
        let ns = end.checked_sub(start).filter(|ns| *ns >= 0);
        let ns = ns.ok_or_else(|| row.wrong(i + 1, "is before start"))? as f64;
        Ok(Span { start, end, ns })
    }
}

/// Counters of a process.
#[derive(Default)]
struct Counted {
    /// Name and unit.
    names: HashMap<i64, (String, String)>,
    /// Values by event and counter.
    sums: BTreeMap<(i64, i64), f64>,
    events: HashSet<i64>,
    /// The counters that are not zero everywhere.
    counting: HashSet<i64>,
}

impl Counted {
    /// Returns what a counter has for an event; `None` also if it never counts.
    fn value(&self, event: i64, counter: &str) -> Option<f64> {
        let values = self.sums.range((event, i64::MIN)..=(event, i64::MAX));
        let mut values = values.filter(|((_, id), _)| {
            let name = self.names.get(id).map(|(name, _)| name.as_str());
            name == Some(counter) && self.counting.contains(id)
        });
        values.next().map(|(_, value)| *value)
    }
}

/// The values of a row.
struct Cells<'r, 'a> {
    row: &'r Row<'r>,
    columns: &'a [&'a str],
    text_left: &'a mut u64,
}

impl Cells<'_, '_> {
    fn value(&self, i: usize) -> Result<ValueRef<'_>, String> {
        self.row
            .get_ref(i)
            .map_err(|error| printable(&error.to_string(), 100))
    }

    fn wrong(&self, i: usize, reason: &str) -> String {
        format!("{} {reason}", self.columns[i])
    }

    /// Returns an integer, or `None` for NULL.
    fn maybe(&self, i: usize) -> Result<Option<i64>, String> {
        match self.value(i)? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(value) => Ok(Some(value)),
            // The tool writes integers above 2^63 this way.
            ValueRef::Real(value) if value.is_finite() => Ok(Some(value as i64)),
            _ => Err(self.wrong(i, "is no number")),
        }
    }

    fn whole(&self, i: usize) -> Result<i64, String> {
        self.maybe(i)?.ok_or_else(|| self.wrong(i, "is missing"))
    }

    fn number(&self, i: usize) -> Result<f64, String> {
        match self.value(i)? {
            ValueRef::Integer(value) => Ok(value as f64),
            ValueRef::Real(value) if value.is_finite() => Ok(value),
            _ => Err(self.wrong(i, "is no number")),
        }
    }

    /// Returns a text; NULL is empty.
    fn bytes(&mut self, i: usize) -> Result<Vec<u8>, String> {
        let bytes = match self.value(i)? {
            ValueRef::Null => return Ok(Vec::new()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
            _ => return Err(self.wrong(i, "is no text")),
        };
        let left = self.text_left.checked_sub(bytes.len() as u64);
        *self.text_left =
            left.ok_or_else(|| "its texts are too long; is it damaged?".to_string())?;
        Ok(bytes)
    }

    fn text(&mut self, i: usize) -> Result<String, String> {
        let mut bytes = self.bytes(i)?;
        bytes.truncate(MAX_NAME);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
