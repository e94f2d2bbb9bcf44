//! Finds registers that are read or overwritten before the memory access that writes them has returned, and barriers
//! before which accesses to shared memory are not awaited.
//!
//! Memory accesses run while the wave goes on. Counters hold how many have not returned, and `s_waitcnt vmcnt(N)` waits
//! until at most N are left. Vector loads return in order among each other, and so do accesses to shared memory: a wait
//! for N guarantees an access that at least N later ones on its counter follow. Scalar loads return in any order, so
//! only a wait for 0 helps; so do flat accesses, which count as both vector loads and accesses to shared memory. Where
//! scalar loads share a counter with shared memory, they only raise it: an access that N later ones of its own kind
//! follow has still returned when N are left. Sources: "Memory Model" and the counters in LLVM's AMDGPU usage guide,
//! "Data dependency resolution" in AMD's ISA guides, LLVM's SIInsertWaitcnts.
//!
//! A barrier must come after the accesses to shared memory have returned; `barrier()` of the kernels promises it. Not
//! checked: waits that order stores to global memory for other waves, which no register shows; exports and images,
//! which the kernels do not use; waits for stores before their source registers are overwritten, which the hardware
//! does itself on all targets here.

use super::code::Instruction;
use super::dataflow::Flow;
use super::registers::{self, Access, COUNT, Kernel, Registers, SHARED, Unit};

/// A kind of access whose results return in order, or in any order if scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Vector,
    Shared,
    Scalar,
}

const QUEUES: [Queue; 3] = [Queue::Vector, Queue::Shared, Queue::Scalar];

/// A register to which no access of a queue is pending.
const RETURNED: u8 = u8::MAX;
/// A register to which an access is pending that may return after later ones.
const UNORDERED: u8 = 0;
/// A register to which the last access in a queue is pending. Each later one adds 1.
const LAST: u8 = 1;

/// For each register, the pending access with the fewest later ones in its queue.
pub(crate) type Pending = [[u8; COUNT]; 3];

/// The analysis of a kernel.
pub(crate) struct Waits<'a> {
    pub(crate) kernel: &'a Kernel<'a>,
    /// An instruction to leave out.
    pub(crate) without: Option<usize>,
}

/// What a memory access adds to the queues.
#[derive(Default)]
struct Event {
    queues: Vec<Queue>,
    /// Registers written when it returns.
    returns: Vec<Registers>,
    is_unordered: bool,
}

impl Flow for Waits<'_> {
    type State = Box<Pending>;

    fn start(&self) -> Box<Pending> {
        Box::new([[RETURNED; COUNT]; 3])
    }

    fn join(&self, state: &mut Box<Pending>, other: &Box<Pending>) -> bool {
        let mut changed = 0;
        for (state, other) in state.iter_mut().zip(other.iter()) {
            for (state, other) in state.iter_mut().zip(other) {
                let least = (*state).min(*other);
                changed |= *state ^ least;
                *state = least;
            }
        }
        changed != 0
    }

    fn step(&self, at: usize, state: &mut Box<Pending>) -> Option<String> {
        if self.without == Some(at) {
            return None;
        }
        let instruction = &self.kernel.code[at];
        let name = instruction.mnemonic.as_str();
        if name.starts_with("s_wait") {
            apply(instruction, state);
            return None;
        }
        let access = &self.kernel.accesses[at];
        let event = self.event(instruction, access);
        let finding = self.check(at, &event, state);
        for &queue in &event.queues {
            let pending = &mut state[queue as usize];
            for later in pending.iter_mut() {
                let counts = *later != UNORDERED && *later < RETURNED - 1;
                *later += u8::from(counts);
            }
            for registers in &event.returns {
                let is_unordered = event.is_unordered || queue == Queue::Scalar;
                pending[registers.range()].fill(if is_unordered { UNORDERED } else { LAST });
            }
        }
        finding
    }
}

impl Waits<'_> {
    /// Whether a wait has something to wait for, as far as registers and shared memory show.
    pub(crate) fn is_effective(&self, at: usize, state: &Pending) -> bool {
        let mut after = Box::new(*state);
        apply(&self.kernel.code[at], &mut after);
        *after != *state
    }

    fn event(&self, instruction: &Instruction, access: &Access) -> Event {
        let name = instruction.mnemonic.as_str();
        let modifiers = instruction.operands.last().map_or("", String::as_str);
        let is_invalidation = name == "global_inv";
        let mut event = Event::default();
        match access.unit {
            // Instructions of caches, which are not counted.
            Unit::Memory if name.starts_with("buffer_") && name.contains("inv") => {}
            Unit::Memory if name.starts_with("buffer_wb") => {}
            Unit::Memory => {
                let to_shared = registers::loads_to_shared(name, modifiers);
                let loads = !access.writes.is_empty() || to_shared || is_invalidation;
                if loads || self.kernel.family.is_gfx9() {
                    event.queues.push(Queue::Vector);
                }
                if name.starts_with("flat_") {
                    event.queues.push(Queue::Shared);
                    event.is_unordered = true;
                }
                event.returns.clone_from(&access.writes);
                if to_shared {
                    event.returns.push(SHARED);
                }
            }
            Unit::Shared if name != "ds_nop" => {
                event.queues.push(Queue::Shared);
                event.returns.clone_from(&access.writes);
                // Permutations use the unit of shared memory, but not the memory.
                if !name.contains("permute") && !name.contains("swizzle") {
                    event.returns.push(SHARED);
                }
            }
            Unit::ScalarMemory => {
                event.queues.push(Queue::Scalar);
                event.returns.clone_from(&access.writes);
            }
            Unit::Scalar if name.starts_with("s_sendmsg_rtn") => {
                event.queues.push(Queue::Scalar);
                event.returns.clone_from(&access.writes);
            }
            _ => {}
        }
        event
    }

    /// Returns what is wrong if an instruction runs now.
    fn check(&self, at: usize, event: &Event, state: &Pending) -> Option<String> {
        let access = &self.kernel.accesses[at];
        let name = self.kernel.code[at].mnemonic.as_str();
        if name == "s_barrier" || name.starts_with("s_barrier_signal") {
            let queue = QUEUES.into_iter();
            let queue = queue
                .filter(|queue| state[*queue as usize][SHARED.range()] != [RETURNED])
                .find(|queue| *queue != Queue::Scalar)?;
            let earlier = self.writer(at, queue, SHARED.first.into());
            return Some(format!(
                "{} runs before {earlier} has returned",
                self.kernel.place(at)
            ));
        }
        for (queue, pending) in QUEUES.into_iter().zip(state) {
            // Vector loads may follow each other to one register. LLVM does not rely on the order of shared memory.
            let in_order = event.queues == [Queue::Vector];
            let is_early = |register: &usize, written: bool| match pending[*register] {
                RETURNED => false,
                UNORDERED => true,
                _ => !(written && in_order && queue == Queue::Vector),
            };
            let find = |all: &[Registers], written: bool| {
                let mut all = all.iter().flat_map(|registers| registers.range());
                all.find(|register| is_early(register, written))
            };
            let read = find(&access.reads, false).map(|register| (register, "reads"));
            let found = read.or_else(|| find(&access.writes, true).map(|r| (r, "overwrites")));
            if let Some((register, does)) = found {
                let earlier = self.writer(at, queue, register);
                return Some(format!(
                    "{} {does} {} before {earlier} has returned",
                    self.kernel.place(at),
                    registers::name(register)
                ));
            }
        }
        None
    }

    /// Names the last access before an instruction, in the order of the code, that writes a register through a queue.
    /// In a loop it may come after the instruction.
    fn writer(&self, at: usize, queue: Queue, register: usize) -> String {
        let order = (0..at).rev().chain((at..self.kernel.code.len()).rev());
        let writes = |at: &usize| {
            let event = self.event(&self.kernel.code[*at], &self.kernel.accesses[*at]);
            event.queues.contains(&queue)
                && event.returns.iter().any(|r| r.range().contains(&register))
        };
        let found = order.into_iter().find(writes);
        found.map_or("an access".into(), |at| self.kernel.place(at))
    }
}

/// Applies a wait instruction.
fn apply(wait: &Instruction, state: &mut Pending) {
    for (queue, most) in waited(wait) {
        for later in &mut state[queue as usize] {
            if u64::from((*later).max(LAST)) > most {
                *later = RETURNED;
            }
        }
    }
}

/// Returns the queues that a wait instruction waits for, and how many accesses may be left.
fn waited(wait: &Instruction) -> Vec<(Queue, u64)> {
    use Queue::{Scalar, Shared, Vector};
    let last = wait.operands.last().map_or("", String::as_str);
    let hex = || {
        last.strip_prefix("0x")
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
    };
    let only = |queues: &[Queue]| {
        let most = hex().into_iter();
        most.flat_map(|most| queues.iter().map(move |&queue| (queue, most)))
            .collect()
    };
    match wait.mnemonic.as_str() {
        // `vmcnt(0) lgkmcnt(0)`
        "s_waitcnt" => {
            let mut waits = Vec::new();
            for part in last.split_whitespace() {
                let (counter, rest) = part.split_once('(').unwrap_or((part, ""));
                let Ok(most) = rest.trim_end_matches(')').parse() else {
                    continue;
                };
                match counter {
                    "vmcnt" => waits.push((Vector, most)),
                    "lgkmcnt" => waits.extend([(Shared, most), (Scalar, most)]),
                    _ => {}
                }
            }
            waits
        }
        "s_waitcnt_vmcnt" | "s_wait_loadcnt" => only(&[Vector]),
        "s_waitcnt_lgkmcnt" => only(&[Shared, Scalar]),
        "s_wait_dscnt" => only(&[Shared]),
        "s_wait_kmcnt" => only(&[Scalar]),
        "s_wait_loadcnt_dscnt" => hex().map_or(Vec::new(), |both| {
            vec![(Vector, both >> 8 & 0x3f), (Shared, both & 0x3f)]
        }),
        "s_wait_storecnt_dscnt" => hex().map_or(Vec::new(), |both| vec![(Shared, both & 0x3f)]),
        "s_wait_idle" => QUEUES.map(|queue| (queue, 0)).into(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::blocks::blocks;
    use crate::isa_report::code::code_of;
    use crate::isa_report::dataflow::findings;

    fn found(target: &str, lines: &[&str]) -> Vec<String> {
        let code = code_of(&[lines, &["s_endpgm"]].concat());
        let kernel = Kernel::new(target, &code).unwrap();
        let waits = Waits {
            kernel: &kernel,
            without: None,
        };
        findings(&waits, &blocks(&code).unwrap())
    }

    fn assert_clean(target: &str, lines: &[&str]) {
        assert_eq!(
            found(target, lines),
            Vec::<String>::new(),
            "{target} {lines:?}"
        );
    }

    fn assert_found(target: &str, lines: &[&str], expected: &str) {
        let found = found(target, lines);
        assert!(
            found.len() == 1 && found[0].contains(expected),
            "{target} {lines:?}: {found:?}"
        );
    }

    #[test]
    fn a_load_must_return_before_its_registers_are_used() {
        let load = "global_load_b64 v[2:3], v[0:1], off";
        assert_eq!(
            found("gfx1100", &[load, "v_add_f32_e32 v4, v4, v3"]),
            ["v_add_f32_e32 at 0x4 reads v3 before global_load_b64 at 0x0 has returned"]
        );
        assert_eq!(
            found("gfx1100", &[load, "v_mov_b32_e32 v2, 0"]),
            ["v_mov_b32_e32 at 0x4 overwrites v2 before global_load_b64 at 0x0 has returned"]
        );
        assert_clean("gfx1100", &[load, "v_add_f32_e32 v4, v4, v0"]);
        assert_clean(
            "gfx1100",
            &[load, "s_waitcnt vmcnt(0)", "v_add_f32_e32 v4, v4, v3"],
        );
        assert_found(
            "gfx1100",
            &[load, "s_waitcnt lgkmcnt(0)", "v_add_f32_e32 v4, v4, v3"],
            "reads v3",
        );
    }

    #[test]
    fn vector_loads_return_in_order() {
        let loads = [
            "global_load_dword v1, v0, s[0:1]",
            "global_load_dword v2, v0, s[0:1]",
            "s_waitcnt vmcnt(1)",
        ];
        assert_clean("gfx1030", &[&loads[..], &["v_mov_b32_e32 v3, v1"]].concat());
        assert_found(
            "gfx1030",
            &[&loads[..], &["v_mov_b32_e32 v3, v2"]].concat(),
            "reads v2 before global_load_dword at 0x4",
        );
        let same = [
            "global_load_d16_b16 v1, v0, s[0:1]",
            "global_load_d16_hi_b16 v1, v0, s[0:1]",
        ];
        assert_clean("gfx1100", &same);
        assert_found(
            "gfx1100",
            &[same[0], "ds_load_b32 v1, v0"],
            "overwrites v1 before global_load_d16_b16",
        );
    }

    #[test]
    fn stores_share_a_counter_with_loads_on_gfx9_only() {
        let lines = [
            "global_load_dword v1, v0, s[0:1]",
            "global_store_dword v0, v2, s[0:1]",
            "s_waitcnt vmcnt(1)",
            "v_mov_b32_e32 v3, v1",
        ];
        assert_clean("gfx90a", &lines);
        assert_clean("gfx942", &lines);
        assert_found("gfx1030", &lines, "reads v1");
    }

    #[test]
    fn scalar_loads_return_in_any_order() {
        let lines = |wait| {
            [
                "s_load_b32 s4, s[0:1], 0x0",
                "s_load_b32 s5, s[0:1], 0x4",
                wait,
                "s_add_u32 s6, s4, s7",
            ]
        };
        assert_found("gfx1100", &lines("s_waitcnt lgkmcnt(1)"), "reads s4");
        assert_clean("gfx1100", &lines("s_waitcnt lgkmcnt(0)"));
        assert_found("gfx1201", &lines("s_wait_kmcnt 0x1"), "reads s4");
        assert_clean("gfx1201", &lines("s_wait_kmcnt 0x0"));
        assert_found("gfx1201", &lines("s_wait_dscnt 0x0"), "reads s4");
        assert_found(
            "gfx942",
            &["s_memrealtime s[0:1]", "s_mov_b32 s2, s1"],
            "reads s1",
        );
        assert_found(
            "gfx1201",
            &[
                "s_sendmsg_rtn_b64 s[0:1], sendmsg(MSG_RTN_GET_REALTIME)",
                "s_mov_b32 s2, s1",
            ],
            "reads s1",
        );
    }

    #[test]
    fn scalar_loads_raise_the_counter_of_shared_memory() {
        let lines = |wait, read| {
            [
                "ds_read_b32 v1, v0",
                "ds_read_b32 v2, v0",
                "s_load_dword s4, s[0:1], 0x0",
                wait,
                read,
            ]
        };
        let first = "v_mov_b32_e32 v3, v1";
        assert_clean("gfx942", &lines("s_waitcnt lgkmcnt(1)", first));
        assert_found("gfx942", &lines("s_waitcnt lgkmcnt(2)", first), "reads v1");
        let second = "v_mov_b32_e32 v3, v2";
        assert_found("gfx942", &lines("s_waitcnt lgkmcnt(1)", second), "reads v2");
        assert_clean("gfx942", &lines("s_waitcnt vmcnt(3) lgkmcnt(0)", second));
    }

    #[test]
    fn gfx12_has_a_counter_for_each_kind() {
        for (wait, early) in [
            ("s_wait_loadcnt 0x1", vec!["v2", "v3"]),
            ("s_wait_loadcnt_dscnt 0x100", vec!["v2"]),
            ("s_wait_storecnt_dscnt 0x0", vec!["v1", "v2"]),
            ("s_wait_dscnt 0x1", vec!["v1", "v2", "v3"]),
        ] {
            for register in ["v1", "v2", "v3"] {
                let read = format!("v_mov_b32_e32 v4, {register}");
                let lines = [
                    "global_load_b32 v1, v0, s[0:1]",
                    "global_load_b32 v2, v0, s[0:1]",
                    "ds_load_b32 v3, v0",
                    wait,
                    &read,
                ];
                let found = found("gfx1201", &lines);
                assert_eq!(
                    !found.is_empty(),
                    early.contains(&register),
                    "{wait} {read}"
                );
            }
        }
    }

    #[test]
    fn flat_loads_count_twice_and_in_any_order() {
        let lines = |wait| {
            [
                "flat_load_dword v1, v[2:3]",
                "global_load_dword v4, v[2:3], off",
                wait,
                "v_mov_b32_e32 v0, v1",
            ]
        };
        assert_clean("gfx1030", &lines("s_waitcnt vmcnt(0) lgkmcnt(0)"));
        assert_found("gfx1030", &lines("s_waitcnt vmcnt(0)"), "reads v1");
        assert_found(
            "gfx1030",
            &lines("s_waitcnt vmcnt(1) lgkmcnt(0)"),
            "reads v1",
        );
    }

    #[test]
    fn atomics_write_a_register_if_they_return() {
        let read = "v_mov_b32_e32 v3, v2";
        for (target, modifiers) in [
            ("gfx1100", "s[0:1] glc"),
            ("gfx942", "s[0:1] sc0"),
            ("gfx1201", "s[0:1] th:TH_ATOMIC_RETURN"),
        ] {
            let atomic = format!("global_atomic_add v2, v0, v1, {modifiers}");
            assert_found(target, &[&atomic, read], "reads v2");
        }
        assert_clean("gfx1100", &["global_atomic_add v2, v0, s[0:1]", read]);
        assert_found("gfx1100", &["ds_add_rtn_u32 v2, v0, v1", read], "reads v2");
        assert_clean("gfx1100", &["ds_add_u32 v0, v2", read]);
    }

    #[test]
    fn shared_memory_must_be_waited_for_before_a_barrier() {
        assert_eq!(
            found("gfx90a", &["ds_write_b32 v0, v1", "s_barrier"]),
            ["s_barrier at 0x4 runs before ds_write_b32 at 0x0 has returned"]
        );
        assert_clean(
            "gfx90a",
            &["ds_write_b32 v0, v1", "s_waitcnt lgkmcnt(0)", "s_barrier"],
        );
        assert_found(
            "gfx1201",
            &["ds_store_b32 v0, v1", "s_barrier_signal -1"],
            "s_barrier_signal at 0x4",
        );
        assert_found(
            "gfx942",
            &[
                "global_load_lds_dword v[0:1], off",
                "s_waitcnt lgkmcnt(0)",
                "s_barrier",
            ],
            "global_load_lds_dword",
        );
        assert_clean("gfx1100", &["global_store_b32 v0, v1, s[0:1]", "s_barrier"]);
        assert_clean("gfx90a", &["ds_bpermute_b32 v0, v1, v2", "s_barrier"]);
    }

    #[test]
    fn every_path_must_wait() {
        let load = "global_load_b32 v1, v0, s[0:1]";
        let read = "v_mov_b32_e32 v2, v1";
        assert_found(
            "gfx1100",
            &[load, "s_cbranch_scc1 @3", "s_waitcnt vmcnt(0)", read],
            "at 0xc reads v1",
        );
        // The path with fewer later loads counts.
        let later = "global_load_b32 v3, v0, s[0:1]";
        let wait = "s_waitcnt vmcnt(1)";
        assert_found(
            "gfx1100",
            &[load, "s_cbranch_scc1 @3", later, wait, read],
            "reads v1",
        );
        // From one iteration to the next.
        assert_found(
            "gfx1100",
            &[read, load, "s_cbranch_scc1 @0"],
            "v_mov_b32_e32 at 0x0 reads v1 before global_load_b32 at 0x4",
        );
        assert_clean(
            "gfx1100",
            &["s_waitcnt vmcnt(0)", read, load, "s_cbranch_scc1 @0"],
        );
    }

    #[test]
    fn without_leaves_a_wait_out() {
        let code = code_of(&[
            "ds_load_b32 v1, v0",
            "s_wait_dscnt 0x0",
            "v_mov_b32_e32 v2, v1",
            "s_endpgm",
        ]);
        let kernel = Kernel::new("gfx1201", &code).unwrap();
        for (without, n) in [(None, 0), (Some(1), 1)] {
            let waits = Waits {
                kernel: &kernel,
                without,
            };
            assert_eq!(findings(&waits, &blocks(&code).unwrap()).len(), n);
        }
    }
}
