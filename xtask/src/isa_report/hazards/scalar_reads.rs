//! The hazard of scalar registers on gfx12: once a vector instruction has read a scalar register, a later write of it
//! must be waited for before it is read. Registers count in pairs of the first read; VCC has a wait of its own.

use super::waits_for;
use crate::isa_report::code::Instruction;
use crate::isa_report::registers::{self, Access, Registers, Unit, VCC};

/// What is known between two instructions. A set has a bit for each scalar register.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ScalarReads {
    /// Registers of pairs that vector instructions have read.
    tracked: u128,
    /// Tracked registers written since the last wait, by scalar and by vector instructions.
    by_scalar: u128,
    by_vector: u128,
}

const VCC_BITS: u128 = 3 << VCC.first;

impl ScalarReads {
    /// Adds what holds on another path; returns whether anything is new.
    pub(super) fn join(&mut self, other: &ScalarReads) -> bool {
        let old = *self;
        self.tracked |= other.tracked;
        self.by_scalar |= other.by_scalar;
        self.by_vector |= other.by_vector;
        *self != old
    }

    /// Applies an instruction, and names the register that it reads too early, with the wait that is missing.
    pub(super) fn step(&mut self, instruction: &Instruction, access: &Access) -> Option<String> {
        if waits_for(instruction, "sa_sdst") {
            self.by_scalar = 0;
        }
        if waits_for(instruction, "va_sdst") {
            self.by_vector &= VCC_BITS;
        }
        if waits_for(instruction, "va_vcc") {
            self.by_vector &= !VCC_BITS;
        }
        match access.unit {
            // Scalar loads wait for both.
            Unit::ScalarMemory => {
                self.by_scalar = 0;
                self.by_vector = 0;
                None
            }
            Unit::Scalar => {
                let read = self.tracked_bits(&access.reads);
                // Scalar instructions wait for the vector unit.
                if read & VCC_BITS != 0 {
                    self.by_vector &= !VCC_BITS;
                }
                if read & !VCC_BITS != 0 {
                    self.by_vector &= VCC_BITS;
                }
                let early = self.early(read & self.by_scalar, "sa_sdst");
                let written = self.tracked_bits(&access.writes);
                self.by_scalar |= written;
                self.by_vector &= !written | !VCC_BITS;
                early
            }
            Unit::Vector => {
                let read = self.tracked_bits(&access.reads);
                let early = self
                    .early(read & self.by_scalar, "sa_sdst")
                    .or_else(|| self.early(read & self.by_vector & VCC_BITS, "va_vcc"))
                    .or_else(|| self.early(read & self.by_vector, "va_sdst"));
                for registers in scalar(&access.reads) {
                    let pair = registers.first & !1;
                    self.tracked |= 3 << pair;
                }
                let written = self.tracked_bits(&access.writes);
                self.by_vector |= written;
                self.by_scalar &= !written | !VCC_BITS;
                early
            }
            _ => None,
        }
    }

    fn early(&self, registers: u128, wait: &str) -> Option<String> {
        (registers != 0).then(|| {
            let register = registers::name(registers.trailing_zeros() as usize);
            format!("{register}, which was written after a vector instruction read it, without a wait for {wait}")
        })
    }

    fn tracked_bits(&self, all: &[Registers]) -> u128 {
        let bits = scalar(all).filter(|r| self.tracked & 1 << r.first != 0);
        bits.fold(0, |bits, r| bits | ((1 << r.n) - 1) << r.first)
    }
}

fn scalar(all: &[Registers]) -> impl Iterator<Item = &Registers> {
    all.iter().filter(|registers| registers.is_scalar())
}
