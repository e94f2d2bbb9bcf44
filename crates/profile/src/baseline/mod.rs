//! Measurements that were kept, and what later ones are beside them.
