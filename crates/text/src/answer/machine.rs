//! Reads answers whose reasoning and calls stand between marks.
//!
//! Text before a mark is passed on as soon as no mark can begin in it. After a mark, the syntaxes of the format read on
//! from there ([`super::formats::Syntax`]); each answers "more text is needed", "no call", or the call, and never changes
//! its mind when more text comes. So the result does not depend on how the text is cut.

use super::calls::{Found, MAX_HEAD_BYTES, read, tail};
use super::cursor::{Cursor, Read, Stop};
use super::formats::{Call, Place, Syntax, Thinking};
use super::json::{Progress, Scanner, unescape};
use super::tools::Tools;
use super::{CallDelta, Delta, Format, MAX_CALL_BYTES};

/// Longer white space is passed on even where it could be dropped.
const MAX_BLANK_BYTES: usize = 1 << 10;

pub(super) struct Machine {
    thinking: Option<&'static Thinking>,
    /// Marks that give no text.
    hidden: &'static [&'static str],
    /// How calls begin; none without tools.
    calls: &'static [Call],
    /// What content begins with that is a string in JSON; nothing without tools.
    quoted: Option<&'static str>,
    tools: Tools,
    /// What was not read yet.
    text: String,
    mode: Mode,
    out: Output,
    /// Length of the text at which a call in it is tried again.
    retry: usize,
}

/// What the next text is.
enum Mode {
    /// The first text, which may open the reasoning. The prompt may have opened it.
    First {
        opened: bool,
    },
    Reasoning,
    /// Content; `begins` says that there was none yet.
    Content {
        begins: bool,
    },
    /// Content that is a string in JSON.
    Quoted,
    /// What follows that string.
    Dropped,
    /// Objects of a list after the first one.
    Object {
        call: &'static Call,
    },
    Arguments {
        call: &'static Call,
        scanner: Scanner,
        is_list: bool,
    },
    /// After the arguments; inside the object that has them.
    Tail {
        call: &'static Call,
        in_object: bool,
        is_list: bool,
    },
}

/// What was passed on, and white space that may be dropped.
struct Output {
    blank: String,
    /// Whether white space before the next text is dropped.
    drop_blank: bool,
    n_calls: usize,
    id: Option<String>,
}

impl Machine {
    pub(super) fn new(format: Format, prompt: &str, tools: Tools) -> Self {
        let thinking = format.reasoning.thinking.as_ref();
        let opened = thinking.is_some_and(|thinking| thinking.is_open(prompt));
        let quoted = format.calls.quoted.filter(|_| !tools.is_empty());
        Machine {
            thinking,
            quoted,
            hidden: format.calls.hidden,
            calls: match tools.is_empty() {
                true => &[],
                false => format.calls.calls,
            },
            tools,
            text: String::new(),
            mode: Mode::First { opened },
            out: Output {
                blank: String::new(),
                drop_blank: opened,
                n_calls: 0,
                id: None,
            },
            retry: 0,
        }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.text.push_str(text);
        while self.step(false, out) {}
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        self.retry = 0;
        while self.step(true, out) {}
        match &self.mode {
            Mode::Arguments { .. } => self.end_call(false, out),
            Mode::Tail { .. } => self.end_call(true, out),
            // An escape that was cut.
            Mode::Quoted => self.text.clear(),
            _ => {}
        }
        if !self.text.is_empty() {
            out.push(Delta::Unfinished(std::mem::take(&mut self.text)));
        }
        let blank = std::mem::take(&mut self.out.blank);
        if !blank.is_empty() && !self.out.drop_blank && matches!(self.mode, Mode::Content { .. }) {
            out.push(Delta::Content(blank));
        }
        self.mode = Mode::Content { begins: false };
    }

    /// Reads what is certain; returns whether it read anything.
    fn step(&mut self, ended: bool, out: &mut Vec<Delta>) -> bool {
        match &mut self.mode {
            Mode::First { opened } => {
                let opened = *opened;
                self.first(opened, ended)
            }
            Mode::Reasoning => self.reasoning(ended, out),
            Mode::Content { begins } => {
                let begins = *begins;
                self.content(begins, ended, out)
            }
            Mode::Object { call } => {
                let call = *call;
                match self.try_calls(std::slice::from_ref(call), true, 0, ended, out) {
                    Ok(()) => true,
                    Err(Stop::Incomplete) => false,
                    Err(Stop::NotACall) => {
                        self.mode = Mode::Content { begins: false };
                        true
                    }
                }
            }
            Mode::Arguments { .. } => self.arguments(out),
            Mode::Tail { .. } => self.tail(ended, out),
            Mode::Quoted => {
                let (text, len, ended) = unescape(&self.text);
                self.text.drain(..len);
                if !text.is_empty() {
                    out.push(Delta::Content(text));
                }
                if ended {
                    self.mode = Mode::Dropped;
                }
                len > 0
            }
            Mode::Dropped => {
                self.text.clear();
                false
            }
        }
    }

    /// Reads up to content that is a string in JSON, after `n_blank` bytes.
    fn open_quote(&mut self, mark: &str, n_blank: usize) -> Read<()> {
        let mut text = Cursor::new(&self.text[n_blank..]);
        text.expect(mark)?;
        text.space();
        text.expect("\"")?;
        let len = n_blank + text.at();
        if len > MAX_HEAD_BYTES {
            return Err(Stop::NotACall);
        }
        self.text.drain(..len);
        self.out.end_part();
        self.mode = Mode::Quoted;
        Ok(())
    }

    fn first(&mut self, opened: bool, ended: bool) -> bool {
        let Some(thinking) = self.thinking else {
            self.mode = Mode::Content { begins: true };
            return true;
        };
        let text = self.text.trim_start();
        let n_blank = self.text.len() - text.len();
        let is_near = n_blank <= MAX_BLANK_BYTES;
        let is_open = is_near && text.starts_with(thinking.open);
        if !is_open && !ended && is_near && thinking.open.starts_with(text) {
            return false;
        }
        if is_open || opened {
            let open = if is_open { thinking.open.len() } else { 0 };
            self.text.drain(..n_blank + open);
            self.out.drop_blank = true;
            self.mode = Mode::Reasoning;
        } else {
            self.mode = Mode::Content { begins: true };
        }
        true
    }

    fn reasoning(&mut self, ended: bool, out: &mut Vec<Delta>) -> bool {
        let Some(thinking) = self.thinking else {
            return false;
        };
        let (hidden, calls) = (self.hidden, self.calls);
        let counts = |mark: &&str| hidden.contains(mark) || calls.iter().any(|c| c.mark == *mark);
        let also_ends = || thinking.also_ends.iter().copied().filter(counts);
        let marks = || std::iter::once(thinking.close).chain(also_ends());
        let Some((at, mark)) = first_of(&self.text, marks()) else {
            return self.pass(certain(&self.text, marks(), ended), Delta::Reasoning, out);
        };
        self.pass(at, Delta::Reasoning, out);
        if mark == thinking.close {
            self.text.drain(..mark.len());
        }
        self.out.end_part();
        self.mode = Mode::Content { begins: true };
        true
    }

    fn content(&mut self, begins: bool, ended: bool, out: &mut Vec<Delta>) -> bool {
        let (hidden, calls) = (self.hidden, self.calls);
        if self.text.len() < self.retry {
            return false;
        }
        if begins {
            if let Some(len) = overlong(&self.text) {
                return self.pass(len, Delta::Content, out);
            }
            let text = self.text.trim_start();
            let n_blank = self.text.len() - text.len();
            if text.is_empty() && !ended {
                return false;
            }
            if let Some(mark) = self.quoted {
                match self.open_quote(mark, n_blank) {
                    Ok(()) => return true,
                    Err(Stop::Incomplete) if !ended && self.text.len() <= MAX_HEAD_BYTES => {
                        return false;
                    }
                    Err(_) => {}
                }
            }
            let text = self.text.trim_start();
            let here = |call: &&Call| call.mark.is_empty() && text.starts_with(['{', '[']);
            if calls.iter().any(|call| here(&call)) {
                match self.try_calls(calls, false, n_blank, ended, out) {
                    Ok(()) => return true,
                    Err(Stop::Incomplete) => return false,
                    Err(Stop::NotACall) => {
                        self.mode = Mode::Content { begins: false };
                        return true;
                    }
                }
            }
        }
        let again = self
            .thinking
            .filter(|t| t.place == Place::Anywhere)
            .map(|t| t.open);
        let marks = || {
            let calls = calls.iter().map(|call| call.mark);
            let marks = calls.chain(hidden.iter().copied()).chain(again);
            marks.filter(|mark| !mark.is_empty())
        };
        let Some((at, mark)) = first_of(&self.text, marks()) else {
            return self.pass(certain(&self.text, marks(), ended), Delta::Content, out);
        };
        // A longer mark may begin here, too.
        let rest = &self.text[at..];
        if !ended && marks().any(|other| other.len() > rest.len() && other.starts_with(rest)) {
            return self.pass(at, Delta::Content, out);
        }
        if at > 0 {
            return self.pass(at, Delta::Content, out);
        }
        if Some(mark) == again {
            self.text.drain(..mark.len());
            self.out.end_part();
            self.mode = Mode::Reasoning;
            return true;
        }
        if hidden.contains(&mark) {
            self.text.drain(..mark.len());
            return true;
        }
        match self.try_calls(calls, false, 0, ended, out) {
            Ok(()) => true,
            Err(Stop::Incomplete) => false,
            Err(Stop::NotACall) => self.pass(mark.len(), Delta::Content, out),
        }
    }

    /// Passes on the first bytes of the text; returns whether there are any.
    fn pass(&mut self, len: usize, kind: fn(String) -> Delta, out: &mut Vec<Delta>) -> bool {
        if len == 0 {
            return false;
        }
        let rest = self.text.split_off(len);
        let text = std::mem::replace(&mut self.text, rest);
        let is_blank = text.trim().is_empty();
        self.out.pass(&text, kind, out);
        if let Mode::Content { begins } = &mut self.mode {
            *begins &= is_blank;
        }
        self.retry = 0;
        true
    }

    /// Reads calls that begin after `n_blank` bytes: those of the marks there, or without a mark.
    fn try_calls(
        &mut self,
        calls: &'static [Call],
        is_next: bool,
        n_blank: usize,
        ended: bool,
        out: &mut Vec<Delta>,
    ) -> Read<()> {
        if self.text.len() < self.retry {
            return Err(Stop::Incomplete);
        }
        let mut stop = Stop::NotACall;
        for call in calls {
            let after = &self.text[n_blank..];
            let mark = if is_next { "" } else { call.mark };
            let Some(body) = after.strip_prefix(mark) else {
                continue;
            };
            match read(call, is_next, body, &self.tools) {
                Ok(found) => {
                    self.retry = 0;
                    self.text.drain(..n_blank + mark.len());
                    self.begin(call, found, out);
                    return Ok(());
                }
                Err(Stop::NotACall) => {}
                Err(Stop::Incomplete) => {
                    let max = match call.syntax {
                        Syntax::Whole(_) => MAX_CALL_BYTES,
                        _ => MAX_HEAD_BYTES,
                    };
                    if body.len() <= max {
                        stop = Stop::Incomplete;
                        break;
                    }
                }
            }
        }
        if stop == Stop::Incomplete && !ended {
            // Long calls are not read again for every piece of text.
            self.retry = self.text.len() + self.text.len() / 8;
        } else {
            self.retry = 0;
        }
        Err(stop)
    }

    /// Passes on what was found after a mark.
    fn begin(&mut self, call: &'static Call, found: Found, out: &mut Vec<Delta>) {
        self.out.blank.clear();
        self.out.drop_blank = true;
        match found {
            Found::Head {
                len,
                name,
                id,
                is_list,
            } => {
                self.text.drain(..len);
                out.push(Delta::Call(CallDelta {
                    index: self.out.n_calls,
                    id: id.clone(),
                    name: Some(name),
                    arguments: String::new(),
                }));
                self.out.id = id;
                self.mode = Mode::Arguments {
                    call,
                    scanner: Scanner::new(),
                    is_list,
                };
            }
            Found::Calls {
                len,
                calls,
                id,
                list,
            } => {
                self.text.drain(..len);
                self.out.id = id.clone();
                let n_calls = calls.len();
                for (i, whole) in calls.into_iter().enumerate() {
                    out.push(Delta::Call(CallDelta {
                        index: self.out.n_calls,
                        id: id.clone(),
                        name: Some(whole.name),
                        arguments: whole.arguments,
                    }));
                    if list.is_none() || i + 1 < n_calls {
                        self.end_call(true, out);
                    }
                }
                self.mode = match list {
                    Some(is_list) => Mode::Tail {
                        call,
                        in_object: false,
                        is_list,
                    },
                    None => Mode::Content { begins: true },
                };
            }
        }
    }

    fn arguments(&mut self, out: &mut Vec<Delta>) -> bool {
        let Mode::Arguments {
            call,
            scanner,
            is_list,
        } = &mut self.mode
        else {
            return false;
        };
        if self.text.is_empty() {
            return false;
        }
        let (call, is_list) = (*call, *is_list);
        let (len, next) = match scanner.read(self.text.as_bytes()) {
            Progress::More => (self.text.len(), None),
            Progress::Done(len) => {
                let in_object = matches!(call.syntax, Syntax::Objects { .. });
                let tail = Mode::Tail {
                    call,
                    in_object,
                    is_list,
                };
                (len, Some((true, tail)))
            }
            Progress::Bad(at) => (at, Some((false, Mode::Content { begins: false }))),
        };
        let rest = self.text.split_off(len);
        let arguments = std::mem::replace(&mut self.text, rest);
        if !arguments.is_empty() {
            out.push(Delta::Call(CallDelta {
                index: self.out.n_calls,
                arguments,
                ..CallDelta::default()
            }));
        }
        if let Some((good, mode)) = next {
            if !good {
                self.end_call(false, out);
                self.out.drop_blank = false;
            }
            self.mode = mode;
        }
        true
    }

    /// Reads what follows the arguments.
    fn tail(&mut self, ended: bool, out: &mut Vec<Delta>) -> bool {
        let Mode::Tail {
            call,
            in_object,
            is_list,
        } = self.mode
        else {
            return false;
        };
        let mut text = Cursor::new(&self.text);
        let found = tail(call, in_object, is_list, &mut text);
        let is_long = match found {
            Ok(_) => text.at() > MAX_HEAD_BYTES,
            Err(_) => self.text.len() > MAX_HEAD_BYTES,
        };
        let (len, (next, id)) = match found {
            Err(Stop::Incomplete) if !ended && !is_long => return false,
            Ok(_) | Err(Stop::Incomplete) if is_long => (0, (false, None)),
            // The closing marks may be missing.
            Err(_) => (text.at(), (false, None)),
            Ok(found) => (text.at(), found),
        };
        self.text.drain(..len);
        if let Some(id) = id.filter(|_| self.out.id.is_none()) {
            out.push(Delta::Call(CallDelta {
                index: self.out.n_calls,
                id: Some(id),
                ..CallDelta::default()
            }));
        }
        self.end_call(true, out);
        self.mode = match next {
            true => Mode::Object { call },
            false => Mode::Content { begins: true },
        };
        true
    }

    fn end_call(&mut self, complete: bool, out: &mut Vec<Delta>) {
        out.push(Delta::CallEnd {
            index: self.out.n_calls,
            complete,
        });
        self.out.n_calls += 1;
        self.out.id = None;
    }
}

impl Output {
    /// Passes text on, except white space that may turn out to be between two parts of the answer.
    fn pass(&mut self, text: &str, kind: fn(String) -> Delta, out: &mut Vec<Delta>) {
        let mut text = text;
        if self.drop_blank {
            text = text.trim_start();
            if text.is_empty() {
                return;
            }
            self.drop_blank = false;
        }
        let shown = text.trim_end();
        let mut ready = String::new();
        if !shown.is_empty() {
            ready = std::mem::take(&mut self.blank) + shown;
        }
        self.blank.push_str(&text[shown.len()..]);
        while let Some(len) = overlong(&self.blank) {
            ready.extend(self.blank.drain(..len));
        }
        if !ready.is_empty() {
            out.push(kind(ready));
        }
    }

    /// Ends reasoning, or a part of the content before it.
    fn end_part(&mut self) {
        self.blank.clear();
        self.drop_blank = true;
    }
}

/// Returns the length of the white space that a text begins with, up to where it is longer than what may be dropped;
/// `None` if it is shorter. So much at a time is passed on, however the text comes.
fn overlong(text: &str) -> Option<usize> {
    let blank = text.char_indices().take_while(|(_, c)| c.is_whitespace());
    let mut ends = blank.map(|(at, c)| at + c.len_utf8());
    ends.find(|&end| end > MAX_BLANK_BYTES)
}

/// Returns place and text of the first mark; of several there, the longest.
fn first_of<'m>(text: &str, marks: impl Iterator<Item = &'m str>) -> Option<(usize, &'m str)> {
    let found = marks.filter_map(|mark| Some((text.find(mark)?, mark)));
    found.min_by_key(|&(at, mark)| (at, std::cmp::Reverse(mark.len())))
}

/// Returns how much of the text no mark can begin in.
fn certain<'m>(text: &str, marks: impl Iterator<Item = &'m str>, ended: bool) -> usize {
    if ended {
        return text.len();
    }
    let overlap = |mark: &str| {
        let longest = text.len().min(mark.len().saturating_sub(1));
        // A mark begins with the first byte of a character, so this never splits one.
        (1..=longest)
            .rev()
            .find(|&n| text.as_bytes()[text.len() - n..] == mark.as_bytes()[..n])
    };
    text.len() - marks.filter_map(overlap).max().unwrap_or(0)
}
