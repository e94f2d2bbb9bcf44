// Memory checks of the CPU emulator. Kernels are compiled with -fsanitize=thread but without that sanitizer's library:
// the calls that the compiler inserts before each load and store end here. They check
// - shared memory by byte: which array a byte belongs to, and which threads read and wrote it since the last barrier.
//   Two threads accessing one byte, one of them writing, without a barrier in between are a race, also within a wave:
//   neither AMD's nor NVIDIA's compiler guarantees more;
// - device memory by allocation, and by word: to read or write what another wave of the block wrote is a race if there
//   were only shared_barrier()s in between. The last writes are remembered. Dependence on the order of blocks is left to
//   the tests: they run each kernel in several orders and compare bits.
// Shared memory is filled with NaN when a block begins.
#pragma once

namespace host {

constexpr u32 MAX_ARRAYS = 64;
// Minimum distance between arrays.
constexpr u32 GUARD_BYTES = 256;
constexpr u32 MAX_STATIC_BYTES = 48 * 1024;
// Maximum of all GPUs; each launch has the limit of its emulated GPU.
constexpr u32 MAX_SHARED_BYTES = 227 * 1024;
constexpr u32 ARENA_BYTES = MAX_SHARED_BYTES + MAX_STATIC_BYTES + (MAX_ARRAYS + 1) * (GUARD_BYTES + 16);
// Number of remembered ranges, which are found by 256-byte blocks of addresses.
constexpr u32 RECENT = 512;
// Number of remembered writes to device memory.
constexpr u32 WRITTEN = 4096;
// The last word of a stack.
constexpr u64 STACK_END = 0x5afe57ac5afe57acull;

struct Range {
    u64 start, len;
};

// The bounds of the module's image.
extern const u8 image asm("__ehdr_start") __attribute__((visibility("hidden")));
extern const u8 image_end asm("_end") __attribute__((visibility("hidden")));

// A declaration of shared memory; `id` is an address unique to it.
struct Array {
    const void* id;
    const char* name;
    u32 start, len, element;
};

// Bytes of the 4 at an address that a wave of the block wrote. Those of other eras do not count.
struct Written {
    u64 word;
    u32 era, epoch;
    u16 wave;
    u8 bytes;
};

struct Memory {
    alignas(64) u8 shared[ARENA_BYTES];
    // The last write and read of each byte: the epoch in the upper 21 bits, the thread in the lower 11.
    u32 writes[ARENA_BYTES], reads[ARENA_BYTES];
    // The array that each 16 bytes belong to, plus 1.
    u8 owner[ARENA_BYTES / 16];
    Array arrays[MAX_ARRAYS];
    u32 n_arrays, used, static_bytes, dynamic_bytes, max_bytes;
    // Counts barriers.
    u32 epoch;
    const Range* ranges;
    u32 n_ranges;
    // Recently used ranges.
    Range recent[RECENT];
    // Counts barriers that are not of shared memory alone.
    u32 era;
    // The era of the last write to device memory.
    u32 last_written;
    // By the lower bits of the address.
    Written written[WRITTEN];
};

constexpr u32 THREAD_BITS = 11, MANY = 1u << (THREAD_BITS - 1);
constexpr u32 MAX_EPOCH = (1u << (32 - THREAD_BITS)) - 1;

// The lanes of a wave have met, and `bytes` of shared memory at `p` are theirs alone: what they did there before is in
// order.
void wave_owns(const void* p, u32 bytes) {
    Memory& m = *here().memory;
    u32 offset = (u32)((const u8*)p - m.shared);
    memset(m.writes + offset, 0, bytes * sizeof(u32));
    memset(m.reads + offset, 0, bytes * sizeof(u32));
}

static void next_epoch(Block& b) {
    Memory& m = *b.memory;
    if (m.epoch++ < MAX_EPOCH) return;
    memset(m.writes, 0, sizeof m.writes);
    memset(m.reads, 0, sizeof m.reads);
    m.epoch = 1;
}

static void next_era(Block& b) {
    Memory& m = *b.memory;
    if (++m.era) return;
    memset(m.written, 0, sizeof m.written);
    m.era = 1, m.last_written = 0;
}

static const Array* add_array(Memory& m, const void* id, const char* name, u32 len, u32 element) {
    Array& a = m.arrays[m.n_arrays++];
    a = Array{id, name, m.used, len, element};
    u32 padded = (len + 15) / 16 * 16;
    memset(m.owner + m.used / 16, (int)m.n_arrays, padded / 16);
    memset(m.shared + m.used, 0xff, padded);
    m.used += padded + GUARD_BYTES;
    return &a;
}

static void start_memory(Block& b, u32 dynamic_bytes, u32 max_bytes, const Range* ranges, u32 n_ranges) {
    Memory& m = *b.memory;
    memset(m.owner, 0, m.used / 16);
    memset(m.recent, 0, sizeof m.recent);
    m.n_arrays = m.used = m.static_bytes = 0;
    m.dynamic_bytes = dynamic_bytes;
    m.max_bytes = max_bytes;
    m.ranges = ranges;
    m.n_ranges = n_ranges;
    if (dynamic_bytes) add_array(m, &m.dynamic_bytes, "dynamic shared memory", dynamic_bytes, 1);
}

static void start_block(Block& b) {
    Memory& m = *b.memory;
    for (u32 i = 0; i < m.n_arrays; i++) memset(m.shared + m.arrays[i].start, 0xff, m.arrays[i].len);
}

void* shared(const void* id, const char* name, size_t bytes, u32 element) {
    Block& b = here();
    Memory& m = *b.memory;
    for (u32 i = 0; i < m.n_arrays; i++)
        if (m.arrays[i].id == id) return m.shared + m.arrays[i].start;
    m.static_bytes += (bytes + 15) / 16 * 16;
    if (m.static_bytes > MAX_STATIC_BYTES || m.static_bytes + m.dynamic_bytes > m.max_bytes || m.n_arrays == MAX_ARRAYS)
        fail(b, "with %s the kernel uses %u bytes of static and %u of dynamic shared memory", name, m.static_bytes,
             m.dynamic_bytes);
    return m.shared + add_array(m, id, name, bytes, element)->start;
}

void* dynamic_shared() { return here().memory->shared; }

// The location of an access, for error messages: the array, the access as its address in the image (which the driver
// converts to a source line), and the last barrier.
struct Access {
    char text[160];
    Access(const Block& b, const Array* a, u32 offset, const void* at) {
        int n = 0;
        if (a) n = snprintf(text, sizeof text, "%s[%u]", a->name, (offset - a->start) / a->element);
        else n = snprintf(text, sizeof text, "shared memory");
        n += snprintf(text + n, sizeof text - n, " at <%zx>", (size_t)((const u8*)at - &image) - 1);
        if (!b.last_barrier.line) snprintf(text + n, sizeof text - n, ", before any barrier");
        else snprintf(text + n, sizeof text - n, ", after the barrier of line %u", b.last_barrier.line);
    }
};

__attribute__((noinline, cold)) static void fail_race(Block& b, u32 offset, u32 n, bool write, const void* at) {
    Memory& m = *b.memory;
    u32 me = m.epoch << THREAD_BITS | number();
    for (u32 i = offset; i < offset + n; i++) {
        bool wrote = m.writes[i] >> THREAD_BITS == m.epoch && m.writes[i] != me;
        bool read = write && m.reads[i] >> THREAD_BITS == m.epoch && m.reads[i] != me;
        if (!wrote && !read) continue;
        u32 other = (wrote ? m.writes[i] : m.reads[i]) % (1u << THREAD_BITS);
        char who[32] = "several threads";
        if (other != MANY) snprintf(who, sizeof who, "thread %u", other);
        const Array* a = &m.arrays[m.owner[i / 16] - 1];
        fail(b, "race: thread %u %s what %s %s without a barrier between: %s", number(), write ? "writes" : "reads",
             who, wrote ? "wrote" : "read", Access(b, a, i, at).text);
        return;
    }
}

__attribute__((noinline, cold)) static void fail_outside(Block& b, u32 offset, u32, bool write, const void* at) {
    Memory& m = *b.memory;
    const Array* nearest = nullptr;
    for (u32 i = 0; i < m.n_arrays; i++)
        if (m.arrays[i].start <= offset) nearest = &m.arrays[i];
    fail(b, "thread %u %s outside of shared memory: %s", number(), write ? "writes" : "reads",
         Access(b, nearest, offset, at).text);
}

template <u32 N, bool WRITE> DEV void access_shared(Block& b, u32 offset, u32 n, const void* at) {
    Memory& m = *b.memory;
    u32 owner = m.owner[offset / 16];
    const Array& a = m.arrays[owner - 1];
    if (__builtin_expect(owner == 0 || offset + n > a.start + a.len, false))
        return fail_outside(b, offset, n, WRITE, at);
    u32 count = N ? N : n;
    u32 epoch = m.epoch, me = epoch << THREAD_BITS | number();
    u32 *writes = m.writes + offset, *reads = m.reads + offset;
    bool bad = false;
    for (u32 i = 0; i < count; i++) {
        bad |= (writes[i] >> THREAD_BITS == epoch) & (writes[i] != me);
        if (WRITE) bad |= (reads[i] >> THREAD_BITS == epoch) & (reads[i] != me);
    }
    if (__builtin_expect(bad, false)) return fail_race(b, offset, n, WRITE, at);
    for (u32 i = 0; i < count; i++) {
        if (WRITE) writes[i] = me;
        else reads[i] = reads[i] >> THREAD_BITS != epoch || reads[i] == me ? me : epoch << THREAD_BITS | MANY;
    }
}

// Checks whether the thread may access what other waves wrote.
template <bool WRITE> __attribute__((noinline)) static void access_written(Block& b, u64 p, u32 n, const void* at) {
    Memory& m = *b.memory;
    if (WRITE) m.last_written = m.era;
    const u16 wave = number() / WARP_SIZE;
    for (u64 end = p + n; p < end; p = p / 4 * 4 + 4) {
        const u64 left = p / 4 * 4 + 4 - end;
        const u8 bytes = 0xfu << p % 4 & (p / 4 * 4 + 4 > end ? 0xfu >> left : 0xfu);
        Written& w = m.written[p / 4 % WRITTEN];
        const bool known = w.word == p / 4 && w.era == m.era;
        if (known && w.epoch != m.epoch && w.wave != wave && w.bytes & bytes)
            fail(b, "race: thread %u %s device memory that wave %u wrote, without a barrier() between:%s", number(),
                 WRITE ? "writes" : "reads", w.wave, Access(b, nullptr, 0, at).text + sizeof "shared memory" - 1);
        if (WRITE) w = {p / 4, m.era, m.epoch, wave, (u8)(known && w.wave == wave ? w.bytes | bytes : bytes)};
    }
}

// Checks memory that is neither shared nor device memory that a recent access used.
template <bool WRITE> __attribute__((noinline)) static void access_other(Block& b, u64 p, u32 n, const void* at) {
    Memory& m = *b.memory;
    // Parameters, constants, stacks, and the emulator's own data.
    if (!WRITE && p - (u64)b.params < 4096) return;
    if (!WRITE && p >= (u64)&image && p + n <= (u64)&image_end) return;
    if (p - ((u64)&b - STACKS_BYTES) < STACKS_BYTES + sizeof(Block)) return;
    u32 low = 0, high = m.n_ranges;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (m.ranges[middle].start <= p) low = middle + 1;
        else high = middle;
    }
    if (low) {
        const Range& r = m.ranges[low - 1];
        if (p - r.start + n <= r.len) {
            m.recent[p >> 8 & (RECENT - 1)] = r;
            return access_written<WRITE>(b, p, n, at);
        }
    }
    char where[96] = "far from any buffer";
    if (low)
        snprintf(where, sizeof where, "%llu bytes after the start of a buffer of %llu", p - m.ranges[low - 1].start,
                 m.ranges[low - 1].len);
    fail(b, "thread %u %s outside of device memory: %u bytes, %s, %s", number(), WRITE ? "writes" : "reads", n, where,
         Access(b, nullptr, 0, at).text + sizeof "shared memory");
}

// All but the checks that pass most often are calls at the end, so that no registers are saved for these.
template <u32 N, bool WRITE> DEV void access(const void* pointer, u32 n, const void* at) {
    Block& b = here();
    Memory& m = *b.memory;
    u64 p = (u64)pointer, offset = p - (u64)m.shared;
    if (offset < ARENA_BYTES) return access_shared<N, WRITE>(b, (u32)offset, n, at);
    const Range& r = m.recent[p >> 8 & (RECENT - 1)];
    if (p < r.start || p - r.start + n > r.len) return access_other<WRITE>(b, p, n, at);
    if (WRITE || m.last_written == m.era) access_written<WRITE>(b, p, n, at);
}

void fail_alignment(u32 n, Site site) {
    fail(here(), "thread %u accesses %u bytes that are not aligned %s", number(), n, Place(State::AtWave, site).text);
}

} // namespace host

#define HOST_ACCESS(N)                                                                                                 \
    extern "C" __attribute__((visibility("hidden"))) void __tsan_read##N(void* p) {                                    \
        host::access<N, false>(p, N, __builtin_return_address(0));                                                     \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("hidden"))) void __tsan_write##N(void* p) {                                   \
        host::access<N, true>(p, N, __builtin_return_address(0));                                                      \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("hidden"))) void __tsan_unaligned_read##N(void* p) {                          \
        host::access<N, false>(p, N, __builtin_return_address(0));                                                     \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("hidden"))) void __tsan_unaligned_write##N(void* p) {                         \
        host::access<N, true>(p, N, __builtin_return_address(0));                                                      \
    }
HOST_ACCESS(1)
HOST_ACCESS(2)
HOST_ACCESS(4)
HOST_ACCESS(8)
HOST_ACCESS(16)
extern "C" __attribute__((visibility("hidden"))) void* __tsan_memcpy(void* to, const void* from, size_t n) {
    host::access<0, false>(from, n, __builtin_return_address(0));
    host::access<0, true>(to, n, __builtin_return_address(0));
    return memcpy(to, from, n);
}
extern "C" __attribute__((visibility("hidden"))) void* __tsan_memmove(void* to, const void* from, size_t n) {
    host::access<0, false>(from, n, __builtin_return_address(0));
    host::access<0, true>(to, n, __builtin_return_address(0));
    return memmove(to, from, n);
}
extern "C" __attribute__((visibility("hidden"))) void* __tsan_memset(void* to, int value, size_t n) {
    host::access<0, true>(to, n, __builtin_return_address(0));
    return memset(to, value, n);
}
extern "C" __attribute__((visibility("hidden"))) void __tsan_init() {}
