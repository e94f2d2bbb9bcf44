//! Files of a profile: trace, flame graph, page.
