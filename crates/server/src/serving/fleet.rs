//! The models that a server offers: those in memory, and those that are loaded when somebody asks for them.
//!
//! One model is loaded at a time. If it does not fit beside the others, those that nobody has asked for the longest leave
//! first; the requests of a model that leaves are finished before.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use rocmforge_engine::Failure;
use rocmforge_engine::serve::Handle;
use tokio::sync::watch;

use crate::config::{Config, SharedPrefix};
use crate::http::error::{ApiError, whole_seconds};
use crate::observe::metrics::Metrics;
use crate::serving::model::Served;
use crate::serving::slot::{Failed, KeepAlive, LoadError, Offer, Resident, Slot, State};

/// Time between two looks for models that nobody uses, unless they are to leave sooner.
const USUAL_LOOK_TIME: Duration = Duration::from_secs(1);
/// Why a model is not loaded if this program has panicked.
const OUR_FAULT: &str = "loading it failed; please report this";

/// The models of a server.
pub(crate) struct Fleet {
    slots: Vec<Arc<Slot>>,
    /// Bytes that the models in memory may take together.
    max_bytes: u64,
    /// Time after which a model that nobody uses leaves the memory.
    idle_time: Option<Duration>,
    /// Time after which loading a model is tried again that could not be loaded.
    retry_time: Duration,
    metrics: Arc<Metrics>,
    /// System messages that the caches of all keys share.
    shared_prefixes: Arc<[SharedPrefix]>,
    notice: fn(&str),
    /// Whose turn it is to load.
    loading: tokio::sync::Mutex<()>,
    /// Why the only model has failed.
    lost: watch::Sender<Option<String>>,
}

/// Who asks for a model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Client,
    /// Learns why a model cannot be loaded, and has it tried again at once.
    Owner,
}

/// Whether other models may be unloaded to make room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Make,
    TakeFree,
}

impl Fleet {
    pub(crate) fn new(offers: Vec<Offer>, config: &Config, metrics: Arc<Metrics>) -> Fleet {
        let slot = |offer| Arc::new(Slot::new(offer));
        Fleet {
            slots: offers.into_iter().map(slot).collect(),
            max_bytes: config.max_model_bytes.unwrap_or(u64::MAX),
            idle_time: config.idle_unload,
            retry_time: config.limits.load_retry_time,
            metrics,
            shared_prefixes: config.shared_prefixes.as_slice().into(),
            notice: config.notice,
            loading: tokio::sync::Mutex::default(),
            lost: watch::Sender::default(),
        }
    }

    pub(crate) fn slots(&self) -> &[Arc<Slot>] {
        &self.slots
    }

    /// Returns the models in memory.
    pub(crate) fn in_memory(&self) -> Vec<Arc<Served>> {
        self.slots.iter().filter_map(|slot| slot.ready()).collect()
    }

    /// Returns how long the longest of the steps under way takes.
    pub(crate) fn longest_step(&self) -> Option<Duration> {
        let slots = self.slots.iter();
        slots.filter_map(|slot| slot.step_time()).max()
    }

    /// Returns the model of this name, the first one without a name.
    ///
    /// # Errors
    /// There is no such model.
    pub(crate) fn slot(&self, name: Option<&str>) -> Result<&Arc<Slot>, ApiError> {
        let found = match name {
            None | Some("") => self.slots.first(),
            Some(name) => self.slots.iter().find(|slot| slot.has_name(name)),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = self.slots.iter().map(|slot| slot.name()).collect();
            let message = format!(
                "there is no such model; this server has {}",
                names.join(", ")
            );
            let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
            ApiError {
                param: Some("model".to_string()),
                ..error
            }
        })
    }

    /// Returns a model. One that is not in memory is loaded; this goes on if the caller stops waiting.
    ///
    /// # Errors
    /// It cannot be loaded, or too many wait for it.
    pub(crate) async fn model(
        self: &Arc<Fleet>,
        slot: &Arc<Slot>,
        asker: Asker,
    ) -> Result<Arc<Served>, ApiError> {
        slot.touch();
        if asker == Asker::Owner {
            slot.forget_failure();
        }
        if let Some(served) = slot.ready() {
            return Ok(served);
        }
        let _waiting = slot.wait()?;
        let mut states = slot.state.subscribe();
        let mut is_tried = false;
        loop {
            let state = states.borrow_and_update().clone();
            match state {
                State::Ready(resident) => return Ok(resident.served),
                State::Away => self.begin(slot, Room::Make),
                State::Failed(failed) => match self.retry(slot, &failed) {
                    Some(room) if !is_tried => self.begin(slot, room),
                    _ => return Err(self.cannot_load(asker, &failed.reason)),
                },
                State::Loading | State::Leaving { .. } => {
                    is_tried |= matches!(state, State::Loading);
                    let changed = states.changed().await;
                    changed.map_err(|_| ApiError::stopping())?;
                }
            }
        }
    }

    /// Loads the models that are to be there from the start, as far as they fit beside each other.
    ///
    /// # Errors
    /// The name of one that cannot be loaded, and why.
    pub(crate) async fn load_first(self: &Arc<Fleet>) -> Result<(), (String, String)> {
        for slot in self.slots.iter().filter(|slot| slot.offer.at_start) {
            let Some(before) = slot.begin_loading() else {
                // A client was faster.
                let mut states = slot.state.subscribe();
                let _ = states
                    .wait_for(|state| !matches!(state, State::Loading))
                    .await;
                continue;
            };
            let entered = self.enter(slot, Room::TakeFree, before).await;
            entered.map_err(|reason| (slot.name().to_string(), reason.to_string()))?;
            if slot.ready().is_none() {
                (self.notice)(&format!(
                    "notice: {} does not fit beside the other models; it is loaded when it is asked for",
                    slot.name()
                ));
            }
        }
        Ok(())
    }

    /// Unloads models that nobody uses, as long as the server runs: after the time for all of them, or that which a client
    /// has set for one.
    pub(crate) async fn unload_idle(&self) {
        let look_time = self.idle_time.map_or(USUAL_LOOK_TIME, |time| time / 8);
        let look_time = look_time.clamp(Duration::from_millis(1), USUAL_LOOK_TIME);
        let mut looks = tokio::time::interval(look_time);
        loop {
            looks.tick().await;
            let is_idle = |slot: &Slot, resident: &Resident| {
                let stats = resident.served.engine.stats();
                if stats.running + stats.waiting > 0 {
                    slot.touch();
                }
                let idle_time = match slot.keep_alive() {
                    Some(KeepAlive::For(time)) => Some(time),
                    Some(KeepAlive::Forever) => None,
                    None => self.idle_time,
                };
                idle_time.is_some_and(|idle_time| slot.last_use().elapsed() >= idle_time)
            };
            let residents = self.residents().into_iter();
            // A model is not gone as long as this list has it.
            let idle: Vec<&Arc<Slot>> = residents
                .filter_map(|(slot, resident)| is_idle(slot, &resident).then_some(slot))
                .collect();
            for slot in idle {
                self.remove(slot).await;
            }
        }
    }

    /// Unloads a model once its requests are finished. Does not wait for a model that is being loaded.
    ///
    /// # Errors
    /// It is not in memory.
    pub(crate) async fn unload(self: &Arc<Fleet>, slot: &Arc<Slot>) -> Result<(), ApiError> {
        let (fleet, slot) = (Arc::clone(self), Arc::clone(slot));
        let unloaded = tokio::spawn(async move { fleet.remove(&slot).await });
        match unloaded.await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let error = ApiError::bad("the model is not in memory");
                Err(error.code("model_not_loaded"))
            }
            Err(_) => Err(ApiError::internal("unloading the model failed")),
        }
    }

    /// Tells that a model cannot be loaded. The reason may name files, which are no business of clients.
    fn cannot_load(&self, asker: Asker, reason: &str) -> ApiError {
        let message = match asker {
            Asker::Owner => format!("the model cannot be loaded: {reason}"),
            Asker::Client => {
                "the model could not be loaded; the server's log has the reason".to_string()
            }
        };
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
        let seconds = whole_seconds(self.retry_time);
        error.code("model_load_failed").retry_after(seconds)
    }

    /// Returns the room for another try to load a model; `None` if it is too early for one, or if others would leave again
    /// for the same file.
    fn retry(&self, slot: &Slot, failed: &Failed) -> Option<Room> {
        if failed.at.elapsed() < self.retry_time {
            return None;
        }
        match failed.freed {
            Some(bytes) if slot.file_version() == failed.file => {
                self.fits(bytes).then_some(Room::TakeFree)
            }
            _ => Some(Room::Make),
        }
    }

    /// Begins to load a model, unless it is there or on its way.
    fn begin(self: &Arc<Fleet>, slot: &Arc<Slot>, room: Room) {
        let Some(before) = slot.begin_loading() else {
            return;
        };
        let (fleet, slot) = (Arc::clone(self), Arc::clone(slot));
        tokio::spawn(async move {
            if let Err(error) = fleet.enter(&slot, room, before).await {
                (fleet.notice)(&format!("error: {} is not loaded: {error}", slot.name()));
            }
        });
    }

    /// Loads a model whose state is `Loading`. Without room for it, its state is as `before`.
    async fn enter(
        self: &Arc<Fleet>,
        slot: &Arc<Slot>,
        room: Room,
        before: State,
    ) -> Result<(), Arc<str>> {
        let _turn = self.loading.lock().await;
        let file = slot.file_version();
        let mut freed = match &before {
            State::Failed(before) if before.file == file => before.freed,
            _ => None,
        };
        let failed = |reason, freed| {
            let at = Instant::now();
            State::Failed(Failed {
                reason,
                at,
                file,
                freed,
            })
        };
        let mut then = slot.then(failed(OUR_FAULT.into(), freed));
        let loaded = self.load(slot, room, &mut freed).await;
        then.state = match (loaded, before) {
            (Ok(Some(resident)), _) => {
                slot.touch();
                self.watch(slot, &resident.served);
                State::Ready(resident)
            }
            (Ok(None), State::Failed(before)) => failed(before.reason, freed),
            (Ok(None), before) => before,
            (Err(error), _) => {
                let reason: Arc<str> = error.to_string().into();
                then.state = failed(Arc::clone(&reason), freed);
                return Err(reason);
            }
        };
        Ok(())
    }

    /// Loads a model; `None` if there is no room for it. Sets `freed` to the bytes that other models leave the memory for.
    async fn load(
        &self,
        slot: &Arc<Slot>,
        room: Room,
        freed: &mut Option<u64>,
    ) -> Result<Option<Resident>, LoadError> {
        let of_slot = Arc::clone(slot);
        let prepared = blocking(move || (of_slot.offer.prepare)()).await?;
        let bytes = prepared.bytes.min(self.max_bytes);
        if !self.fits(bytes) {
            if room == Room::TakeFree {
                return Ok(None);
            }
            *freed = Some(bytes);
        }
        self.make_room(bytes).await;
        let (of_slot, metrics) = (Arc::clone(slot), self.metrics.of_model(slot.name()));
        let (shared, notice) = (Arc::clone(&self.shared_prefixes), self.notice);
        let served = blocking(move || {
            let model = (prepared.start)(bytes)?;
            let defaults = of_slot.offer.defaults.clone();
            let served = Served::new(of_slot.name(), model, defaults, shared, metrics);
            for (name, error) in served.render_shared() {
                let model = of_slot.name();
                notice(&format!(
                    "notice: {name} is no shared prefix of {model}: {error}"
                ));
            }
            Ok(served)
        });
        let served = Arc::new(served.await?);
        Ok(Some(Resident { served, bytes }))
    }

    /// Has the model leave the memory when its engine fails.
    fn watch(self: &Arc<Fleet>, slot: &Arc<Slot>, served: &Arc<Served>) {
        // The engine keeps neither its model nor the server alive.
        let (fleet, slot) = (Arc::downgrade(self), Arc::downgrade(slot));
        let (failed, runtime) = (Arc::downgrade(served), tokio::runtime::Handle::current());
        // Called on the engine's thread, which does not wait.
        served.engine.on_failure(move |failure| {
            if let (Some(fleet), Some(slot)) = (fleet.upgrade(), slot.upgrade()) {
                runtime.spawn(async move { fleet.lose(&slot, &failed, &failure).await });
            }
        });
    }

    /// Takes a model whose engine has failed out of the memory, and lets it be loaded again. A server with this model only
    /// is to end.
    async fn lose(&self, slot: &Slot, failed: &Weak<Served>, failure: &Failure) {
        let mut states = slot.state.subscribe();
        let entered = |state: &State| !matches!(state, State::Loading);
        let _ = states.wait_for(entered).await;
        (self.notice)(&format!("error: {} has failed: {failure}", slot.name()));
        let then = State::Failed(Failed {
            reason: failure.to_string().into(),
            at: Instant::now(),
            file: slot.file_version(),
            freed: None,
        });
        if self.slots.len() == 1 {
            self.lost.send_replace(Some(failure.to_string()));
        }
        self.leave(slot, then, |served| {
            std::ptr::eq(Arc::as_ptr(served), failed.as_ptr())
        })
        .await;
    }

    /// Waits until the only model has failed; returns its name and the reason.
    pub(crate) async fn lost(&self) -> (String, String) {
        let mut lost = self.lost.subscribe();
        let lost = lost.wait_for(Option::is_some).await;
        let reason = lost.ok().and_then(|lost| lost.clone()).unwrap_or_default();
        (self.slots[0].name().to_string(), reason)
    }

    /// Returns the names of the models that have failed, or could not be loaded, and are not tried again yet.
    pub(crate) fn failed(&self) -> Vec<&str> {
        let slots = self.slots.iter();
        let failed = slots.filter(|slot| slot.failed_within(self.retry_time));
        failed.map(|slot| slot.name()).collect()
    }

    /// The models in memory, and the bytes of each.
    fn residents(&self) -> Vec<(&Arc<Slot>, Resident)> {
        let of_slot = |slot: &Slot| match &*slot.state.borrow() {
            State::Ready(resident) => Some(resident.clone()),
            _ => None,
        };
        let slots = self.slots.iter();
        slots
            .filter_map(|slot| Some((slot, of_slot(slot)?)))
            .collect()
    }

    /// Bytes of the models that leave the memory, and one of them.
    fn leaving(&self) -> (u64, Option<&Arc<Slot>>) {
        let bytes_of = |slot: &Slot| match &*slot.state.borrow() {
            State::Leaving { bytes, .. } => Some(*bytes),
            _ => None,
        };
        let slots = self.slots.iter();
        slots.fold((0, None), |(sum, one), slot| match bytes_of(slot) {
            Some(bytes) => (sum + bytes, Some(slot)),
            None => (sum, one),
        })
    }

    fn fits(&self, bytes: u64) -> bool {
        let residents = self.residents();
        let used: u64 = residents.iter().map(|(_, resident)| resident.bytes).sum();
        bytes.saturating_add(used) <= self.max_bytes
    }

    /// Waits until this many bytes are free. Unloads models for that: first those without requests, then those that nobody
    /// has asked for the longest.
    async fn make_room(&self, bytes: u64) {
        loop {
            let (leaving_bytes, leaving) = self.leaving();
            if self.fits(bytes.saturating_add(leaving_bytes)) {
                return;
            }
            if let Some(slot) = leaving.filter(|_| self.fits(bytes)) {
                // What the owner unloads is enough.
                let mut states = slot.state.subscribe();
                let gone = |state: &State| !matches!(state, State::Leaving { .. });
                let _ = states.wait_for(gone).await;
                continue;
            }
            let residents = self.residents().into_iter();
            let next = residents.min_by_key(|(slot, resident)| {
                // One more here than without requests: that of the list.
                let is_busy = Arc::strong_count(&resident.served) > 2;
                (is_busy, slot.last_use())
            });
            match next.map(|(slot, _)| Arc::clone(slot)) {
                Some(slot) => self.remove(&slot).await,
                None => return,
            };
        }
    }

    /// Unloads a model after its requests; returns whether it was in memory.
    async fn remove(&self, slot: &Slot) -> bool {
        // Those that have waited for it come first, or they might wait for ever.
        let mut waiting = slot.n_waiting.subscribe();
        let is_ready = || matches!(&*slot.state.borrow(), State::Ready(_));
        if is_ready() {
            let _ = waiting.wait_for(|n| *n == 0).await;
        }
        self.leave(slot, State::Away, |_| true).await
    }

    /// Takes a model out of the memory, if it is there and `is_it`, and enters the state `then` after its last request.
    /// Returns whether it did.
    async fn leave(&self, slot: &Slot, then: State, is_it: impl Fn(&Arc<Served>) -> bool) -> bool {
        let mut taken = None;
        slot.state.send_if_modified(|state| {
            let State::Ready(Resident { served, bytes }) = state else {
                return false;
            };
            if !is_it(served) {
                return false;
            }
            let (engine, bytes) = (Handle::clone(&served.engine), *bytes);
            taken = Some(Arc::clone(served));
            *state = State::Leaving { engine, bytes };
            true
        });
        let Some(served) = taken else { return false };
        slot.set_keep_alive(None);
        let _then = slot.then(then);
        (self.notice)(&format!("notice: {} leaves the memory", slot.name()));
        let mut gone = served.gone();
        // Ending an engine waits for its step.
        let _ = tokio::task::spawn_blocking(move || drop(served)).await;
        // Fails when the last request has let go of the model.
        let _ = gone.changed().await;
        true
    }
}

/// Runs `work` on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(OUR_FAULT.into()))
}
