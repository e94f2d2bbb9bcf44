// A driver that plays one GPU in the test's own memory, under HIP's names (-DHIP) or CUDA's, and fails as it is told:
// -DINIT_CODE=n, -DSET_CODE=n, -DN_DEVICES=n, -DALLOC_CODE=n, -DLAUNCH_CODE=n, -DLOAD_CODE=n, -DSYNC_CODE=n
// -DGOOD_SYNCS=n (the first so many succeed), -DEVENT_SYNC_CODE=n -DGOOD_EVENT_SYNCS=n, -DGOOD_LAUNCHES=n (the same of
// launches), -DWITHOUT_GRAPHS; -DARCH=name of HIP's device, as a string;
// -DCAPTURE_CODE=n, -DEND_CAPTURE_CODE=n, -DINSTANTIATE_CODE=n -DGOOD_CAPTURES=n (the first so many succeed as a whole);
// -DGRAPH_CODE=n -DGOOD_GRAPHS=n (of launches of graphs), -DPARTS_OF_GRAPHS (one that fails has run the first kernel);
// -DWRONG_GRAPHS (what comes back after a graph is wrong);
// -DGRAPH_US=n, -DLAUNCH_US=n (time of a launch of a graph, and of a kernel by itself);
// -DTHREADS=n -DSHARED_BYTES=n of a multiprocessor, which say how many blocks it runs at once;
// -DFAULT_LAUNCHES=n (the launch after so many faults while it runs: calls queue on, nothing comes back any more, and
// waiting says 719); -DHANG_FILE=path (no event comes while there is this file; with
// -DCLOSES_OUTPUT the process then has no output any more);
// -DINTEGRATED=mask, -DLARGE=mask, -DCLOSED=mask of devices: those that share the system's memory, that have twice the
// memory, and that end the process when they are opened;
// -DLATE_COPIES (nothing comes back before it is waited for); -DFREE_BYTES=n of 4 times as many; -DVERSION=n;
// -DONLY_OVERLAPPING or -DONLY_PLAIN: it has CUDA's launches that overlap, and takes none of the other kind.
// A stream records once, and takes no more work after a recording that failed, as in the worst versions of HIP.
// Its only kernel is `add` of elementwise.hip; with -DANY_KERNEL there are all, which do nothing, but for the first and
// the last of a step: each row chooses a token from 300 on that follows its input token, or the step's last one.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HIP
#define NAME(hip, cuda) hip
#else
#define NAME(hip, cuda) cuda
#endif
#ifndef INIT_CODE
#define INIT_CODE 0
#endif
#ifndef N_DEVICES
#define N_DEVICES 1
#endif
#ifndef INTEGRATED
#define INTEGRATED 0
#endif
#ifndef LARGE
#define LARGE 0
#endif
#ifndef CAPTURE_CODE
#define CAPTURE_CODE 0
#endif
#ifndef ARCH
#define ARCH "gfx942:sramecc+:xnack-"
#endif
#ifndef END_CAPTURE_CODE
#define END_CAPTURE_CODE 0
#endif
#ifndef INSTANTIATE_CODE
#define INSTANTIATE_CODE 0
#endif
#ifndef GOOD_CAPTURES
#define GOOD_CAPTURES 0
#endif
#ifndef GRAPH_CODE
#define GRAPH_CODE 0
#endif
#ifndef GOOD_GRAPHS
#define GOOD_GRAPHS 0
#endif
#ifndef GRAPH_US
#define GRAPH_US 0
#endif
#ifndef LAUNCH_US
#define LAUNCH_US 0
#endif
#ifndef SET_CODE
#define SET_CODE 0
#endif
#ifndef CLOSED
#define CLOSED 0
#endif
#define NONE(device) ((device) < 0 || (device) >= n_devices())
#define IS(mask, device) ((mask) >> (device) & 1)
#ifndef ALLOC_CODE
#define ALLOC_CODE 0
#endif
#ifndef LAUNCH_CODE
#define LAUNCH_CODE 0
#endif
#ifndef EVENT_SYNC_CODE
#define EVENT_SYNC_CODE 0
#define GOOD_EVENT_SYNCS 0
#endif
#ifndef GOOD_LAUNCHES
#define GOOD_LAUNCHES 0
#endif
#ifndef FREE_BYTES
#define FREE_BYTES 1000
#endif
#ifndef LOAD_CODE
#define LOAD_CODE 0
#endif
#ifndef SYNC_CODE
#define SYNC_CODE 0
#define GOOD_SYNCS 0
#endif

#ifndef VERSION
#define VERSION 13020
#endif

typedef void* handle;
#ifdef LATE_COPIES
static struct {
    void* to;
    const void* from;
    size_t bytes;
} late[64];
static unsigned n_late;
#endif
static int n_syncs, n_event_syncs, n_launches, n_captures, n_graph_launches;
struct graph {
    unsigned n;
    struct node {
        handle function;
        char params[64];
    } nodes[4096];
};
struct stream {
    enum { CLOSED_STREAM, OPEN, CAPTURING, BROKEN } state;
    // Of its only recording.
    struct graph* graph;
};
// Whether a stream takes work that is not recorded.
static int refused(handle stream) {
    struct stream* s = stream;
    int code = s->state == OPEN ? 0 : s->state == CAPTURING ? 900 : s->state == BROKEN ? 901 : 400;
    if (s->state == CAPTURING) s->state = BROKEN;
    return code;
}
#ifdef FAULT_LAUNCHES
static int n_runs;
#define FAULTED (n_runs > FAULT_LAUNCHES)
#define RUNS n_runs++
#else
#define FAULTED 0
#define RUNS (void)0
#endif
#ifdef HANG_FILE
static int hangs(void) {
    const int there = !access(HANG_FILE, F_OK);
#ifdef CLOSES_OUTPUT
    if (there) close(1), close(2);
#endif
    return there;
}
#define HANGS hangs()
#else
#define HANGS 0
#endif
static char object;
static void deliver(void) {
#ifdef LATE_COPIES
    for (; n_late; n_late--) memcpy(late[n_late - 1].to, late[n_late - 1].from, late[n_late - 1].bytes);
#endif
}

static int text_into(char* to, int len, const char* text) {
    strncpy(to, text, (size_t)len - 1);
    to[len - 1] = 0;
    return 0;
}

// The devices that variables leave, in their order: HIP applies one after the other, and each counts what is left from 0.
static int devices[N_DEVICES + 1];
static int n_devices(void) {
    int n = N_DEVICES;
    for (int i = 0; i < n; i++) devices[i] = i;
#ifdef HIP
    for (int v = 0; v < 2; v++) {
        const char* list = getenv(v ? "HIP_VISIBLE_DEVICES" : "ROCR_VISIBLE_DEVICES");
        if (!list || !*list) continue;
        int chosen[N_DEVICES + 1], n_chosen = 0;
        for (char* end; n_chosen < N_DEVICES; list = end + 1) {
            long i = strtol(list, &end, 10);
            if (end == list || i < 0 || i >= n) break;
            chosen[n_chosen++] = devices[i];
            if (*end != ',') break;
        }
        memcpy(devices, chosen, sizeof(chosen)), n = n_chosen;
    }
#endif
    return n;
}

// What the vendors do in the same way.
int NAME(hipInit, cuInit)(unsigned flags) { return flags ? 1 : INIT_CODE; }
int NAME(hipGetDeviceCount, cuDeviceGetCount)(int* count) { return *count = n_devices(), 0; }
int NAME(hipDeviceGetName, cuDeviceGetName)(char* to, int len, int device) {
    return NONE(device) ? 101 : text_into(to, len, "Stub 9000");
}
int NAME(hipDeviceTotalMem, cuDeviceTotalMem_v2)(size_t* bytes, int device) {
    *bytes = (IS(LARGE, device) ? 8 : 4) * (size_t)FREE_BYTES;
    return NONE(device) ? 101 : 0;
}
int NAME(hipDeviceGetPCIBusId, cuDeviceGetPCIBusId)(char* to, int len, int device) {
    if (NONE(device)) return 101;
    text_into(to, len, NAME("0000:03:00.0", "00000000:C3:00.0"));
    return to[strlen(to) - 3] += (char)devices[device], 0;
}
static int open_device(int device) {
    if (IS(CLOSED, device)) abort();
    return NONE(device) ? 101 : SET_CODE;
}
int NAME(hipDriverGetVersion, cuDriverGetVersion)(int* version) { return *version = VERSION, 0; }
int NAME(hipMemGetInfo, cuMemGetInfo_v2)(size_t* free, size_t* total) {
    return *free = FREE_BYTES, *total = 4 * (size_t)FREE_BYTES, 0;
}
int NAME(hipMalloc, cuMemAlloc_v2)(uint64_t* to, size_t bytes) {
    if (ALLOC_CODE) return ALLOC_CODE;
    *to = (uint64_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *to ? 0 : 2;
}
int NAME(hipFree, cuMemFree_v2)(uint64_t ptr) { return free((void*)ptr), 0; }
int NAME(hipHostMalloc, cuMemHostAlloc)(void** to, size_t bytes, unsigned flags) {
    *to = flags == 3 ? malloc(bytes) : NULL;
    return *to ? 0 : 2;
}
int NAME(hipHostFree, cuMemFreeHost)(void* ptr) { return free(ptr), 0; }
int NAME(hipHostGetDevicePointer, cuMemHostGetDevicePointer_v2)(uint64_t* to, void* ptr, unsigned flags) {
    return *to = (uint64_t)ptr, (int)flags;
}
int NAME(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)(uint64_t to, const void* from, size_t bytes, handle stream) {
    return memcpy((void*)to, from, bytes), refused(stream);
}
int NAME(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)(void* to, uint64_t from, size_t bytes, handle stream) {
#ifdef LATE_COPIES
    if (n_late == sizeof(late) / sizeof(late[0])) return 2;
    late[n_late].to = to, late[n_late].from = (void*)from, late[n_late++].bytes = bytes;
    return refused(stream);
#endif
    if (!FAULTED) memcpy(to, (void*)from, bytes);
#ifdef WRONG_GRAPHS
    if (n_graph_launches && bytes) *(char*)to ^= 1;
#endif
    return refused(stream);
}
int NAME(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)(uint64_t to, uint64_t from, size_t bytes, handle stream) {
    return memmove((void*)to, (void*)from, bytes), refused(stream);
}
int NAME(hipMemsetD8Async, cuMemsetD8Async)(uint64_t to, unsigned char byte, size_t bytes, handle stream) {
    return memset((void*)to, byte, bytes), refused(stream);
}
int NAME(hipModuleUnload, cuModuleUnload)(handle module) { return module == &object ? 0 : 400; }
#ifdef ANY_KERNEL
static char begin_step, end_step, other;
static uint32_t constant = 32;
int NAME(hipModuleGetFunction, cuModuleGetFunction)(handle* to, handle module, const char* name) {
    *to = !strcmp(name, "begin_step") ? &begin_step : !strcmp(name, "end_step") ? &end_step : &other;
    return module != &object ? 400 : 0;
}
int NAME(hipModuleGetGlobal, cuModuleGetGlobal_v2)(uint64_t* to, size_t* bytes, handle module, const char* name) {
    (void)module, (void)name;
    return *to = (uint64_t)&constant, *bytes = sizeof(constant), 0;
}
// How the parameters of step_io.hip begin.
struct begin_params {
    const uint32_t* host;
    uint32_t* words;
    const uint32_t *sampled, *n_steps;
    unsigned slot_words, n_slots, n_words, tokens, from_row, n_rows;
};
struct end_params {
    uint32_t* ids;
    const uint32_t* words;
    uint32_t *host, *n_steps;
    unsigned slot_words, n_slots, n_ids;
};
static size_t params_bytes(handle function) {
    return function == &begin_step ? sizeof(struct begin_params) : function == &end_step ? sizeof(struct end_params) : 0;
}
static unsigned first_token, n_tokens;
static void run(handle function, const void* params) {
    if (function == &begin_step) {
        const struct begin_params* p = params;
        const uint32_t* host = p->host + *p->n_steps % p->n_slots * p->slot_words;
        memcpy(p->words, host, 4 * p->n_words);
        first_token = p->tokens, n_tokens = p->n_rows;
        for (unsigned row = 0; row < n_tokens; row++) {
            uint32_t from = host[p->from_row + row];
            if (from != ~0u) p->words[first_token + row] = p->sampled[from];
        }
    } else if (function == &end_step) {
        const struct end_params* p = params;
        uint32_t* host = p->host + *p->n_steps % p->n_slots * p->slot_words;
        for (unsigned i = 0; i < p->n_ids; i++) {
            unsigned row = p->n_ids == n_tokens ? i : n_tokens - 1;
            host[1 + i] = p->ids[i] = 300 + (p->words[first_token + row] + 1) % 16;
        }
        host[0] = p->words[0];
        ++*p->n_steps;
    }
}
#else
int NAME(hipModuleGetFunction, cuModuleGetFunction)(handle* to, handle module, const char* name) {
    *to = &object;
    return module != &object ? 400 : strcmp(name, "add") ? 500 : 0;
}
int NAME(hipModuleGetGlobal, cuModuleGetGlobal_v2)(uint64_t* to, size_t* bytes, handle module, const char* name) {
    (void)to, (void)bytes, (void)module, (void)name;
    return 500;
}
#endif
int NAME(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor)(
    int* n_blocks, handle function, int n_threads, size_t shared_bytes) {
    *n_blocks = 2;
#ifdef THREADS
    // As HIP counts.
    if (n_threads > 1024) return *n_blocks = 0;
    *n_blocks = THREADS / n_threads;
    if (shared_bytes && SHARED_BYTES / shared_bytes < *n_blocks) *n_blocks = SHARED_BYTES / shared_bytes;
#endif
    return 0;
}
#ifndef ANY_KERNEL
// How its `Params` begins.
struct add_params {
    const float *x, *other;
    float* out;
    unsigned n;
};
static size_t params_bytes(handle function) { return sizeof(struct add_params); }
static void run(handle function, const void* params) {
    const struct add_params* p = params;
    for (unsigned i = 0; i < p->n; i++) p->out[i] += p->x[i];
}
#endif
static int is_overlapping;
int NAME(hipModuleLaunchKernel, cuLaunchKernel)(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                                unsigned by, unsigned bz, unsigned shared, handle stream, void** params,
                                                void** extra) {
    if (LAUNCH_CODE && n_launches++ >= GOOD_LAUNCHES) return LAUNCH_CODE;
#ifdef ONLY_OVERLAPPING
    if (!is_overlapping) return 9;
#endif
    if (!(gx && gy && gz && bx)) return 9;
#ifndef ANY_KERNEL
    if (function != &object || extra || shared || by != 1 || bz != 1 || gy != 1 || gz != 1) return 1;
#endif
    struct stream* s = stream;
    if (s->state == CAPTURING) {
        struct graph* graph = s->graph;
        if (graph->n == sizeof(graph->nodes) / sizeof(graph->nodes[0])) return 2;
        struct node* node = &graph->nodes[graph->n++];
        node->function = function;
        memcpy(node->params, params[0], params_bytes(function));
        return 0;
    }
    int code = refused(stream);
    if (code) return code;
    if (LAUNCH_US) usleep(LAUNCH_US);
    RUNS;
    return run(function, params[0]), 0;
}
#if defined(ONLY_OVERLAPPING) || defined(ONLY_PLAIN) || (defined(ANY_KERNEL) && !defined(HIP))
// cuda.h's CUlaunchAttribute and CUlaunchConfig.
struct attribute {
    int id;
    char pad[4];
    union {
        char pad[64];
        int allowed;
    } value;
};
struct config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    handle stream;
    struct attribute* attributes;
    unsigned n_attributes;
};
int cuLaunchKernelEx(const struct config* c, handle function, void** params, void** extra) {
#ifdef ONLY_PLAIN
    return 9;
#endif
#ifndef ANY_KERNEL
    // Programmatic stream serialization, which is allowed.
    if (c->n_attributes != 1 || c->attributes->id != 6 || c->attributes->value.allowed != 1) return 1;
#endif
    is_overlapping = 1;
    int code = cuLaunchKernel(function, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, c->stream, params, extra);
    is_overlapping = 0;
    return code;
}
#endif
int NAME(hipStreamCreateWithFlags, cuStreamCreate)(handle* to, unsigned flags) {
    struct stream* s = calloc(1, sizeof(*s));
    s->state = OPEN;
    return *to = s, flags == 1 ? 0 : 1;
}
// Its memory stays, so that later uses are found.
int NAME(hipStreamDestroy, cuStreamDestroy_v2)(handle stream) {
    struct stream* s = stream;
    int code = s->state == CLOSED_STREAM ? 400 : 0;
    return s->state = CLOSED_STREAM, code;
}
int NAME(hipStreamSynchronize, cuStreamSynchronize)(handle stream) {
    int code = refused(stream);
    if (code) return code;
    deliver();
    return SYNC_CODE && n_syncs++ >= GOOD_SYNCS ? SYNC_CODE : 0;
}
int NAME(hipStreamWaitEvent, cuStreamWaitEvent)(handle stream, handle event, unsigned flags) {
    return event == &object && !flags ? refused(stream) : 400;
}
int NAME(hipEventCreateWithFlags, cuEventCreate)(handle* to, unsigned flags) { return *to = &object, (int)flags; }
int NAME(hipEventDestroy, cuEventDestroy_v2)(handle event) { return event == &object ? 0 : 400; }
int NAME(hipEventRecord, cuEventRecord)(handle event, handle stream) {
    return event == &object ? refused(stream) : 400;
}
int NAME(hipEventQuery, cuEventQuery)(handle event) {
    if (FAULTED) return 719;
    if (HANGS) return 600;
#ifdef ANY_KERNEL
    return 0;
#endif
    return event == &object ? 600 : 400;
}
int NAME(hipEventSynchronize, cuEventSynchronize)(handle event) {
    if (event != &object) return 400;
    if (FAULTED) return 719;
    while (HANGS) usleep(1000);
    deliver();
    return EVENT_SYNC_CODE && n_event_syncs++ >= GOOD_EVENT_SYNCS ? EVENT_SYNC_CODE : 0;
}
int NAME(hipEventElapsedTime, cuEventElapsedTime)(float* ms, handle start, handle end) {
    return *ms = 1.5f, start == &object && end == &object ? 0 : 400;
}
int NAME(hipStreamBeginCapture, cuStreamBeginCapture_v2)(handle stream, int mode) {
    struct stream* s = stream;
    if (s->state != OPEN || s->graph || mode != 2) return s->state = BROKEN, 1;
    int code = n_captures++ >= GOOD_CAPTURES ? CAPTURE_CODE : 0;
    s->graph = calloc(1, sizeof(*s->graph));
    s->state = code ? BROKEN : CAPTURING;
    return code;
}
int NAME(hipStreamEndCapture, cuStreamEndCapture)(handle stream, handle* graph) {
    struct stream* s = stream;
    *graph = NULL;
    if (s->state != CAPTURING) return s->state == BROKEN ? 901 : 1;
    int code = n_captures > GOOD_CAPTURES ? END_CAPTURE_CODE : 0;
    s->state = code ? BROKEN : OPEN;
    if (!code) *graph = s->graph;
    return code;
}
int NAME(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)(handle* to, handle graph, unsigned long long flags) {
    *to = malloc(sizeof(struct graph));
    memcpy(*to, graph, sizeof(struct graph));
    return flags ? 1 : n_captures > GOOD_CAPTURES ? INSTANTIATE_CODE : 0;
}
int NAME(hipGraphDestroy, cuGraphDestroy)(handle graph) { return free(graph), 0; }
#ifndef WITHOUT_GRAPHS
int NAME(hipGraphLaunch, cuGraphLaunch)(handle graph, handle stream) {
    struct graph* g = graph;
    int code = refused(stream);
    if (code) return code;
    if (GRAPH_US) usleep(GRAPH_US);
    code = n_graph_launches++ >= GOOD_GRAPHS ? GRAPH_CODE : 0;
#ifdef PARTS_OF_GRAPHS
    if (code) run(g->nodes[0].function, g->nodes[0].params);
#endif
    if (code) return code;
    for (unsigned i = 0; i < g->n; i++) {
        RUNS;
        run(g->nodes[i].function, g->nodes[i].params);
    }
    return 0;
}
#endif
int NAME(hipGraphExecDestroy, cuGraphExecDestroy)(handle graph) { return free(graph), 0; }

#ifdef HIP
int hipSetDevice(int device) { return open_device(device); }
int hipRuntimeGetVersion(int* version) { return *version = 60342134, 0; }
int hipDeviceGetAttribute(int* value, int attribute, int device) {
    // Integrated, and the multiprocessors, also the physical ones.
    *value = attribute == 16 ? IS(INTEGRATED, device) : attribute == 63 || attribute == 10015 ? 96 : -1;
    return NONE(device) ? 101 : *value < 0;
}
int hipGetDevicePropertiesR0600(char* to, int device) {
    memset(to, 0, 1472);
    strcpy(to, "Stub gfx");
    strcpy(to + 1160, ARCH);
    return NONE(device) ? 101 : 0;
}
int hipModuleLoadData(handle* to, const void* image) { return *to = &object, image ? LOAD_CODE : 1; }
const char* hipGetErrorName(int code) { return code == 719 ? "hipErrorLaunchFailure" : "hipErrorStub"; }
const char* hipGetErrorString(int code) { return code == 719 ? "the stub's kernel faulted" : "the stub says no"; }
#else
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, NONE(ordinal) ? 101 : 0; }
int cuDevicePrimaryCtxRetain(handle* to, int device) { return *to = &object, open_device(device); }
int cuDevicePrimaryCtxRelease_v2(int device) { return NONE(device) ? 101 : 0; }
int cuCtxSetCurrent(handle context) { return context == &object ? 0 : 201; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    // Multiprocessors, integrated, compute capability, shared memory.
    *value = attribute == 16 ? 132 : attribute == 18 ? IS(INTEGRATED, device) : attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 97 ? 232448 : -1;
    return NONE(device) ? 101 : *value < 0;
}
int cuModuleLoadDataEx(handle* to, const void* image, unsigned n, unsigned* options, void** values) {
    *to = &object;
    if (!image || n != 2 || options[0] != 5 || options[1] != 6 || (size_t)values[1] < 100) return 1;
    if (LOAD_CODE) strcpy(values[0], "ptxas: the stub takes no PTX");
    return LOAD_CODE;
}
int cuFuncSetAttribute(handle function, int attribute, int value) {
    return function == &object && attribute == 8 && value > 0 ? 0 : 1;
}
int cuGetErrorName(int code, const char** to) {
    return *to = code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_STUB", 0;
}
int cuGetErrorString(int code, const char** to) {
    return *to = code == 719 ? "the stub's kernel faulted" : "the stub says no", 0;
}
#endif
