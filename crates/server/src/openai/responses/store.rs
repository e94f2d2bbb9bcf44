//! Responses that `previous_response_id` may continue. They are kept on request only, in bounded memory, apart for each
//! key.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// What is kept at most.
#[derive(Clone, Copy)]
struct Bounds {
    /// Bytes of the conversations of a key, as JSON. Its oldest are forgotten first.
    bytes_of_key: usize,
    /// Conversations of a key.
    n_of_key: usize,
    /// Bytes of all conversations. The oldest of the key that has most are forgotten first.
    bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            bytes_of_key: 16 << 20,
            n_of_key: 2_000,
            bytes: 256 << 20,
        }
    }
}

/// What `previous_response_id` continues, and what of a request is kept for it.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) store: bool,
    pub(super) owner: Option<String>,
    /// Items of the conversation up to the answer.
    pub(super) items: Vec<Value>,
}

/// The conversations.
#[derive(Default)]
pub(crate) struct Store {
    all: Mutex<HashMap<Option<String>, Conversations>>,
    bounds: Bounds,
}

/// Those of a key, or of all clients of a server without keys.
#[derive(Default)]
struct Conversations {
    /// The oldest first.
    all: VecDeque<Conversation>,
    n_bytes: usize,
}

struct Conversation {
    id: String,
    /// Those up to the answer.
    items: Vec<Value>,
    response: Value,
    n_bytes: usize,
}

impl Conversations {
    fn position(&self, id: &str) -> Option<usize> {
        self.all.iter().position(|kept| kept.id == id)
    }

    fn remove(&mut self, at: usize) {
        if let Some(removed) = self.all.remove(at) {
            self.n_bytes -= removed.n_bytes;
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, HashMap<Option<String>, Conversations>> {
        // No code panics while it holds the lock.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the items of a conversation of this owner.
    pub(super) fn items(&self, id: &str, owner: &Option<String>) -> Option<Vec<Value>> {
        let all = self.lock();
        let kept = all.get(owner)?;
        let kept = &kept.all[kept.position(id)?];
        let output = kept.response["output"].as_array().into_iter().flatten();
        Some(kept.items.iter().chain(output).cloned().collect())
    }

    /// Returns a response to this owner.
    pub(super) fn response(&self, id: &str, owner: &Option<String>) -> Option<Value> {
        let all = self.lock();
        let kept = all.get(owner)?;
        Some(kept.all[kept.position(id)?].response.clone())
    }

    /// Keeps a conversation with its answer, if that was asked for.
    pub(super) fn keep(&self, kept: &Kept, response: &Value) {
        let (true, Some(id)) = (kept.store, response["id"].as_str()) else {
            return;
        };
        let parts = kept.items.iter().chain([response]);
        let n_bytes = parts.map(|part| part.to_string().len()).sum();
        let bounds = self.bounds;
        if n_bytes > bounds.bytes_of_key {
            return;
        }
        let mut all = self.lock();
        let of_key = all.entry(kept.owner.clone()).or_default();
        while of_key.n_bytes + n_bytes > bounds.bytes_of_key || of_key.all.len() >= bounds.n_of_key
        {
            of_key.remove(0);
        }
        of_key.n_bytes += n_bytes;
        of_key.all.push_back(Conversation {
            id: id.to_string(),
            items: kept.items.clone(),
            response: response.clone(),
            n_bytes,
        });
        while all.values().map(|kept| kept.n_bytes).sum::<usize>() > bounds.bytes {
            let most = all.values_mut().max_by_key(|kept| kept.n_bytes);
            most.expect("one of them has bytes").remove(0);
        }
    }

    /// Forgets a conversation of this owner. Returns whether there was one.
    pub(super) fn remove(&self, id: &str, owner: &Option<String>) -> bool {
        let mut all = self.lock();
        let Some(kept) = all.get_mut(owner) else {
            return false;
        };
        let found = kept.position(id);
        found.inspect(|&at| kept.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keep(store: &Store, id: &str, owner: &str, text: &str) {
        let kept = Kept {
            store: true,
            owner: Some(owner.to_string()),
            items: vec![json!(text)],
        };
        store.keep(&kept, &json!({"id": id, "output": [{"type": "message"}]}));
    }

    fn owner(name: &str) -> Option<String> {
        Some(name.to_string())
    }

    fn has(store: &Store, id: &str, name: &str) -> bool {
        store.items(id, &owner(name)).is_some()
    }

    #[test]
    fn conversations_belong_to_their_owner() {
        let store = Store::default();
        keep(&store, "a", "alice", "x");
        assert_eq!(store.items("a", &owner("alice")).unwrap().len(), 2);
        assert_eq!(store.response("a", &owner("alice")).unwrap()["id"], "a");
        assert!(store.response("a", &owner("bob")).is_none());
        assert!(!has(&store, "a", "bob"));
        assert!(store.items("a", &None).is_none());
        assert!(!store.remove("a", &owner("bob")));
        assert!(store.remove("a", &owner("alice")));
        assert!(!has(&store, "a", "alice"));
        assert_eq!(store.lock()[&owner("alice")].n_bytes, 0);
    }

    fn small() -> Store {
        let bounds = Bounds {
            bytes_of_key: 1000,
            n_of_key: 10,
            bytes: 2500,
        };
        Store {
            bounds,
            ..Store::default()
        }
    }

    #[test]
    fn memory_is_bounded_for_each_key() {
        let store = small();
        keep(&store, "b", "bob", "x");
        let text = "x".repeat(400);
        for id in ["a", "b", "c", "d"] {
            keep(&store, id, "alice", &text);
        }
        assert!(!has(&store, "a", "alice") && !has(&store, "b", "alice"));
        assert!(has(&store, "c", "alice") && has(&store, "d", "alice"));
        // Another key keeps what it has.
        assert!(has(&store, "b", "bob"));
        keep(&store, "huge", "alice", &"x".repeat(1000));
        assert!(!has(&store, "huge", "alice") && has(&store, "d", "alice"));
        for i in 0..=10 {
            keep(&store, &i.to_string(), "carol", "x");
        }
        assert!(!has(&store, "0", "carol") && has(&store, "1", "carol"));
    }

    #[test]
    fn memory_is_bounded_for_all_keys() {
        let store = small();
        keep(&store, "a", "small", "x");
        let text = "x".repeat(900);
        for i in 0..20 {
            keep(&store, "a", &format!("key {i}"), &text);
        }
        let n_bytes: usize = store.lock().values().map(|kept| kept.n_bytes).sum();
        assert!((1..=2500).contains(&n_bytes));
        assert!(has(&store, "a", "small"));
    }
}
