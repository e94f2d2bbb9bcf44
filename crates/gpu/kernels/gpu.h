// A freestanding layer over compiler builtins: clang for amdgcn, clang for nvptx, and clang for the CPU emulator, which
// is for tests only (GPU_HOST, see host.h). No vendor header is included and no library is linked.
//
// A kernel is written as
//
//     struct Params {
//         const float* x;
//         float* out;
//         u32 n;
//         FIELDS(x, out, n)     // mirrored in Rust, #[repr(C)]
//     };
//     KERNEL(scale, Params, 256) { u32 i = bid_x() * 256 + tid(); if (i < p.n) p.out[i] = 2 * p.x[i]; }
//
// where 256 is the number of threads per block and `p` the parameters. Collectives (barrier, wave_*, shuffle_*, matrix
// operations) may only be used where all threads of the block, or of the wave, arrive: under conditions made with
// uniform().
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef _Float16 f16;

static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(u16) == 2 && sizeof(f16) == 2, "sizes");

// ---------------------------------------------------------------------------------------------- which machine
// GPU_AMD, GPU_NV or GPU_HOST; and for the matrix units exactly one of GPU_GFX10, GPU_GFX11, GPU_GFX12 (waves of 32),
// GPU_CDNA (waves of 64), GPU_NVIDIA. The CPU emulator is built once for each (a persona).
#if defined(GPU_HOST)
// -DGPU_PERSONA_... selects it.
#if defined(GPU_PERSONA_GFX10)
#define GPU_GFX10 1
#elif defined(GPU_PERSONA_GFX11)
#define GPU_GFX11 1
#elif defined(GPU_PERSONA_GFX12)
#define GPU_GFX12 1
#elif defined(GPU_PERSONA_CDNA)
#define GPU_CDNA 1
#elif defined(GPU_PERSONA_NV)
#define GPU_NVIDIA 1
#else
#error "choose the emulated GPU: -DGPU_PERSONA_GFX11 and so on"
#endif
#elif defined(__AMDGCN__)
#define GPU_AMD 1
#if defined(__GFX9__)
#define GPU_CDNA 1
#elif defined(__GFX10__)
#define GPU_GFX10 1
#elif defined(__GFX11__)
#define GPU_GFX11 1
#elif defined(__GFX12__)
#define GPU_GFX12 1
#else
#error "unknown AMD target"
#endif
#elif defined(__CUDA_ARCH__)
#define GPU_NV 1
#define GPU_NVIDIA 1
#else
#error "compile for a device: --cuda-device-only, or -DGPU_HOST"
#endif

#if defined(GPU_CDNA)
constexpr u32 WARP_SIZE = 64;
#else
constexpr u32 WARP_SIZE = 32;
#endif

// ---------------------------------------------------------------------------------------------- declarations
#if defined(GPU_HOST)
#define DEV static inline __attribute__((always_inline))
#define DEV_MEMBER inline __attribute__((always_inline))
#define KERNEL(NAME, PARAMS, THREADS)                                                                                  \
    static void NAME##_body(const PARAMS& p);                                                                          \
    extern "C" __attribute__((visibility("default"))) const u32 NAME##_threads = THREADS;                              \
    extern "C" __attribute__((visibility("default"))) u32 NAME##_layout(host::Field* to, u32 most) {                   \
        return host::layout_of<PARAMS>(to, most);                                                                      \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) void NAME(const void* params) {                                  \
        NAME##_body(*(const PARAMS*)params);                                                                           \
    }                                                                                                                  \
    static void NAME##_body(const PARAMS& p)
#define KERNEL_THAT_BEGINS(NAME, PARAMS, THREADS)                                                                      \
    DEV void NAME##_whole(const PARAMS& p);                                                                            \
    KERNEL(NAME, PARAMS, THREADS) {                                                                                    \
        NAME##_whole(p);                                                                                               \
        host::check_begun();                                                                                           \
    }                                                                                                                  \
    DEV void NAME##_whole(const PARAMS& p)
// A constant for the host, read from the image.
#define EXPORT_U32(NAME, VALUE) extern "C" __attribute__((visibility("default"), used)) const u32 NAME = VALUE;
// All fields of a struct of parameters or of a table's entries, in order; at the end of the struct. A test compares
// them with those in Rust (src/kernel.rs), which have the same names. None may be called `to`.
#define FIELDS(...)                                                                                                    \
    __attribute__((disable_sanitizer_instrumentation)) void fields(host::Fields& to) const {                           \
        to.add(#__VA_ARGS__, __VA_ARGS__);                                                                             \
    }
#include "host.h"
// The source location of a collective, for the CPU emulator's errors: the default of the last argument of each.
using Site = host::Site;
#define HERE Site(__builtin_LINE(), __builtin_FILE())
// Shared memory of a block: `SHARED(float, part, 8);` declares `float* part`. The CPU emulator fills it with NaN.
#define SHARED(TYPE, NAME, COUNT)                                                                                      \
    static u8 NAME##_id;                                                                                               \
    TYPE* NAME = (TYPE*)host::shared(&NAME##_id, #NAME, sizeof(TYPE) * (COUNT), sizeof(TYPE))
// Dynamic shared memory in the size of the launch, 16-byte aligned.
#define DYNAMIC_SHARED(TYPE, NAME) TYPE* NAME = (TYPE*)host::dynamic_shared()
DEV void wait_for_predecessor() {}
DEV void let_successor_start() {}
#else
#define DEV static __attribute__((device)) inline __attribute__((always_inline))
#define DEV_MEMBER __attribute__((device)) inline __attribute__((always_inline))
// Where kernels overlap (programmatic dependent launch), a kernel's blocks start while the last blocks of its
// predecessor still run, which hides the time to start. Each thread waits for the end of the predecessor before it
// reads its results or writes anything, and then lets the next kernel start. Weights may be read before, since a launch after
// kernels that write them does not overlap (src/launch.rs), and what early.h says. A product may run beside another (gemm/half.h).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define OVERLAPS
DEV void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void let_successor_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEV void wait_for_predecessor() {}
DEV void let_successor_start() {}
#endif
// The number of threads. Without it, clang for AMD assumes 1024, with a quarter of the registers per thread.
#if defined(GPU_AMD)
#define BLOCK_OF(THREADS) amdgpu_flat_work_group_size(THREADS, THREADS)
#else
#define BLOCK_OF(THREADS) launch_bounds(THREADS)
#endif
#define KERNEL(NAME, PARAMS, THREADS) KERNEL_WITH(NAME, PARAMS, BLOCK_OF(THREADS), let_successor_start())
#define ENTRY(NAME, PARAMS, BLOCK)                                                                                     \
    extern "C" __attribute__((global, visibility("default"), BLOCK)) void NAME(const PARAMS p)
#if defined(OVERLAPS)
#define KERNEL_WITH(NAME, PARAMS, BLOCK, FIRST)                                                                        \
    DEV void NAME##_body(const PARAMS& p);                                                                             \
    ENTRY(NAME, PARAMS, BLOCK) {                                                                                       \
        wait_for_predecessor();                                                                                        \
        FIRST;                                                                                                         \
        NAME##_body(p);                                                                                                \
    }                                                                                                                  \
    DEV void NAME##_body(const PARAMS& p)
#else
#define KERNEL_WITH(NAME, PARAMS, BLOCK, FIRST) ENTRY(NAME, PARAMS, BLOCK)
#endif
// A kernel each of whose threads calls begin() itself.
#define KERNEL_THAT_BEGINS(NAME, PARAMS, THREADS) ENTRY(NAME, PARAMS, BLOCK_OF(THREADS))
#define EXPORT_U32(NAME, VALUE)                                                                                        \
    extern "C" __attribute__((device, constant, visibility("default"), used)) const u32 NAME = VALUE;
#define FIELDS(...)
struct Site {};
#define HERE Site()
#define SHARED(TYPE, NAME, COUNT) static __attribute__((shared, aligned(16))) TYPE NAME[COUNT]
#define DYNAMIC_SHARED(TYPE, NAME)                                                                                     \
    extern __attribute__((shared, aligned(16))) u8 dynamic_shared_bytes[];                                             \
    TYPE* NAME = (TYPE*)dynamic_shared_bytes
#endif
// What each thread of a kernel does before it reads anything but weights and what early.h says, or writes anything.
DEV void begin() {
#if defined(GPU_HOST)
    host::here().fibres[host::number()].n_begun++;
#endif
    wait_for_predecessor();
    let_successor_start();
}

// ---------------------------------------------------------------------------------------------- threads
// barrier(): all threads of the block meet, and see what the others wrote before. shared_barrier(): they see it in shared
// memory. It does not wait for loads and stores of device memory, and drops no cache, as a full one does on RDNA.
#if defined(GPU_AMD)
DEV u32 tid() { return __builtin_amdgcn_workitem_id_x(); }
DEV u32 bid_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEV u32 bid_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEV u32 bid_z() { return __builtin_amdgcn_workgroup_id_z(); }
DEV void barrier(Site = HERE) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEV void shared_barrier(Site = HERE) {
#if __clang_major__ >= 20
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
    barrier();
#endif
}
#elif defined(GPU_NV)
DEV u32 tid() { return __nvvm_read_ptx_sreg_tid_x(); }
DEV u32 bid_x() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEV u32 bid_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
DEV u32 bid_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }
// The waves of the block, of kernels that leave their number to the launch.
DEV u32 n_waves() { return __nvvm_read_ptx_sreg_ntid_x() / WARP_SIZE; }
DEV void barrier(Site = HERE) { __nvvm_bar_sync(0); }
DEV void shared_barrier(Site = HERE) { __nvvm_bar_sync(0); }
#else
DEV void barrier(Site at = HERE) { host::pause(host::State::AtBarrier, at); }
DEV void shared_barrier(Site at = HERE) { host::pause(host::State::AtSharedBarrier, at); }
#endif
// The same number, but opaque to the compiler: values computed from it inside a loop stay inside and hold no registers
// across the loop, for which ptxas would spill others.
DEV u32 opaque(u32 v) {
#if defined(GPU_NV)
    asm volatile("" : "+r"(v));
#endif
    return v;
}
// Returns v and forces it to be computed here. Otherwise clang 22 for AMD sinks a sum below the branches around later
// loads and keeps all its terms in registers until then.
DEV float computed_here(float v) {
#if defined(GPU_AMD)
    asm volatile("" : "+v"(v));
#endif
    return v;
}
// Returns b if `second`, else a; both are loaded. For NVIDIA, clang 22 would select one of two addresses of parameters and
// load through it: a generic load, for which sm_80 also gets a copy of the parameters in local memory.
DEV u32 choose_loaded(bool second, u32 a, u32 b) {
#if defined(GPU_NV)
    asm("" : "+r"(a), "+r"(b));
#endif
    return second ? b : a;
}
// The same for addresses of device memory, which loads then know to be global.
template <typename T> DEV T* choose_loaded(bool second, T* a, T* b) {
#if defined(GPU_NV)
    __attribute__((address_space(1))) T *first, *other;
    asm("cvta.to.global.u64 %0, %1;" : "=l"(first) : "l"(a));
    asm("cvta.to.global.u64 %0, %1;" : "=l"(other) : "l"(b));
    return (T*)(second ? other : first);
#else
    return second ? b : a;
#endif
}
DEV u32 lane() { return tid() % WARP_SIZE; }
DEV u32 wave() { return tid() / WARP_SIZE; }

// ---------------------------------------------------------------------------------------------- bits
template <typename To, typename From> DEV To bits(From from) { return __builtin_bit_cast(To, from); }
DEV float h2f(u16 half) { return (float)bits<f16>(half); }
DEV u16 f2h(float value) { return bits<u16>((f16)value); }
// Two numbers as f16 in a word, the first in the low half.
DEV u32 pack_halves(float low, float high) {
#if defined(GPU_NV)
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return f2h(low) | (u32)f2h(high) << 16;
#endif
}
template <typename T> DEV constexpr T min_of(T a, T b) { return a < b ? a : b; }
template <typename T> DEV T max_of(T a, T b) { return a > b ? a : b; }
DEV u32 div_up(u32 a, u32 b) { return (a + b - 1) / b; }

struct alignas(16) u32x4 {
    u32 v[4];
    DEV_MEMBER u32 operator[](u32 i) const { return v[i]; }
};
struct alignas(8) u32x2 {
    u32 v[2];
    DEV_MEMBER u32 operator[](u32 i) const { return v[i]; }
};
struct alignas(16) f32x4 {
    float v[4];
    DEV_MEMBER float operator[](u32 i) const { return v[i]; }
};

typedef u32 u32_vec4 __attribute__((ext_vector_type(4)));
typedef u32 u32_vec2 __attribute__((ext_vector_type(2)));

// Loads and stores of 16 or 8 bytes at once; `p` is aligned to as many. Vector types, because the compiler splits the
// members of a struct to merge some of them with other loads; and because clang 22 copies a struct to a byte of a shared
// array as if it had the alignment of a byte, for NVIDIA byte by byte.
#if defined(GPU_HOST)
DEV u32x4 load16(const void* p, Site at = HERE) { return bits<u32x4>(*(const u32_vec4*)host::aligned(p, 16, at)); }
DEV void store16(void* p, u32x4 value, Site at = HERE) { *(u32_vec4*)host::aligned(p, 16, at) = bits<u32_vec4>(value); }
DEV void store8(void* p, u32x2 value, Site at = HERE) { *(u32_vec2*)host::aligned(p, 8, at) = bits<u32_vec2>(value); }
#else
DEV u32x4 load16(const void* p) { return bits<u32x4>(*(const u32_vec4*)p); }
DEV void store16(void* p, u32x4 value) { *(u32_vec4*)p = bits<u32_vec4>(value); }
DEV void store8(void* p, u32x2 value) { *(u32_vec2*)p = bits<u32_vec2>(value); }
#endif

// Loads of weights: they are read once and not again soon, so they need not stay in the caches.
#if defined(GPU_AMD)
DEV u32x4 stream16(const void* p) { return bits<u32x4>(__builtin_nontemporal_load((const u32_vec4*)p)); }
DEV u32x2 stream8(const void* p) { return bits<u32x2>(__builtin_nontemporal_load((const u32_vec2*)p)); }
DEV u32 stream4(const void* p) { return __builtin_nontemporal_load((const u32*)p); }
#elif defined(GPU_NV)
#if __CUDA_ARCH__ >= 900
#define STREAM "ld.global.nc.L1::no_allocate"
#else
// The PTX version of the oldest drivers that this image supports does not know the hint.
#define STREAM "ld.global.nc"
#endif
DEV u32x4 stream16(const void* p) {
    u32x4 r;
    asm(STREAM ".v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]) : "l"(p));
    return r;
}
DEV u32x2 stream8(const void* p) {
    u32x2 r;
    asm(STREAM ".v2.u32 {%0, %1}, [%2];" : "=r"(r.v[0]), "=r"(r.v[1]) : "l"(p));
    return r;
}
DEV u32 stream4(const void* p) {
    u32 r;
    asm(STREAM ".u32 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}
#undef STREAM
#else
DEV u32x4 stream16(const void* p, Site at = HERE) { return load16(p, at); }
DEV u32x2 stream8(const void* p, Site at = HERE) { return bits<u32x2>(*(const u32_vec2*)host::aligned(p, 8, at)); }
DEV u32 stream4(const void* p, Site at = HERE) { return *(const u32*)host::aligned(p, 4, at); }
#endif

// Marks an address that was loaded from device memory as global. Otherwise the compiler must assume that it may be
// shared memory, and loads through it are slower.
#if defined(GPU_HOST)
template <typename T> DEV T* global(T* p) { return p; }
#else
template <typename T> DEV T* global(T* p) { return (T*)(__attribute__((address_space(1))) T*)(u64)p; }
#endif

// ---------------------------------------------------------------------------------------------- inside a wave
// A value that is the same in all lanes, in a register where branches on it do not diverge.
#if defined(GPU_AMD)
DEV u32 uniform(u32 v, Site = HERE) { return __builtin_amdgcn_readfirstlane(v); }
// The value of another lane of the wave.
DEV u32 shuffle(u32 v, u32 from, Site = HERE) { return __builtin_amdgcn_ds_bpermute((i32)(from * 4), v); }
DEV u32 shuffle_xor(u32 v, u32 mask, Site = HERE) { return shuffle(v, lane() ^ mask); }
template <int CTRL> DEV u32 dpp(u32 v) { return __builtin_amdgcn_update_dpp(0, v, CTRL, 0xf, 0xf, true); }
// Lane i of each row of 16 gets the value of the lane rotated by N = 8, 4, 2 or 1 places.
template <int N> DEV u32 row_rotate(u32 v) { return dpp<0x120 + N>(v); }
#if !defined(GPU_CDNA)
// Lane i gets the value of lane i ^ 16.
DEV u32 swap_rows(u32 v) {
    u32 r = __builtin_amdgcn_permlanex16(0, v, 0x76543210, 0xfedcba98, false, false);
    // Keeps the instruction here, under the full EXEC mask, whatever the compiler's flags.
    asm volatile("" : "+v"(r));
    return r;
}
#endif
#elif defined(GPU_NV)
DEV u32 uniform(u32 v, Site = HERE) { return v; }
DEV u32 shuffle(u32 v, u32 from, Site = HERE) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, v, from, 0x1f); }
DEV u32 shuffle_xor(u32 v, u32 mask, Site = HERE) { return __nvvm_shfl_sync_bfly_i32(0xffffffffu, v, mask, 0x1f); }
#else
DEV u32 uniform(u32 v, Site at = HERE) { return host::CHECKED ? host::uniform(v, at) : v; }
DEV u32 shuffle(u32 v, u32 from, Site at = HERE) { return (u32)host::exchange(v, from, at); }
DEV u32 shuffle_xor(u32 v, u32 mask, Site at = HERE) { return (u32)host::exchange(v, lane() ^ mask, at); }
#endif
DEV float shuffle(float v, u32 from, Site at = HERE) { return bits<float>(shuffle(bits<u32>(v), from, at)); }
DEV float shuffle_xor(float v, u32 mask, Site at = HERE) { return bits<float>(shuffle_xor(bits<u32>(v), mask, at)); }
DEV i32 shuffle(i32 v, u32 from, Site at = HERE) { return (i32)shuffle((u32)v, from, at); }
DEV i32 shuffle_xor(i32 v, u32 mask, Site at = HERE) { return (i32)shuffle_xor((u32)v, mask, at); }

struct Sum {
    template <typename T> DEV_MEMBER static T of(T a, T b) { return a + b; }
};
struct Max {
    template <typename T> DEV_MEMBER static T of(T a, T b) { return a > b ? a : b; }
};

struct Or {
    template <typename T> DEV_MEMBER static T of(T a, T b) { return a | b; }
};

#if defined(GPU_HOST)
namespace host {
// wave_reduce() with one exchange for the operands of all steps, and vector instructions. Every lane has the operands of a step in
// the order of lane 0, which makes no difference but for NaN.
template <typename R, typename T, u32 N, typename V> DEV T halves(V v) {
    if constexpr (N == 1) return v;
    else return halves<R, T, N / 2>(R::of(v.even, v.odd));
}
template <typename R, typename T> __attribute__((disable_sanitizer_instrumentation)) static T reduce(T v, Site at) {
    typedef T Values __attribute__((ext_vector_type(WARP_SIZE)));
    typedef u64 Long __attribute__((ext_vector_type(WARP_SIZE), aligned(8)));
    typedef u32 Short __attribute__((ext_vector_type(WARP_SIZE)));
    const u64* lanes = lanes_of(bits<u32>(v), at);
    Short words = __builtin_convertvector(*(const Long*)lanes, Short);
    return halves<R, T, WARP_SIZE>(__builtin_bit_cast(Values, words));
}
} // namespace host
#endif

// The reduction over all lanes, in every lane. The order depends only on the lane.
template <typename R, typename T> DEV T wave_reduce(T v, Site at = HERE) {
    (void)at;
#if defined(GPU_AMD)
    v = R::of(v, bits<T>(row_rotate<8>(bits<u32>(v))));
    v = R::of(v, bits<T>(row_rotate<4>(bits<u32>(v))));
    v = R::of(v, bits<T>(row_rotate<2>(bits<u32>(v))));
    v = R::of(v, bits<T>(row_rotate<1>(bits<u32>(v))));
#if defined(GPU_CDNA)
    v = R::of(v, shuffle_xor(v, 16, at));
    v = R::of(v, shuffle_xor(v, 32, at));
#else
    v = R::of(v, bits<T>(swap_rows(bits<u32>(v))));
#endif
#elif defined(GPU_HOST)
    v = host::reduce<R>(v, at);
#else
#pragma unroll
    for (u32 mask = 1; mask < WARP_SIZE; mask *= 2) v = R::of(v, shuffle_xor(v, mask, at));
#endif
    return v;
}
template <typename T> DEV T wave_sum(T v, Site at = HERE) { return wave_reduce<Sum>(v, at); }
template <typename T> DEV T wave_max(T v, Site at = HERE) { return wave_reduce<Max>(v, at); }

// The reduction over all threads of a block of THREADS, in every thread. `part` is shared memory for THREADS /
// WARP_SIZE values. It may be reused after the next barrier.
template <typename R, u32 THREADS, typename T> DEV T block_reduce(T v, T* part, Site at = HERE) {
    constexpr u32 N_WAVES = THREADS / WARP_SIZE;
    static_assert(N_WAVES * WARP_SIZE == THREADS && N_WAVES >= 1, "whole waves");
    v = wave_reduce<R>(v, at);
    if constexpr (N_WAVES == 1) return v;
    if (lane() == 0) part[wave()] = v;
    shared_barrier(at);
    v = part[0];
#pragma unroll
    for (u32 i = 1; i < N_WAVES; i++) v = R::of(v, part[i]);
    return v;
}

// ---------------------------------------------------------------------------------------------- arithmetic
// c + the dot product of two times four int8 values.
#if defined(GPU_AMD)
DEV i32 dot4(u32 a, u32 b, i32 c) {
#if defined(GPU_GFX11) || defined(GPU_GFX12)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#else
    return __builtin_amdgcn_sdot4(a, b, c, false);
#endif
}
#elif defined(GPU_NV)
DEV i32 dot4(u32 a, u32 b, i32 c) {
    i32 r;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
#else
DEV i32 dot4(u32 a, u32 b, i32 c) {
    typedef i8 i8_vec4 __attribute__((ext_vector_type(4)));
    typedef i32 i32_vec4 __attribute__((ext_vector_type(4)));
    const auto wide = [](u32 v) { return __builtin_convertvector(bits<i8_vec4>(v), i32_vec4); };
    return c + __builtin_reduce_add(wide(a) * wide(b));
}
#endif

// a * b + c, rounded once.
DEV float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// The same for two pairs of f16.
typedef f16 f16_vec2 __attribute__((ext_vector_type(2)));
DEV u32 fma_halves(u32 a, u32 b, u32 c) {
    return bits<u32>(__builtin_elementwise_fma(bits<f16_vec2>(a), bits<f16_vec2>(b), bits<f16_vec2>(c)));
}

// 2^x with an error of about two units in the last place; 0 below 2^-126.
DEV float exp2_fast(float x) {
#if defined(GPU_AMD)
    return __builtin_amdgcn_exp2f(x);
#elif defined(GPU_NV)
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return x < -126.0f ? 0.0f : __builtin_exp2f(x);
#endif
}
// 1 / x with an error of about one unit in the last place; above 2^126 it may be 0.
DEV float inverse_fast(float x) {
#if defined(GPU_NV)
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return 1.0f / x;
#endif
}
// log2(x) of a normal positive number.
DEV float log2_fast(float x) {
#if defined(GPU_AMD)
    return __builtin_amdgcn_logf(x);
#elif defined(GPU_NV)
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return __builtin_log2f(x);
#endif
}
// e^x. The product with log2(e) is kept in two parts; rounding it would cost |x| units in the last place.
DEV float exp_of(float x) {
    constexpr float LOG2_E = 1.44269502f, REST = 1.92596299e-8f, LN_2 = 0.693147182f;
    float whole = x * LOG2_E;
    float rest = fma(x, LOG2_E, -whole) + x * REST;
    float y = exp2_fast(whole);
    float exact = fma(y * LN_2, rest, y);
    // Outside the range of f32 `rest` is NaN, and there is nothing to correct.
    return y == 0.0f || y > 3.0e38f ? y : exact;
}
DEV float log_of(float x) { return log2_fast(x) * 0.693147182f; }
DEV float tanh_of(float x) {
    float e = exp_of(-2.0f * __builtin_fabsf(x));
    return __builtin_copysignf((1.0f - e) / (1.0f + e), x);
}
// The nearest integer, ties to even.
DEV float round_even(float x) {
#if defined(GPU_NV)
    float r;
    asm("cvt.rni.f32.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return __builtin_rintf(x);
#endif
}
DEV float sqrt_of(float x) {
#if defined(GPU_NV)
    float r;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return __builtin_sqrtf(x);
#endif
}

// ---------------------------------------------------------------------------------------------- with the host
// Words in host memory that both sides access while a kernel runs.
DEV u32 load_system(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
DEV void store_system(u32* p, u32 value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }

// ---------------------------------------------------------------------------------------------- time, atomics
// A clock that all blocks share. NVIDIA: nanoseconds; AMD: ticks at the rate that the driver reports (wall_clock64);
// CPU emulator: nanoseconds.
#if defined(GPU_AMD)
DEV u64 device_clock() {
#if defined(GPU_GFX11) || defined(GPU_GFX12)
    // MSG_RTN_GET_REALTIME
    return __builtin_amdgcn_s_sendmsg_rtnl(0x83);
#else
    return __builtin_amdgcn_s_memrealtime();
#endif
}
DEV void atomic_min(u64* p, u64 v) { __hip_atomic_fetch_min(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEV void atomic_max(u64* p, u64 v) { __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEV u64 fetch_add(u64* p, u64 v) { return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
// In shared memory.
DEV u32 fetch_add_shared(u32* p, u32 v) {
    return __hip_atomic_fetch_add((__attribute__((address_space(3))) u32*)p, v, __ATOMIC_RELAXED,
                                  __HIP_MEMORY_SCOPE_WORKGROUP);
}
#elif defined(GPU_NV)
DEV u64 device_clock() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) : : "memory");
    return t;
}
DEV void atomic_min(u64* p, u64 v) { asm volatile("red.global.min.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory"); }
DEV void atomic_max(u64* p, u64 v) { asm volatile("red.global.max.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory"); }
DEV u64 fetch_add(u64* p, u64 v) {
    u64 before;
    asm volatile("atom.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(p), "l"(v) : "memory");
    return before;
}
DEV u32 fetch_add_shared(u32* p, u32 v) {
    const u64 at = (u64)(__attribute__((address_space(3))) u32*)p;
    u32 before;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(v) : "memory");
    return before;
}
#else
DEV u64 device_clock() { return host::now(); }
DEV void atomic_min(u64* p, u64 v) { __atomic_fetch_min(p, v, __ATOMIC_RELAXED); }
DEV void atomic_max(u64* p, u64 v) { __atomic_fetch_max(p, v, __ATOMIC_RELAXED); }
DEV u64 fetch_add(u64* p, u64 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEV u32 fetch_add_shared(u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
#endif
