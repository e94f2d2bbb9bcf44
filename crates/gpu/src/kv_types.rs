// The types of the KV cache that `kernels/kv` are compiled for. The build of the GPU kernels includes this file.

/// `kv_types!(then)` expands to `then! { F16: F16 F16, ... }`: a name, the type of keys and that of values.
macro_rules! kv_types {
    ($then:ident $($arguments:tt)*) => {
        $then! {
            $($arguments)*
            F16: F16 F16, Q8_0: Q8_0 Q8_0, F8E4M3: F8E4M3 F8E4M3, Q5_1: Q5_1 Q5_1, Q4_0: Q4_0 Q4_0,
            F16_Q8_0: F16 Q8_0, Q8_0_Q4_0: Q8_0 Q4_0
        }
    };
}
