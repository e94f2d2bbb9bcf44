//! Profiles with hostile names everywhere.

use rocmforge_profile::schema::Profile;

/// A name that attacks the reader of a page.
pub(crate) const HOSTILE: &str = "</script></style></title>]]><script>console.error(\"harm\")</script><img src=x onerror=console.error('harm')>\"'&;\u{0}\u{ffff}\u{202e}";

/// Returns `profile` with the hostile string appended to all free text.
pub(crate) fn hostile(profile: &Profile) -> Profile {
    fn poison(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) => text.push_str(HOSTILE),
            serde_json::Value::Array(values) => values.iter_mut().for_each(poison),
            serde_json::Value::Object(fields) => {
                // These are variants of an enum.
                let is_free = |key: &str| !["bound", "lane", "recommendation"].contains(&key);
                fields
                    .iter_mut()
                    .filter(|(key, _)| is_free(key))
                    .for_each(|(_, value)| poison(value));
                for map in ["time_by_backend", "ops_by_backend", "ops_by_type"] {
                    if let Some(serde_json::Value::Object(entries)) = fields.get_mut(map) {
                        *entries = std::mem::take(entries)
                            .into_iter()
                            .map(|(key, value)| (key + HOSTILE, value))
                            .collect();
                    }
                }
            }
            _ => {}
        }
    }
    let mut value = serde_json::to_value(profile).unwrap();
    poison(&mut value);
    let mut profile: Profile = serde_json::from_value(value).unwrap();
    // Phases are looked up by name.
    for phase in &mut profile.phases {
        phase.name.truncate(phase.name.len() - HOSTILE.len());
    }
    profile
}
