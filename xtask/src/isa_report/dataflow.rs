//! Forward data-flow analysis over the basic blocks of a kernel: the state before each instruction is the worst of all
//! paths to it. Used by `waits` and `hazards`.

use super::blocks::Block;

/// An analysis of the paths through a kernel.
pub(crate) trait Flow {
    type State: Clone;

    /// Returns the state at the kernel's start.
    fn start(&self) -> Self::State;

    /// Makes a state the worse of two in every part; returns whether it changed.
    fn join(&self, state: &mut Self::State, other: &Self::State) -> bool;

    /// Applies an instruction, given its index, and returns what it does wrong.
    fn step(&self, at: usize, state: &mut Self::State) -> Option<String>;
}

/// Returns the state at the start of each block. It only gets worse as paths are found, so that this ends.
pub(crate) fn solve<F: Flow>(flow: &F, blocks: &[Block]) -> Vec<Option<F::State>> {
    let mut states = vec![None; blocks.len()];
    if let Some(first) = states.first_mut() {
        *first = Some(flow.start());
    }
    let mut waiting = vec![false; blocks.len()];
    let mut next = 0;
    // In the order of the code, since most jumps go forward.
    while next < blocks.len() {
        waiting[next] = false;
        let mut following = next + 1;
        if let Some(mut state) = states[next].clone() {
            for at in blocks[next].range.clone() {
                flow.step(at, &mut state);
            }
            for &successor in &blocks[next].successors {
                if merge(flow, &mut states[successor], &state) {
                    waiting[successor] = true;
                    following = following.min(successor);
                }
            }
        }
        next = match waiting[following..].iter().position(|waits| *waits) {
            Some(distance) => following + distance,
            None => blocks.len(),
        };
    }
    states
}

/// Returns everything that the instructions do wrong.
pub(crate) fn findings<F: Flow>(flow: &F, blocks: &[Block]) -> Vec<String> {
    let mut findings = Vec::new();
    for (block, state) in blocks.iter().zip(solve(flow, blocks)) {
        if let Some(mut state) = state {
            let range = block.range.clone();
            findings.extend(range.filter_map(|at| flow.step(at, &mut state)));
        }
    }
    findings
}

/// Returns the first finding of `flow`, which differs from a flow without findings only by worse states after
/// instructions of one block. `states` are those of the flow without findings.
pub(crate) fn first_finding_from<F: Flow>(
    flow: &F,
    blocks: &[Block],
    states: &[Option<F::State>],
    block: usize,
) -> Option<String> {
    let mut worse: Vec<Option<F::State>> = vec![None; blocks.len()];
    worse[block].clone_from(&states[block]);
    let mut waiting = vec![block];
    while let Some(block) = waiting.pop() {
        let Some(mut state) = worse[block].clone() else {
            continue;
        };
        for at in blocks[block].range.clone() {
            let finding = flow.step(at, &mut state);
            if finding.is_some() {
                return finding;
            }
        }
        for &successor in &blocks[block].successors {
            if worse[successor].is_none() {
                worse[successor].clone_from(&states[successor]);
            }
            if merge(flow, &mut worse[successor], &state) {
                waiting.push(successor);
            }
        }
    }
    None
}

fn merge<F: Flow>(flow: &F, state: &mut Option<F::State>, other: &F::State) -> bool {
    match state {
        Some(state) => flow.join(state, other),
        None => {
            *state = Some(other.clone());
            true
        }
    }
}
