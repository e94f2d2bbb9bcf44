//! Responses that `previous_response_id` may continue. They are kept on request only, in bounded memory, apart for each
//! key.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Bytes of all conversations that are kept, as JSON. The oldest are forgotten first.
const MAX_BYTES: usize = 64 << 20;
/// Conversations that are kept.
const MAX_RESPONSES: usize = 10_000;

/// What `previous_response_id` continues, and what of a response is kept for it.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) store: bool,
    pub(super) owner: Option<String>,
    /// Items of the conversation up to the answer.
    pub(super) items: Vec<Value>,
}

/// The conversations.
#[derive(Default)]
pub(crate) struct Store(Mutex<Conversations>);

#[derive(Default)]
struct Conversations {
    /// The oldest first.
    all: VecDeque<Conversation>,
    n_bytes: usize,
}

struct Conversation {
    id: String,
    owner: Option<String>,
    items: Vec<Value>,
    n_bytes: usize,
}

impl Conversations {
    fn position(&self, id: &str, owner: Option<&str>) -> Option<usize> {
        self.all
            .iter()
            .position(|kept| kept.id == id && kept.owner.as_deref() == owner)
    }

    fn remove(&mut self, at: usize) {
        if let Some(removed) = self.all.remove(at) {
            self.n_bytes -= removed.n_bytes;
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Conversations> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the items of a conversation of this owner.
    pub(super) fn items(&self, id: &str, owner: Option<&str>) -> Option<Vec<Value>> {
        let kept = self.lock();
        let at = kept.position(id, owner)?;
        Some(kept.all[at].items.clone())
    }

    /// Keeps a conversation with its answer, if that was asked for.
    pub(super) fn keep(&self, kept: &Kept, response: &Value) {
        let (true, Some(id)) = (kept.store, response["id"].as_str()) else {
            return;
        };
        let mut items = kept.items.clone();
        items.extend(response["output"].as_array().into_iter().flatten().cloned());
        let n_bytes = items.iter().map(|item| item.to_string().len()).sum();
        if n_bytes > MAX_BYTES {
            return;
        }
        let mut all = self.lock();
        while all.n_bytes + n_bytes > MAX_BYTES || all.all.len() >= MAX_RESPONSES {
            all.remove(0);
        }
        all.n_bytes += n_bytes;
        all.all.push_back(Conversation {
            id: id.to_string(),
            owner: kept.owner.clone(),
            items,
            n_bytes,
        });
    }

    /// Forgets a conversation of this owner. Returns whether there was one.
    pub(super) fn remove(&self, id: &str, owner: Option<&str>) -> bool {
        let mut kept = self.lock();
        let found = kept.position(id, owner);
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

    #[test]
    fn conversations_belong_to_their_owner() {
        let store = Store::default();
        keep(&store, "a", "alice", "x");
        assert_eq!(store.items("a", Some("alice")).unwrap().len(), 2);
        assert!(store.items("a", Some("bob")).is_none());
        assert!(store.items("a", None).is_none());
        assert!(!store.remove("a", Some("bob")));
        assert!(store.remove("a", Some("alice")));
        assert!(store.items("a", Some("alice")).is_none());
        assert_eq!(store.lock().n_bytes, 0);
    }

    #[test]
    fn memory_is_bounded() {
        let store = Store::default();
        let text = "x".repeat(10 << 20);
        for id in ["a", "b", "c", "d", "e", "f", "g"] {
            keep(&store, id, "alice", &text);
        }
        assert!(store.items("a", Some("alice")).is_none());
        assert!(store.items("g", Some("alice")).is_some());
        assert!(store.lock().n_bytes <= MAX_BYTES);
        keep(&store, "huge", "alice", &"x".repeat(MAX_BYTES));
        assert!(store.items("huge", Some("alice")).is_none());
    }
}
