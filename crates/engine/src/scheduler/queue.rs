//! The sequences that wait, and whose turn it is.
//!
//! Higher priorities come first. In each, sequences that ran before come first, by age; then tenants in turn, each by age.
//! The next tenant is the one with the fewest running sequences of the priority, and among equals the one whose last turn
//! is longest ago. So a tenant with hundreds of requests delays another one's by a turn, and a tenant alone is served by
//! age. A choice takes O(log n).
//!
//! A sequence with a leader has its turn after the leader's prompt is computed, so that it finds the prompt in the cache.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::request::RequestId;
use crate::sequence::{Sequence, Turn};
use crate::sequences::Slot;
use crate::stats::Queued;

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Those that ran before.
    preempted: BTreeMap<Turn, Slot>,
    /// By priority and tenant: all lines with a sequence that waits or runs.
    lines: HashMap<(i32, Arc<str>), Line>,
    /// The tenants of the lines in which a sequence waits.
    order: BTreeMap<Place, Arc<str>>,
    /// What waits in lines, with the tokens to compute.
    in_lines: Queued,
    /// Those that wait for a leader's prompt, by leader and age.
    followers: BTreeMap<(RequestId, RequestId), Slot>,
    n_turns: u64,
}

/// The sequences of one tenant and priority.
#[derive(Debug)]
struct Line {
    /// Those that never ran.
    waiting: BTreeMap<RequestId, Slot>,
    n_running: usize,
    /// Tokens to compute of those that wait.
    n_tokens: usize,
    /// The number of its last turn. A new line comes after those that wait already.
    turn: u64,
}

/// The place of a line: priority, running sequences, last turn. No two lines have the same.
type Place = (Reverse<i32>, usize, u64);

impl Line {
    fn place(&self, priority: i32) -> Place {
        (Reverse(priority), self.n_running, self.turn)
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.preempted.len() + self.in_lines.requests + self.followers.len()
    }

    /// Lets a sequence wait that does not run.
    pub(super) fn push(&mut self, sequence: &Sequence, slot: Slot) {
        if let Some(leader) = sequence.leader {
            self.followers.insert((leader, sequence.id), slot);
        } else if sequence.was_admitted {
            self.preempted.insert(sequence.turn(), slot);
        } else {
            self.in_lines.requests += 1;
            self.in_lines.tokens += sequence.n_to_compute;
            self.change(sequence, |line| {
                line.n_tokens += sequence.n_to_compute;
                line.waiting.insert(sequence.id, slot)
            });
        }
    }

    /// Takes a sequence out. Returns whether it waited.
    pub(super) fn remove(&mut self, sequence: &Sequence) -> bool {
        if let Some(leader) = sequence.leader {
            return self.followers.remove(&(leader, sequence.id)).is_some();
        }
        if sequence.was_admitted {
            return self.preempted.remove(&sequence.turn()).is_some();
        }
        self.in_lines.requests -= 1;
        self.in_lines.tokens -= sequence.n_to_compute;
        self.change(sequence, |line| {
            line.n_tokens -= sequence.n_to_compute;
            line.waiting.remove(&sequence.id).is_some()
        })
    }

    /// Returns the sequence whose turn it is.
    pub(super) fn next(&self) -> Option<Slot> {
        let preempted = self.preempted.first_key_value();
        let first = self.order.first_key_value();
        if let Some(((priority, _), slot)) = preempted
            && first.is_none_or(|(place, _)| *priority <= place.0)
        {
            return Some(*slot);
        }
        let (&(Reverse(priority), ..), tenant) = first?;
        let line = self.lines.get(&(priority, Arc::clone(tenant)));
        let line = line.expect("every place is of a line");
        line.waiting.values().next().copied()
    }

    /// Returns what waits; followers have nothing to compute.
    pub(super) fn all(&self) -> Queued {
        Queued {
            requests: self.len(),
            tokens: self.in_lines.tokens,
        }
    }

    /// Returns about what would have its turn before a new sequence.
    pub(super) fn before(&self, priority: i32, tenant: &Arc<str>) -> Queued {
        let own = self.lines.get(&(priority, Arc::clone(tenant)));
        let n_own = own.map_or(0, |line| line.n_running + line.waiting.len());
        let mut before = Queued::default();
        before.requests += self.preempted.len();
        for ((of_priority, of_tenant), line) in &self.lines {
            let n_waiting = line.waiting.len();
            let n = match of_priority.cmp(&priority) {
                Ordering::Less => 0,
                Ordering::Equal if of_tenant != tenant => {
                    n_waiting.min((n_own + 1).saturating_sub(line.n_running))
                }
                Ordering::Equal | Ordering::Greater => n_waiting,
            };
            before += Queued {
                requests: n,
                tokens: line.n_tokens * n / n_waiting.max(1),
            };
        }
        before
    }

    /// Returns a sequence that waits for this leader.
    pub(super) fn follower(&self, leader: RequestId) -> Option<Slot> {
        let mut followers = self.followers.range((leader, RequestId(0))..);
        let ((of, _), slot) = followers.next()?;
        (*of == leader).then_some(*slot)
    }

    /// Returns the sequences that ran before, by priority and age.
    pub(super) fn preempted(&self) -> impl Iterator<Item = Slot> {
        self.preempted.values().copied()
    }

    /// Records that a sequence that waited runs. If it is for the first time, its tenant has had its turn.
    pub(super) fn start(&mut self, sequence: &Sequence) {
        let is_first = !sequence.was_admitted;
        let waited = self.remove(sequence);
        debug_assert!(waited, "a sequence that starts has waited");
        self.n_turns += u64::from(is_first);
        let n_turns = self.n_turns;
        self.change(sequence, |line| {
            line.n_running += 1;
            if is_first {
                line.turn = n_turns;
            }
        });
    }

    /// Records that a sequence that ran does not run any more.
    pub(super) fn stop(&mut self, sequence: &Sequence) {
        self.change(sequence, |line| line.n_running -= 1);
    }

    /// Changes the line of a sequence, and its place among the others.
    fn change<T>(&mut self, sequence: &Sequence, change: impl FnOnce(&mut Line) -> T) -> T {
        let priority = sequence.request.priority;
        let id = (priority, Arc::clone(&sequence.request.tenant));
        let line = self.lines.entry(id.clone()).or_insert_with(|| {
            self.n_turns += 1;
            Line {
                waiting: BTreeMap::new(),
                n_running: 0,
                n_tokens: 0,
                turn: self.n_turns,
            }
        });
        self.order.remove(&line.place(priority));
        let result = change(line);
        if !line.waiting.is_empty() {
            self.order.insert(line.place(priority), id.1);
        } else if line.n_running == 0 {
            self.lines.remove(&id);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::request::Request;
    use crate::sequences::Sequences;
    use rocmforge_runtime::ContextPolicy;

    const TENANTS: [&str; 4] = ["a", "b", "c", "d"];

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) % n as u64) as usize
        }
    }

    #[derive(Default)]
    struct World {
        queue: Queue,
        sequences: Sequences,
        n_ids: u64,
        waiting: BTreeSet<RequestId>,
        running: BTreeSet<RequestId>,
    }

    impl World {
        fn submit(&mut self, tenant: &str, priority: i32) -> RequestId {
            let id = RequestId(self.n_ids);
            self.n_ids += 1;
            let request = Request {
                priority,
                tenant: tenant.into(),
                ..Request::greedy(vec![1], 1)
            };
            let sequence = Sequence::new(id, request, None, Arc::default(), ContextPolicy::Stop);
            let slot = self.sequences.insert(sequence);
            self.queue.push(&self.sequences[slot], slot);
            self.waiting.insert(id);
            id
        }

        fn next(&self) -> Option<RequestId> {
            self.queue.next().map(|slot| self.sequences[slot].id)
        }

        fn start(&mut self) -> RequestId {
            let slot = self.queue.next().expect("one waits");
            self.queue.start(&self.sequences[slot]);
            self.sequences[slot].was_admitted = true;
            let id = self.sequences[slot].id;
            assert!(self.waiting.remove(&id));
            self.running.insert(id);
            id
        }

        fn preempt(&mut self, id: RequestId) {
            let slot = self.sequences.find(id).unwrap();
            self.queue.stop(&self.sequences[slot]);
            self.queue.push(&self.sequences[slot], slot);
            self.running.remove(&id);
            self.waiting.insert(id);
        }

        fn end(&mut self, id: RequestId) {
            let slot = self.sequences.find(id).unwrap();
            if self.running.remove(&id) {
                self.queue.stop(&self.sequences[slot]);
            } else {
                assert!(self.waiting.remove(&id) && self.queue.remove(&self.sequences[slot]));
            }
            self.sequences.remove(slot);
        }

        fn get(&self, id: RequestId) -> &Sequence {
            &self.sequences[self.sequences.find(id).unwrap()]
        }

        /// The requests of a tenant that wait and never ran.
        fn new_of(&self, tenant: &str) -> Vec<RequestId> {
            let waiting = self.waiting.iter().copied();
            let is_own = |sequence: &Sequence| &*sequence.request.tenant == tenant;
            let new = |id: &RequestId| is_own(self.get(*id)) && !self.get(*id).was_admitted;
            waiting.filter(new).collect()
        }

        fn n_running(&self, tenant: &str) -> usize {
            let is_own = |id: &&RequestId| &*self.get(**id).request.tenant == tenant;
            self.running.iter().filter(is_own).count()
        }
    }

    #[test]
    fn no_tenant_waits_for_more_than_a_turn_of_each_other() {
        for seed in 0..60 {
            let mut random = Random(seed);
            let mut world = World::default();
            let max_running = 1 + random.below(6);
            // The tenants that had turns while one waited with nothing running.
            let mut before_it: HashMap<&str, Vec<String>> = HashMap::new();
            for _ in 0..500 {
                let ids = [&world.waiting, &world.running];
                let [waiting, running] = ids.map(|ids| ids.iter().copied().collect::<Vec<_>>());
                match random.below(8) {
                    0..4 => {
                        // The first one sends most.
                        let tenant = TENANTS[random.below(7).saturating_sub(3)];
                        world.submit(tenant, 0);
                    }
                    4..6 if !running.is_empty() => world.end(running[random.below(running.len())]),
                    6 if !running.is_empty() => world.preempt(running[random.below(running.len())]),
                    7 if !waiting.is_empty() => world.end(waiting[random.below(waiting.len())]),
                    _ => {}
                }
                while world.running.len() < max_running
                    && let Some(next) = world.next()
                {
                    let ran = |id: &&RequestId| world.get(**id).was_admitted;
                    if let Some(oldest) = world.waiting.iter().find(ran) {
                        assert_eq!(next, *oldest);
                        world.start();
                        continue;
                    }
                    let tenant = world.get(next).request.tenant.to_string();
                    assert_eq!(next, world.new_of(&tenant)[0], "by age");
                    for other in TENANTS {
                        let turns = before_it.entry(other).or_default();
                        if other == tenant || world.new_of(other).is_empty() {
                            turns.clear();
                            continue;
                        }
                        assert!(world.n_running(&tenant) <= world.n_running(other));
                        if world.n_running(other) > 0 {
                            turns.clear();
                        } else {
                            assert!(!turns.contains(&tenant), "seed {seed}: {other} waits");
                            turns.push(tenant.clone());
                        }
                    }
                    world.start();
                }
                for tenant in TENANTS {
                    if world.new_of(tenant).is_empty() {
                        before_it.remove(tenant);
                    }
                }
                assert_eq!(world.queue.len(), world.waiting.len());
            }
            for id in world
                .waiting
                .clone()
                .into_iter()
                .chain(world.running.clone())
            {
                world.end(id);
            }
            assert!(world.queue.lines.is_empty() && world.queue.order.is_empty());
        }
    }

    #[test]
    fn priority_comes_before_fairness_and_what_ran_before_what_did_not() {
        let mut world = World::default();
        let urgent = [1, 1, 1].map(|priority| world.submit("a", priority));
        let [other, same] = ["b", "a"].map(|tenant| world.submit(tenant, 0));
        assert_eq!([(), (), ()].map(|()| world.start()), urgent);
        // What a tenant runs in one priority does not count in another.
        assert_eq!(world.start(), other);
        let again = world.submit("b", 0);
        for id in [urgent[2], urgent[0], other] {
            world.preempt(id);
        }
        let order = [urgent[0], urgent[2], other, same, again];
        assert_eq!(order.map(|_| world.start()), order);
    }
}
