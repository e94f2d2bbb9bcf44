//! Scalar logic instructions on lane masks and their operands, for `exec`.

/// VCC's number among the scalar registers.
const VCC: u16 = 106;

/// A scalar register operand.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Operand {
    Exec,
    /// The first register, and how many.
    Register(u16, u16),
    Ones,
    Zero,
    Other,
}

/// A logic operation.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Move,
    And,
    Or,
    Xor,
    AndNot,
}

/// A logic instruction on lane masks.
#[derive(Clone, Copy)]
pub(crate) struct Logic {
    pub(crate) kind: Kind,
    /// Whether the result goes to EXEC, and EXEC's old value to the first operand.
    pub(crate) saves: bool,
    /// Whether it inverts EXEC instead of the operand, as `s_andn2_saveexec` does.
    pub(crate) inverts_exec: bool,
}

impl Logic {
    /// Parses a mnemonic without its width.
    pub(crate) fn parse(name: &str) -> Option<Logic> {
        let (operation, saves) = match name.strip_suffix("_saveexec") {
            Some(operation) => (operation, true),
            None => (name, false),
        };
        let kind = match operation {
            "s_mov" => Kind::Move,
            "s_and" => Kind::And,
            "s_or" => Kind::Or,
            "s_xor" => Kind::Xor,
            "s_andn2" | "s_and_not1" => Kind::AndNot,
            // EXEC and not the operand.
            "s_andn1" | "s_and_not0" if saves => Kind::AndNot,
            _ => return None,
        };
        Some(Logic {
            kind,
            saves,
            inverts_exec: saves && matches!(operation, "s_andn2" | "s_and_not1"),
        })
    }
}

/// Whether the instruction writes its first operand.
pub(crate) fn writes_first(name: &str) -> bool {
    let reads = [
        "s_cmp",
        "s_bitcmp",
        "s_cbranch",
        "s_branch",
        "s_wait",
        "s_nop",
        "s_store",
        "s_barrier",
        "s_sendmsg",
        "s_setreg",
        "s_dcache",
        "s_setprio",
        "s_sleep",
        "s_clause",
        "s_delay",
    ];
    (name.starts_with("s_") && !reads.iter().any(|prefix| name.starts_with(prefix)))
        || name.starts_with("v_cmp")
        || name.starts_with("v_read")
}

/// Parses an operand as printed.
pub(crate) fn parse_operand(text: &str) -> Operand {
    let number = |digits: &str| digits.parse::<u16>().ok();
    match text {
        "exec" | "exec_lo" | "exec_hi" => return Operand::Exec,
        "vcc" => return Operand::Register(VCC, 2),
        "vcc_lo" => return Operand::Register(VCC, 1),
        "vcc_hi" => return Operand::Register(VCC + 1, 1),
        "-1" => return Operand::Ones,
        "0" => return Operand::Zero,
        _ => {}
    }
    let Some(register) = text.strip_prefix('s') else {
        return Operand::Other;
    };
    let range = register
        .strip_prefix('[')
        .and_then(|r| r.strip_suffix(']'))
        .and_then(|range| range.split_once(':'))
        .and_then(|(first, last)| Some((number(first)?, number(last)?)));
    match (range, number(register)) {
        (Some((first, last)), _) => Operand::Register(first, last.saturating_sub(first) + 1),
        (None, Some(register)) => Operand::Register(register, 1),
        (None, None) => Operand::Other,
    }
}
