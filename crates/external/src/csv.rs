//! Reads the tools' CSV tables (RFC 4180) by column name.
//!
//! A table is read record by record and may be of any length; the length of a record and its columns are limited.

use std::io::{self, BufRead, Read};

use super::error::ExternalError;

/// The longest record in bytes. Kernel names are the longest fields; templates make them kilobytes long.
const MAX_RECORD: usize = 1 << 20;

/// More columns than any tool writes.
const MAX_COLUMNS: usize = 20_000;

/// A table with a header row.
pub(super) struct Table<R: BufRead> {
    records: csv::Reader<Limited<R>>,
    tool: &'static str,
    what: String,
    header: Vec<String>,
    /// Lines up to and including the header.
    header_lines: u64,
}

/// A row with the names of its columns.
pub(super) struct Row<'a> {
    header: &'a [String],
    fields: Vec<String>,
    tool: &'static str,
    what: &'a str,
    line: u64,
}

/// Stops a reader after `left` bytes, so that one record cannot fill the memory.
struct Limited<R> {
    inner: R,
    left: usize,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let message = format!("a record is longer than {MAX_RECORD} bytes");
            return Err(io::Error::other(message));
        }
        let n = buf.len().min(self.left);
        let read = self.inner.read(&mut buf[..n])?;
        self.left -= read;
        Ok(read)
    }
}

/// A reader of records with any number of fields.
fn records<R: Read>(reader: R) -> csv::Reader<R> {
    csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(reader)
}

/// The fields of a record as text. Bytes that are not UTF-8 become U+FFFD.
fn fields(record: &csv::ByteRecord) -> Result<Vec<String>, String> {
    if record.len() > MAX_COLUMNS {
        return Err(format!("it has more than {MAX_COLUMNS} columns"));
    }
    let text = |field| String::from_utf8_lossy(field).into_owned();
    Ok(record.iter().map(text).collect())
}

impl<R: BufRead> Table<R> {
    /// Reads up to the first line that `is_header` accepts, and skips the messages of the tool before it.
    ///
    /// # Errors
    /// If there is no header, or a line cannot be read.
    pub(super) fn open(
        mut reader: R,
        tool: &'static str,
        what: impl Into<String>,
        is_header: impl Fn(&[String]) -> bool,
    ) -> Result<Table<R>, ExternalError> {
        let what = what.into();
        let mut line = Vec::new();
        let mut n_lines = 0;
        loop {
            n_lines += 1;
            let malformed = |reason| {
                let reason = format!("line {n_lines}: {reason}");
                ExternalError::malformed(tool, &what, reason)
            };
            line.clear();
            let read = (&mut reader)
                .take(MAX_RECORD as u64)
                .read_until(b'\n', &mut line);
            if read.map_err(|error| malformed(error.to_string()))? == 0 {
                return Err(malformed("it has no header".to_string()));
            }
            if line.len() >= MAX_RECORD {
                return Err(malformed(format!(
                    "a record is longer than {MAX_RECORD} bytes"
                )));
            }
            // Each line is parsed by itself: a quote in a message must not swallow the header.
            let mut record = csv::ByteRecord::new();
            let parsed = records(&line[..]).read_byte_record(&mut record);
            parsed.map_err(|error| malformed(error.to_string()))?;
            let header = fields(&record).map_err(malformed)?;
            if is_header(&header) {
                let limited = Limited {
                    inner: reader,
                    left: 0,
                };
                return Ok(Table {
                    records: records(limited),
                    tool,
                    what,
                    header,
                    header_lines: n_lines,
                });
            }
        }
    }

    pub(super) fn header(&self) -> &[String] {
        &self.header
    }

    /// Returns the next row, or `None` at the end. Empty lines are skipped.
    pub(super) fn next_row(&mut self) -> Result<Option<Row<'_>>, ExternalError> {
        self.records.get_mut().left = MAX_RECORD;
        let mut record = csv::ByteRecord::new();
        let read = self.records.read_byte_record(&mut record);
        let line = self.header_lines + record.position().map_or(0, csv::Position::line);
        let malformed = |reason| {
            let reason = format!("line {line}: {reason}");
            ExternalError::malformed(self.tool, &self.what, reason)
        };
        if !read.map_err(|error| malformed(error.to_string()))? {
            return Ok(None);
        }
        Ok(Some(Row {
            fields: fields(&record).map_err(malformed)?,
            header: &self.header,
            tool: self.tool,
            what: &self.what,
            line,
        }))
    }
}

impl Row<'_> {
    /// Returns the field of column `name`, or `None` if there is no such column or the row is too short.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let at = self.header.iter().position(|column| column == name)?;
        self.fields.get(at).map(String::as_str)
    }

    /// Returns the field of column `name`, or an error if it is missing.
    pub(super) fn text(&self, name: &str) -> Result<&str, ExternalError> {
        self.get(name).ok_or_else(|| self.wrong(name, "is missing"))
    }

    /// Returns the number in column `name`.
    pub(super) fn number(&self, name: &str) -> Result<f64, ExternalError> {
        let text = self.text(name)?;
        number(text).ok_or_else(|| self.wrong(name, &format!("is no number: \"{}\"", clip(text))))
    }

    /// Returns the 64-bit integer in column `name`; an f64 would keep only 53 bits of it.
    fn whole(&self, name: &str, what: &str) -> Result<u64, ExternalError> {
        let text = self.text(name)?;
        let value = text.trim().parse::<u64>();
        value.map_err(|_| self.wrong(name, &format!("is no {what}: \"{}\"", clip(text))))
    }

    /// Returns the id in column `name`.
    pub(super) fn id(&self, name: &str) -> Result<i64, ExternalError> {
        // The upper half is as good as any other number.
        Ok(self.whole(name, "id")? as i64)
    }

    /// Returns the time in column `name`, in nanoseconds.
    pub(super) fn time(&self, name: &str) -> Result<i64, ExternalError> {
        let time = self.whole(name, "time")?;
        i64::try_from(time).map_err(|_| self.wrong(name, "is no time"))
    }

    /// Returns the nanoseconds between two columns.
    pub(super) fn between(&self, start: &str, end: &str) -> Result<f64, ExternalError> {
        let (start_ns, end_ns) = (self.whole(start, "time")?, self.whole(end, "time")?);
        let ns = end_ns.checked_sub(start_ns);
        ns.map(|ns| ns as f64)
            .ok_or_else(|| self.wrong(end, &format!("is before {start}")))
    }

    pub(super) fn fields(&self) -> &[String] {
        &self.fields
    }

    fn wrong(&self, column: &str, reason: &str) -> ExternalError {
        let reason = format!("line {}: {column} {reason}", self.line);
        ExternalError::malformed(self.tool, self.what, reason)
    }
}

fn clip(text: &str) -> String {
    super::process::printable(text, 40)
}

/// Parses a finite number, with optional commas between thousands.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let value = match text.parse::<f64>() {
        Ok(value) => value,
        Err(_) if text.contains(',') => text.replace(',', "").parse().ok()?,
        Err(_) => return None,
    };
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_records_of_rfc_4180() {
        for (line, expected) in [
            ("a,b,c", vec!["a", "b", "c"]),
            (",", vec!["", ""]),
            (
                "\"a,b\",\"say \"\"hi\"\"\",3",
                vec!["a,b", "say \"hi\"", "3"],
            ),
            ("\"void k<1, 2>(float*)\"", vec!["void k<1, 2>(float*)"]),
            ("\"open", vec!["open"]),
        ] {
            let text = format!("h\n{line}");
            let mut table = Table::open(text.as_bytes(), "tool", "text", |_| true).unwrap();
            let row = table.next_row().unwrap().unwrap();
            assert_eq!(row.fields(), expected, "{line}");
        }
    }

    #[test]
    fn rejects_long_and_wide_records() {
        let open = |text: Vec<u8>| {
            let mut bytes = b"h\n".to_vec();
            bytes.extend(text);
            let mut table = Table::open(io::Cursor::new(bytes), "tool", "text", |_| true).unwrap();
            table.next_row().err().unwrap().to_string()
        };
        let mut quoted = vec![b'x'; MAX_RECORD + 10];
        quoted[0] = b'"';
        assert!(open(quoted).contains("longer than"));
        assert!(open(vec![b','; MAX_COLUMNS + 1]).contains("columns"));
        // The limit is per record, not per file.
        let many = [b"h\n".to_vec(), b"1,2\n".repeat(MAX_RECORD / 2)].concat();
        let mut table = Table::open(&many[..], "tool", "text", |_| true).unwrap();
        let mut n = 0;
        while table.next_row().unwrap().is_some() {
            n += 1;
        }
        assert_eq!(n, MAX_RECORD / 2);
    }

    #[test]
    fn reads_rows_by_column_name() {
        let text = "==PROF== 5\" talk\n\"Name\",\"Start\",\"End\"\r\n\n\"a\nb\",100,1100\nshort\nc,5,4\nd,1e3,x\n";
        let header = |fields: &[String]| fields.first().is_some_and(|name| name == "Name");
        let mut table = Table::open(text.as_bytes(), "tool", "text", header).unwrap();
        assert_eq!(table.header().len(), 3);
        let row = table.next_row().unwrap().unwrap();
        assert_eq!(row.text("Name").unwrap(), "a\nb");
        assert_eq!(row.between("Start", "End").unwrap(), 1000.0);
        assert_eq!(row.get("Other"), None);
        for part in [
            "Start is missing",
            "End is before Start",
            "Start is no time: \"1e3\"",
        ] {
            let row = table.next_row().unwrap().unwrap();
            let error = row.between("Start", "End").unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("text is not what tool writes"),
                "{error}"
            );
        }
        assert!(table.next_row().unwrap().is_none());
        let none = Table::open(&b"talk\n"[..], "tool", "text", header)
            .err()
            .unwrap();
        assert!(none.to_string().contains("no header"));
        let long = vec![b'x'; MAX_RECORD + 1];
        let long = Table::open(&long[..], "tool", "text", header)
            .err()
            .unwrap();
        assert!(long.to_string().contains("longer than"));
    }

    #[test]
    fn parses_numbers_with_commas() {
        for (text, value) in [
            ("1.5", Some(1.5)),
            ("1,234,567.25", Some(1_234_567.25)),
            (" 7 ", Some(7.0)),
            ("1e-3", Some(0.001)),
            ("n/a", None),
            ("", None),
            ("inf", None),
            ("nan", None),
        ] {
            assert_eq!(number(text), value, "{text}");
        }
    }
}
