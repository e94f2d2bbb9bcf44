//! Tables as the tools write them: RFC 4180's CSV, by the names of its columns.
//!
//! A table is read record by record, so that its size is bounded by time alone; records and files are bounded.

use std::io::{BufRead, Read};

use super::error::ExternalError;

/// Longest record. Kernels' names are the longest fields; templates make them kilobytes long.
const MAX_RECORD: usize = 1 << 20;

/// More columns than any tool writes.
const MAX_COLUMNS: usize = 20_000;

/// A table with a header.
pub(super) struct Table<R> {
    reader: R,
    tool: &'static str,
    what: String,
    header: Vec<String>,
    line: usize,
}

/// A row beside its header.
pub(super) struct Row<'a> {
    header: &'a [String],
    fields: Vec<String>,
    tool: &'static str,
    what: &'a str,
    line: usize,
}

impl<R: BufRead> Table<R> {
    /// Reads up to the first record that `is_header` takes; what stands before it is the tool's talk.
    ///
    /// # Errors
    /// There is no such record, or it cannot be read.
    pub(super) fn open(
        reader: R,
        tool: &'static str,
        what: impl Into<String>,
        is_header: impl Fn(&[String]) -> bool,
    ) -> Result<Table<R>, ExternalError> {
        let mut table = Table {
            reader,
            tool,
            what: what.into(),
            header: Vec::new(),
            line: 0,
        };
        let mut line = Vec::new();
        // A quote in the talk opens nothing.
        while table.add_line(&mut line)? {
            let fields = table.split(&line)?;
            if is_header(&fields) {
                table.header = fields;
                return Ok(table);
            }
            line.clear();
        }
        Err(table.wrong("it has no header".to_string()))
    }

    pub(super) fn header(&self) -> &[String] {
        &self.header
    }

    /// The next row; `None` at the end.
    pub(super) fn next_row(&mut self) -> Result<Option<Row<'_>>, ExternalError> {
        let fields = loop {
            match self.record()? {
                None => return Ok(None),
                // An empty line.
                Some(fields) if fields.iter().all(String::is_empty) && fields.len() < 2 => continue,
                Some(fields) => break fields,
            }
        };
        Ok(Some(Row {
            header: &self.header,
            fields,
            tool: self.tool,
            what: &self.what,
            line: self.line,
        }))
    }

    fn wrong(&self, reason: String) -> ExternalError {
        ExternalError::malformed(
            self.tool,
            &self.what,
            format!("line {}: {reason}", self.line),
        )
    }

    /// One record's fields. A line break inside of quotes belongs to its field.
    fn record(&mut self) -> Result<Option<Vec<String>>, ExternalError> {
        let mut bytes = Vec::new();
        while self.add_line(&mut bytes)? {
            if bytes.iter().filter(|byte| **byte == b'"').count() % 2 == 0 {
                break;
            }
        }
        match bytes.is_empty() {
            true => Ok(None),
            false => self.split(&bytes).map(Some),
        }
    }

    /// Adds the next line, with its end; whether there was one.
    fn add_line(&mut self, bytes: &mut Vec<u8>) -> Result<bool, ExternalError> {
        let left = (MAX_RECORD - bytes.len()) as u64;
        let read = self.reader.by_ref().take(left).read_until(b'\n', bytes);
        let n = read
            .map_err(|error| ExternalError::malformed(self.tool, &self.what, error.to_string()))?;
        self.line += usize::from(n > 0);
        match bytes.len() >= MAX_RECORD {
            true => Err(self.wrong(format!("a record is longer than {MAX_RECORD} bytes"))),
            false => Ok(n > 0),
        }
    }

    fn split(&self, bytes: &[u8]) -> Result<Vec<String>, ExternalError> {
        let text = String::from_utf8_lossy(bytes);
        let fields = fields(text.trim_end_matches(['\n', '\r']));
        match fields.len() > MAX_COLUMNS {
            true => Err(self.wrong(format!("it has more than {MAX_COLUMNS} columns"))),
            false => Ok(fields),
        }
    }
}

impl Row<'_> {
    /// The field below the column called `name`; `None` if there is no such column or the row is too short.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let at = self.header.iter().position(|column| column == name)?;
        self.fields.get(at).map(String::as_str)
    }

    /// The same, required.
    pub(super) fn text(&self, name: &str) -> Result<&str, ExternalError> {
        self.get(name).ok_or_else(|| self.wrong(name, "is missing"))
    }

    /// A number below the column called `name`.
    pub(super) fn number(&self, name: &str) -> Result<f64, ExternalError> {
        let text = self.text(name)?;
        number(text).ok_or_else(|| self.wrong(name, &format!("is no number: \"{}\"", clip(text))))
    }

    /// Nanoseconds between two columns. They are whole numbers of 64 bits, of which a double keeps only 53.
    pub(super) fn between(&self, start: &str, end: &str) -> Result<f64, ExternalError> {
        let whole = |name: &str| {
            let text = self.text(name)?;
            let value = text.trim().parse::<u64>();
            value.map_err(|_| self.wrong(name, &format!("is no time: \"{}\"", clip(text))))
        };
        let (start_ns, end_ns) = (whole(start)?, whole(end)?);
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

/// A finite number, perhaps with commas between its thousands.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let value = match text.parse::<f64>() {
        Ok(value) => value,
        Err(_) if text.contains(',') => text.replace(',', "").parse().ok()?,
        Err(_) => return None,
    };
    value.is_finite().then_some(value)
}

/// The fields of a record. `""` inside of quotes is one.
fn fields(record: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = record.chars().peekable();
    while let Some(c) = chars.next() {
        let last = fields.len() - 1;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                fields[last].push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields[last].push(c),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_rfc_4180_s() {
        for (record, expected) in [
            ("a,b,c", vec!["a", "b", "c"]),
            ("", vec![""]),
            (",", vec!["", ""]),
            (
                "\"a,b\",\"say \"\"hi\"\"\",3",
                vec!["a,b", "say \"hi\"", "3"],
            ),
            ("\"void k<1, 2>(float*)\"", vec!["void k<1, 2>(float*)"]),
            ("\"open", vec!["open"]),
        ] {
            assert_eq!(fields(record), expected, "{record}");
        }
    }

    #[test]
    fn rows_go_by_their_header() {
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
    fn numbers_may_have_commas() {
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
