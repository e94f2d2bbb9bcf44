// The CPU emulator, for tests without a GPU: the same kernel sources run on the CPU. Each thread of a block is a fibre
// with its own stack; a few assembly instructions switch between them. Lanes, waves and blocks run in an order drawn
// from a seed. Faults that a GPU would ignore are errors with a source location: collectives that not all threads reach
// (this file), and races, out-of-bounds accesses and wrong alignment (host_memory.h).
//
// A lane runs until it stops at a collective, then switches to the next lane of its wave; the last lane of a wave
// switches to the next wave, and the last one of the block back to `host_launch`. Only the last lane checks the state
// of the others.
//
// Included by gpu.h. What kernels call is declared here; the rest is compiled once, by host_runtime.cpp, and linked to each
// module, whose entry point is `host_launch`.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(HOST_RUNTIME)
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#endif

#if !defined(__x86_64__)
#error "the CPU emulator switches fibres with x86-64 assembly"
#endif

// Kernels are compiled with -fsanitize=thread, whose calls end in host_memory.h. The emulator's own code is not.
#pragma clang attribute push(__attribute__((disable_sanitizer_instrumentation)), apply_to = function)

namespace host {

// Whether memory accesses are checked, and that values are uniform.
#if __has_feature(thread_sanitizer)
constexpr bool CHECKED = true;
#else
constexpr bool CHECKED = false;
#endif
constexpr u32 MAX_THREADS = 1024;
// Words of a thread's operands of a matrix instruction.
constexpr u32 MAX_WORDS = 16;
constexpr size_t STACK_BYTES = 64 * 1024;
// Stacks lie one after the other in memory aligned to their total size, so that a thread can compute its number from
// its stack pointer. The `Block` follows.
constexpr size_t STACKS_BYTES = MAX_THREADS * STACK_BYTES;

// Source location of a collective.
struct Site {
    const char* file;
    u32 line;
    Site() = default;
    constexpr Site(u32 line, const char* file = __builtin_FILE()) : file(file), line(line) {}
    bool operator!=(const Site& other) const { return line != other.line || file != other.file; }
};

// A field of a struct, or an element of an array, which has no name.
struct Field {
    const char* name;
    u32 name_len, at, size;
};

struct Fields;
template <typename T, typename = void> constexpr bool HAS_FIELDS = false;
template <typename T>
constexpr bool HAS_FIELDS<T, decltype(((const T*)nullptr)->fields(*(Fields*)nullptr))> = true;
template <typename T> struct Pointee {
    using Type = void;
};
template <typename T> struct Pointee<T*> {
    using Type = T;
};
template <typename P> static u32 layout_of(Field* to, u32 most);

// Collects the fields of a struct with FIELDS, and after each what it consists of.
struct Fields {
    Field* to;
    u32 most, n;
    const u8* start;

    void put(Field field) {
        if (n < most) to[n] = field;
        n++;
    }
    template <typename T> void one(const char* name, u32 name_len, const T& field) {
        using Entry = typename Pointee<T>::Type;
        put({name, name_len, (u32)((const u8*)&field - start), (u32)sizeof field});
        if constexpr (__is_array(T)) {
            for (const auto& element : field) one("", 0, element);
        } else if constexpr (__is_class(T)) {
            field.fields(*this);
        } else if constexpr (HAS_FIELDS<Entry>) {
            // The entries of a table follow its address.
            n += layout_of<Entry>(to + n, n < most ? most - n : 0);
        }
    }
    // Takes the next name of a list such as "x, out, n".
    template <typename T> void next(const char*& names, const T& field) {
        while (*names == ' ' || *names == ',') names++;
        u32 len = 0;
        while (names[len] && names[len] != ',' && names[len] != ' ') len++;
        one(names, len, field);
        names += len;
    }
    template <typename... T> void add(const char* names, const T&... fields) { (next(names, fields), ...); }
};

// Writes P, as a field at 0 without a name, and its fields to a list with room for `most`. Returns their number.
template <typename P> static u32 layout_of(Field* to, u32 most) {
    alignas(P) static const u8 memory[sizeof(P)] = {};
    Fields fields = {to, most, 0, memory};
    fields.put({"", 0, 0, sizeof(P)});
    ((const P*)memory)->fields(fields);
    return fields.n;
}

enum class State : u8 { AtBarrier, AtSharedBarrier, AtWave, Done };

struct Fibre {
    void* sp;
    u32 tid;
    // Number of collectives of the wave so far; its parity selects the slots in use.
    u32 n_collectives;
    // Calls of begin() in this block.
    u32 n_begun;
};

struct Wave {
    // Number of lanes stopped since all of them last ran, and where the first of them stopped.
    u32 n_stopped;
    State state;
    Site site;
    // The running lane, and the distance to the next one.
    u32 at, step;
};

struct Memory;

// The size is a multiple of cache lines, so that the shared memory behind it is aligned.
struct alignas(64) Block {
    u32 n_threads, n_waves;
    u32 bid[3];
    Fibre* running;
    Fibre fibres[MAX_THREADS];
    u64 slots[2][MAX_THREADS];
    // What each thread sends to its wave (mma_host.h).
    u32 words[2][MAX_THREADS][MAX_WORDS];
    Wave waves[MAX_THREADS / WARP_SIZE];
    // Waves that are not at the barrier.
    u32 runnable[MAX_THREADS / WARP_SIZE];
    u32 n_runnable;
    void* launcher_sp;
    void (*kernel)(const void*);
    const void* params;
    u64 random;
    char* error;
    size_t error_len;
    bool failed;
    // The last barrier that all threads passed; line 0 before the first one.
    Site last_barrier;
    Memory* memory;
};

static inline __attribute__((always_inline)) uintptr_t stack_pointer() {
    uintptr_t sp;
    // Not `volatile`: values computed from it stay the same throughout a thread's life.
    asm("movq %%rsp, %0" : "=r"(sp));
    return sp;
}
// Number of the calling thread.
DEV u32 number() { return (u32)(stack_pointer() / STACK_BYTES) % MAX_THREADS; }
DEV Block& here() { return *(Block*)((stack_pointer() & ~(uintptr_t)(STACKS_BYTES - 1)) + STACKS_BYTES); }

// Of host_runtime.cpp.
#define RUNTIME __attribute__((visibility("hidden")))
RUNTIME u64 now();
RUNTIME void pause(State state, Site site);
// Called where a thread ends that must have called begin() once.
RUNTIME void check_begun();
// What all lanes of the wave say. Valid until the second next collective.
RUNTIME const u64* lanes_of(u64 value, Site site);
RUNTIME u64 exchange(u64 value, u32 from, Site site);
RUNTIME u32 uniform(u32 v, Site site);
RUNTIME void wave_owns(const void* p, u32 bytes);
RUNTIME void* shared(const void* id, const char* name, size_t bytes, u32 element);
RUNTIME void* dynamic_shared();
RUNTIME void fail_alignment(u32 n, Site site);
// What is loaded and stored in one instruction must be aligned: NVIDIA's fault if not.
template <typename T> DEV T* aligned(T* p, u32 n, Site site) {
    if ((u64)p % n) fail_alignment(n, site);
    return p;
}

} // namespace host

DEV u32 tid() { return host::number(); }
DEV u32 bid_x() { return host::here().bid[0]; }
DEV u32 bid_y() { return host::here().bid[1]; }
DEV u32 bid_z() { return host::here().bid[2]; }
DEV u32 n_waves() { return host::here().n_waves; }

#if defined(HOST_RUNTIME)
namespace host {

// Continues at the context `load`. Returns when the context saved here is loaded.
DEV void switch_stack(void** save, void* load) {
    // The red zone: 128 bytes below the stack pointer may be in use.
    asm volatile("leaq -128(%%rsp), %%rsp\n pushq %%rbp\n leaq 1f(%%rip), %%rax\n pushq %%rax\n"
                 "movq %%rsp, (%0)\n movq %1, %%rsp\n"
                 "popq %%rax\n popq %%rbp\n jmpq *%%rax\n"
                 "1:\n leaq 128(%%rsp), %%rsp\n"
                 : "+D"(save), "+S"(load)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
                   "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                   "xmm14", "xmm15", "memory", "cc");
}

// Nanoseconds.
u64 now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static inline u32 next_random(Block& b) {
    // splitmix64
    u64 z = (b.random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (u32)((z ^ (z >> 31)) >> 32);
}

// Ends the launch with an error that begins with the block. Returns only if no thread is running.
template <typename... Args>
__attribute__((noinline, cold)) static void fail(Block& b, const char* format, Args... args) {
    if (!b.failed) {
        b.failed = true;
        int n = snprintf(b.error, b.error_len, "block %u,%u,%u: ", b.bid[0], b.bid[1], b.bid[2]);
        snprintf(b.error + n, b.error_len - n, format, args...);
    }
    void* abandoned;
    if (b.running) switch_stack(&abandoned, b.launcher_sp);
}

struct Place {
    char text[96];
    Place(State state, Site site) {
        const char* name = site.file ? strrchr(site.file, '/') : nullptr;
        name = name ? name + 1 : site.file;
        if (state == State::Done) snprintf(text, sizeof text, "done");
        else
            snprintf(text, sizeof text, "at the %s of %s:%u", state == State::AtWave ? "wave operation" : "barrier",
                     name, site.line);
    }
};

static void fail_divergent(Block& b, u32 one, State state, Site site, u32 other, State other_state, Site other_site) {
    fail(b, "divergent collective: thread %u is %s, thread %u is %s", one, Place(state, site).text, other,
         Place(other_state, other_site).text);
}

// Draws a new order for the lanes of a wave. Returns the first thread.
static u32 shuffle_lanes(Block& b, u32 wave) {
    u32 r = next_random(b);
    Wave& w = b.waves[wave];
    w.n_stopped = 0;
    w.at = r % WARP_SIZE;
    // An odd step visits all lanes. Ascending and descending neighbours are the fastest orders and find the most
    // errors.
    u32 kind = r >> 8 & 3;
    w.step = kind == 0 ? 1 : kind == 1 ? WARP_SIZE - 1 : (r >> 16 | 1) % WARP_SIZE;
    return wave * WARP_SIZE + w.at;
}

// Chooses the next thread among the waves that are not at the barrier.
static u32 some_wave(Block& b) {
    u32 wave = b.runnable[next_random(b) % b.n_runnable];
    return wave * WARP_SIZE + b.waves[wave].at;
}

static void start_waves(Block& b, State after);

// Called when all lanes of the wave of thread `t` have stopped at one place. Returns the next thread.
__attribute__((noinline)) static u32 end_of_round(Block& b, u32 t) {
    u32 wave = t / WARP_SIZE;
    Wave& w = b.waves[wave];
    if (w.state == State::AtWave) {
        u32 next = shuffle_lanes(b, wave);
        // Another wave may go first.
        return next_random(b) % 4 ? next : some_wave(b);
    }
    for (u32 i = 0; i < b.n_runnable; i++)
        if (b.runnable[i] == wave) b.runnable[i] = b.runnable[--b.n_runnable];
    if (b.n_runnable) return some_wave(b);
    // Every wave has stopped, at the barrier or at the end.
    for (u32 i = 0; i < b.n_waves; i++) {
        const Wave& other = b.waves[i];
        if (other.state != w.state || (w.state != State::Done && other.site != w.site))
            fail_divergent(b, t, w.state, w.site, i * WARP_SIZE, other.state, other.site);
    }
    if (w.state == State::Done) return MAX_THREADS;
    b.last_barrier = w.site;
    start_waves(b, w.state);
    return some_wave(b);
}

// Stops the thread that calls until all of its wave, or of its block, have come there. Inline: a processor foresees no
// return to another stack, so fewer are faster.
DEV void stop(State state, Site site) {
    Block& b = here();
    u32 t = number();
    Wave& w = b.waves[t / WARP_SIZE];
    if (w.n_stopped == 0) {
        w.state = state;
        w.site = site;
    } else if (w.state != state || w.site != site) {
        u32 before = (t & ~(WARP_SIZE - 1)) + (w.at - w.step) % WARP_SIZE;
        fail_divergent(b, t, state, site, before, w.state, w.site);
    }
    u32 next;
    if (++w.n_stopped < WARP_SIZE) {
        w.at = (w.at + w.step) % WARP_SIZE;
        next = (t & ~(WARP_SIZE - 1)) + w.at;
    } else {
        next = end_of_round(b, t);
    }
    if (next == t) return;
    b.running = next < MAX_THREADS ? &b.fibres[next] : nullptr;
    switch_stack(&b.fibres[t].sp, b.running ? b.running->sp : b.launcher_sp);
}

void pause(State state, Site site) { stop(state, site); }

DEV const u64* all_lanes(u64 value, Site site) {
    Block& b = here();
    u32 t = number();
    u64* slots = b.slots[b.fibres[t].n_collectives++ & 1];
    slots[t] = value;
    stop(State::AtWave, site);
    return slots + (t & ~(WARP_SIZE - 1));
}

const u64* lanes_of(u64 value, Site site) { return all_lanes(value, site); }

u64 exchange(u64 value, u32 from, Site site) { return all_lanes(value, site)[from % WARP_SIZE]; }

// What all lanes of the wave say, with an error if they differ.
u32 uniform(u32 v, Site site) {
    u32 first = (u32)exchange(v, 0, site);
    if (first != v)
        fail(here(), "thread %u has %u where lane 0 of its wave has %u in the uniform() %s", number(), v, first,
             Place(State::AtWave, site).text);
    return first;
}

static void fibre_main() {
    for (;;) {
        Block& b = here();
        b.kernel(b.params);
        pause(State::Done, Site(0));
    }
}

} // namespace host

#include "host_memory.h"

namespace host {

static void start_waves(Block& b, State after) {
    b.n_runnable = b.n_waves;
    for (u32 i = 0; i < b.n_waves; i++) {
        b.runnable[i] = i;
        shuffle_lanes(b, i);
    }
    next_epoch(b);
    if (after == State::AtBarrier) next_era(b);
}

// Prepares stacks whose threads start at `fibre_main`. Their tops are staggered, or they would compete for the same
// cache lines.
static void start_threads(Block& b) {
    for (u32 t = 0; t < b.n_threads; t++) {
        u8* stack = (u8*)&b - STACKS_BYTES + t * STACK_BYTES;
        *(u64*)stack = STACK_END;
        u64* top = (u64*)(stack + STACK_BYTES - t % 64 * 192 - 64);
        *--top = 0;
        *--top = 0;
        *--top = (u64)&fibre_main;
        b.fibres[t] = Fibre{top, t, 0, 0};
    }
}

void check_begun() {
    Block& b = here();
    const u32 n = b.fibres[number()].n_begun;
    b.fibres[number()].n_begun = 0;
    if (n != 1) fail(b, "thread %u calls begin() %u times, not once", number(), n);
}

static void run_block(Block& b) {
    start_block(b);
    start_waves(b, State::AtBarrier);
    b.last_barrier = Site(0);
    b.running = &b.fibres[some_wave(b)];
    switch_stack(&b.launcher_sp, b.running->sp);
    b.running = nullptr;
    for (u32 t = 0; t < b.n_threads && !b.failed; t++)
        if (*(u64*)((u8*)&b - STACKS_BYTES + t * STACK_BYTES) != STACK_END)
            fail(b, "thread %u uses more than %zu bytes of stack", t, STACK_BYTES);
}

// The memory of the previous launch, kept for the next one.
static Block* spare;

static void release(Block* b) {
    if (b) munmap((u8*)b - STACKS_BYTES, STACKS_BYTES + sizeof(Block) + sizeof(Memory));
}

static Block* obtain() {
    if (Block* b = __atomic_exchange_n(&spare, nullptr, __ATOMIC_ACQ_REL)) return b;
    size_t wanted = STACKS_BYTES + sizeof(Block) + sizeof(Memory);
    u8* start = (u8*)mmap(nullptr, wanted + STACKS_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    u8* aligned = (u8*)(((uintptr_t)start + STACKS_BYTES - 1) & ~(uintptr_t)(STACKS_BYTES - 1));
    if (aligned > start) munmap(start, aligned - start);
    size_t end = ((size_t)(aligned - start) + wanted + 4095) & ~(size_t)4095;
    if (wanted + STACKS_BYTES > end) munmap(start + end, wanted + STACKS_BYTES - end);
    Block* b = (Block*)(aligned + STACKS_BYTES);
    b->memory = (Memory*)(b + 1);
    return b;
}

__attribute__((destructor)) static void release_spare() {
    release(__atomic_exchange_n(&spare, nullptr, __ATOMIC_ACQ_REL));
}

} // namespace host

struct HostLaunch {
    void (*kernel)(const void*);
    const void* params;
    u32 grid[3];
    u32 n_threads;
    u32 dynamic_bytes;
    // Shared memory of a block, at most `host::MAX_SHARED_BYTES`.
    u32 max_shared_bytes;
    u32 n_ranges;
    // The device memory ranges, in ascending order.
    const host::Range* ranges;
    u64 seed;
    char* error;
    u64 error_len;
};

// Runs a kernel of this module. Returns 0, or 1 with a message in `error`.
extern "C" __attribute__((visibility("default"))) int host_launch(const HostLaunch* launch) {
    using namespace host;
    const HostLaunch& l = *launch;
    if (l.n_threads == 0 || l.n_threads > MAX_THREADS || l.n_threads % WARP_SIZE ||
        l.dynamic_bytes > l.max_shared_bytes || l.max_shared_bytes > MAX_SHARED_BYTES) {
        snprintf(l.error, l.error_len, "cannot launch a block of %u threads with %u bytes of shared memory",
                 l.n_threads, l.dynamic_bytes);
        return 1;
    }
    Block* memory = obtain();
    if (!memory) {
        snprintf(l.error, l.error_len, "no memory for the stacks of a block");
        return 1;
    }
    Block& b = *memory;
    b.n_threads = l.n_threads;
    b.n_waves = l.n_threads / WARP_SIZE;
    b.running = nullptr;
    b.kernel = l.kernel;
    b.params = l.params;
    b.random = l.seed;
    b.error = l.error;
    b.error_len = l.error_len;
    b.failed = false;
    start_memory(b, l.dynamic_bytes, l.max_shared_bytes, l.ranges, l.n_ranges);
    start_threads(b);
    u64 n_blocks = (u64)l.grid[0] * l.grid[1] * l.grid[2];
    u64 start = next_random(b) % n_blocks, backwards = next_random(b) % 2;
    for (u64 i = 0; i < n_blocks && !b.failed; i++) {
        u64 at = (start + (backwards ? n_blocks - i : i)) % n_blocks;
        b.bid[0] = at % l.grid[0];
        b.bid[1] = at / l.grid[0] % l.grid[1];
        b.bid[2] = at / l.grid[0] / l.grid[1];
        run_block(b);
    }
    bool failed = b.failed;
    release(__atomic_exchange_n(&spare, memory, __ATOMIC_ACQ_REL));
    return failed;
}
#endif
#pragma clang attribute pop
