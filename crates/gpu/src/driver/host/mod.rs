//! The CPU emulator: images are shared objects whose threads are fibres (`kernels/host.h`). Memory is filled with NaN
//! until it is written. Work runs when it is queued, in the calling thread. `queue.rs` has streams, events and graphs;
//! `checks.rs` runs a kernel.

pub(crate) mod checks;
mod queue;

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex};

use libloading::Library;

use super::api::{Calls, Field, Handle, Launch, Vendor, code};
use super::{Context, Driver, Facts, VendorApi, linker_message};
use crate::device::Persona;
use crate::error::GpuError;

const FAILED: i32 = 1;

/// Bytes before each allocation, which hold its size.
const HEADER: usize = 256;

/// Maximum shared memory of a block.
fn max_shared_bytes(persona: Persona) -> u32 {
    match persona {
        Persona::Nv => 227 * 1024,
        _ => 64 * 1024,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
    /// The emulated GPU of the thread's launches.
    static CURRENT: Cell<Persona> = const { Cell::new(Persona::Gfx10) };
}

fn persona(ordinal: i32) -> Persona {
    Persona::ALL[usize::try_from(ordinal).unwrap_or(0) % Persona::ALL.len()]
}

struct Module {
    library: Library,
    /// The image, to find source lines of faults. Stays open as long as the library: the loader identifies libraries by
    /// path, and the next file would reuse this descriptor.
    file: Arc<File>,
    #[expect(clippy::vec_box, reason = "their addresses are handles")]
    functions: Mutex<Vec<Box<Function>>>,
}

struct Function {
    kernel: checks::Kernel,
    run: checks::Run,
    layout: DeclaredLayout,
    file: Arc<File>,
}

/// `Field` in host.h. The name is in the image.
#[repr(C)]
#[derive(Clone, Copy)]
struct DeclaredField {
    name: *const u8,
    name_len: u32,
    at: u32,
    size: u32,
}

/// Type of `KERNEL_layout` of an image: writes the fields to a list with room for that many, and returns their number.
type DeclaredLayout = unsafe extern "C" fn(*mut DeclaredField, u32) -> u32;

/// Maximum number of fields of a kernel's parameters.
const MAX_FIELDS: u32 = 512;

struct Host;

pub(super) fn driver() -> Driver {
    let calls = Calls {
        init,
        device_count,
        device_name,
        device_attribute,
        total_memory,
        pci_bus_id,
        driver_version,
        memory_info,
        alloc,
        free,
        alloc_pinned,
        free_pinned,
        device_address,
        copy_to_device,
        copy_to_host,
        copy_on_device,
        fill_bytes: queue::fill_bytes,
        module_unload,
        module_function,
        module_global,
        launch,
        active_blocks,
        stream_create: queue::stream_create,
        stream_destroy: queue::stream_destroy,
        stream_synchronize: queue::stream_synchronize,
        stream_wait: queue::stream_wait,
        event_create: queue::event_create,
        event_destroy: queue::event_destroy,
        event_record: queue::event_record,
        event_query: queue::event_done,
        event_synchronize: queue::event_done,
        event_elapsed: queue::event_elapsed,
        capture_begin: queue::capture_begin,
        capture_end: queue::capture_end,
        graph_instantiate: queue::graph_instantiate,
        graph_destroy: queue::graph_destroy,
        graph_launch: queue::graph_launch,
        graph_exec_destroy: queue::graph_destroy,
    };
    Driver {
        library: None,
        vendor: Vendor::Host,
        calls,
        vendor_api: Box::new(Host),
    }
}

impl VendorApi for Host {
    fn facts(&self, _: &Driver, ordinal: i32) -> Result<Facts, GpuError> {
        let persona = persona(ordinal);
        Ok(Facts {
            name: format!("CPU emulator of {}", persona.describe()),
            architecture: format!("host-{persona}"),
            n_multiprocessors: 4,
            n_compute_units: 4,
            integrated: true,
            total_bytes: crate::memory::meminfo_bytes("MemTotal").unwrap_or(0),
            pci_address: None,
            max_shared_bytes: max_shared_bytes(persona),
            clock_khz: 1_000_000,
            driver_version: String::new(),
            runtime_version: String::new(),
        })
    }

    fn open(&self, _: &Driver, ordinal: i32) -> Result<Context, GpuError> {
        Ok(Context {
            ordinal,
            handle: std::ptr::null_mut(),
        })
    }

    fn make_current(&self, context: Context) -> i32 {
        CURRENT.set(persona(context.ordinal));
        0
    }

    fn close(&self, _: Context) {}

    fn load_module(&self, image: &[u8], to: &mut Handle) -> (i32, String) {
        match open(image) {
            Ok(module) => {
                *to = Box::into_raw(Box::new(module)).cast();
                (0, String::new())
            }
            Err(error) => (FAILED, error),
        }
    }

    fn allow_shared(&self, _: Handle, _: u32) -> i32 {
        0
    }

    fn error_text(&self, code: i32) -> String {
        match code {
            code::NOT_FOUND => "no such symbol".into(),
            code::OUT_OF_MEMORY => "out of memory".into(),
            _ => LAST_ERROR.with(|text| text.borrow().clone()),
        }
    }

    fn launch(&self, _: &Calls, launch: &Launch) -> i32 {
        queue::launch(launch)
    }

    fn declared_layout(&self, function: Handle) -> Option<Vec<Field>> {
        let empty = DeclaredField {
            name: std::ptr::null(),
            name_len: 0,
            at: 0,
            size: 0,
        };
        let mut fields = vec![empty; MAX_FIELDS as usize];
        // SAFETY: the handle is from `module_function`, so its image is loaded.
        let function = unsafe { &*function.cast::<Function>() };
        // SAFETY: the function writes at most that many fields.
        let n_fields = unsafe { (function.layout)(fields.as_mut_ptr(), MAX_FIELDS) };
        assert!(n_fields <= MAX_FIELDS, "{n_fields} fields");
        fields.truncate(n_fields as usize);
        let field = |field: &DeclaredField| {
            // SAFETY: the image has so many bytes there, and it is loaded.
            let name = unsafe { std::slice::from_raw_parts(field.name, field.name_len as usize) };
            Field {
                name: String::from_utf8_lossy(name).into_owned(),
                at: field.at,
                size: field.size,
            }
        };
        Some(fields.iter().map(field).collect())
    }
}

fn fail(text: impl Into<String>) -> i32 {
    LAST_ERROR.with(|last| *last.borrow_mut() = text.into());
    FAILED
}

/// Runs a kernel immediately.
///
/// # Safety
/// The function belongs to a loaded module, and `params` points to the struct that it takes.
unsafe fn run(
    function: Handle,
    grid: [u32; 3],
    threads_shared: [u32; 2],
    params: *const c_void,
) -> i32 {
    let [n_threads, shared_bytes] = threads_shared;
    // SAFETY: the caller passes a handle from `module_function` and the kernel's own parameters.
    let result = unsafe {
        let function = &*function.cast::<Function>();
        let launch = checks::Launch {
            kernel: function.kernel,
            params,
            grid,
            n_threads,
            shared_bytes,
            max_shared_bytes: max_shared_bytes(CURRENT.get()),
        };
        checks::run(function.run, &launch, &function.file)
    };
    result.map_or_else(fail, |()| 0)
}

unsafe extern "C" fn init(_: u32) -> i32 {
    0
}

/// Not used: launches go through `VendorApi::launch`, which knows the size of the parameters.
unsafe extern "C" fn launch(
    _: Handle,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: Handle,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> i32 {
    fail("launch without the size of its parameters")
}

/// As many as a large GPU has, so that tests split work as it would be split there.
unsafe extern "C" fn active_blocks(n_blocks: *mut i32, _: Handle, _: i32, _: usize) -> i32 {
    // SAFETY: `n_blocks` is the caller's.
    unsafe { *n_blocks = 512 };
    0
}

unsafe extern "C" fn device_count(count: *mut i32) -> i32 {
    // SAFETY: `count` is the caller's.
    unsafe { *count = Persona::ALL.len() as i32 };
    0
}

unsafe extern "C" fn device_name(_: *mut c_char, _: i32, _: i32) -> i32 {
    fail("device names are in the facts")
}

unsafe extern "C" fn device_attribute(_: *mut i32, _: i32, _: i32) -> i32 {
    fail("attributes are not numbered")
}

unsafe extern "C" fn total_memory(_: *mut usize, _: i32) -> i32 {
    fail("the size of the memory is in the facts")
}

unsafe extern "C" fn pci_bus_id(_: *mut c_char, _: i32, _: i32) -> i32 {
    fail("the emulator is on no bus")
}

unsafe extern "C" fn driver_version(version: *mut i32) -> i32 {
    // SAFETY: `version` is the caller's.
    unsafe { *version = 0 };
    0
}

unsafe extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> i32 {
    // SAFETY: both are the caller's.
    unsafe {
        *free = crate::memory::meminfo_bytes("MemAvailable").unwrap_or(0) as usize;
        *total = crate::memory::meminfo_bytes("MemTotal").unwrap_or(0) as usize;
    }
    0
}

fn layout(bytes: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes.checked_add(HEADER)?, HEADER).ok()
}

unsafe extern "C" fn alloc(to: *mut u64, bytes: usize) -> i32 {
    let Some(layout) = layout(bytes) else {
        return code::OUT_OF_MEMORY;
    };
    // SAFETY: the layout is not empty: it has a header.
    let start = unsafe { std::alloc::alloc(layout) };
    if start.is_null() {
        return code::OUT_OF_MEMORY;
    }
    // SAFETY: `start` has HEADER + bytes bytes; `to` is the caller's.
    unsafe {
        start.cast::<usize>().write(bytes);
        start.add(HEADER).write_bytes(0xff, bytes);
        *to = start.add(HEADER) as u64;
        checks::add_buffer(*to, bytes);
    }
    0
}

unsafe extern "C" fn free(ptr: u64) -> i32 {
    checks::remove_buffer(ptr);
    // SAFETY: `ptr` came from `alloc`, which put the size HEADER bytes before it.
    unsafe {
        let start = (ptr as *mut u8).sub(HEADER);
        let bytes = start.cast::<usize>().read();
        std::alloc::dealloc(start, layout(bytes).expect("`alloc` used the same layout"));
    }
    0
}

unsafe extern "C" fn alloc_pinned(to: *mut *mut c_void, bytes: usize, _: u32) -> i32 {
    let mut address = 0;
    // SAFETY: as for this function.
    let code = unsafe { alloc(&raw mut address, bytes) };
    if code == 0 {
        // SAFETY: `to` is the caller's.
        unsafe { *to = address as *mut c_void };
    }
    code
}

unsafe extern "C" fn free_pinned(ptr: *mut c_void) -> i32 {
    // SAFETY: it came from `alloc_pinned`, which calls `alloc`.
    unsafe { free(ptr as u64) }
}

unsafe extern "C" fn device_address(to: *mut u64, ptr: *mut c_void, _: u32) -> i32 {
    // SAFETY: `to` is the caller's.
    unsafe { *to = ptr as u64 };
    0
}

unsafe extern "C" fn copy_to_device(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> i32 {
    // SAFETY: the caller gives ranges of that many bytes.
    unsafe { copy_on_device(to, from as u64, bytes, stream) }
}

unsafe extern "C" fn copy_to_host(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> i32 {
    // SAFETY: the caller gives ranges of that many bytes.
    unsafe { copy_on_device(to as u64, from, bytes, stream) }
}

unsafe extern "C" fn copy_on_device(to: u64, from: u64, bytes: usize, stream: Handle) -> i32 {
    if queue::is_capturing(stream) {
        return fail("copies cannot be captured, only launches");
    }
    // SAFETY: the caller gives ranges of that many bytes.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    0
}

fn open(image: &[u8]) -> Result<Module, String> {
    let file = rustix::fs::memfd_create("rocmforge-kernels", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| error.to_string())?;
    let mut file = File::from(file);
    file.write_all(image).map_err(|error| error.to_string())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the image is embedded in this program, and its initializers do nothing.
    let library = unsafe { Library::new(path) }.map_err(|error| linker_message(&error))?;
    Ok(Module {
        library,
        file: Arc::new(file),
        functions: Mutex::default(),
    })
}

unsafe extern "C" fn module_unload(module: Handle) -> i32 {
    // SAFETY: `module` came from `load_module`.
    drop(unsafe { Box::from_raw(module.cast::<Module>()) });
    0
}

unsafe extern "C" fn module_function(to: *mut Handle, module: Handle, name: *const c_char) -> i32 {
    // SAFETY: `module` came from `load_module`; the symbols have these types in every host image.
    unsafe {
        let module = &*module.cast::<Module>();
        let name = CStr::from_ptr(name).to_bytes_with_nul();
        let kernel = module.library.get::<checks::Kernel>(name);
        let run = module.library.get::<checks::Run>(b"host_launch\0");
        let layout = [&name[..name.len() - 1], b"_layout\0"].concat();
        let layout = module.library.get::<DeclaredLayout>(layout.as_slice());
        let (Ok(kernel), Ok(run), Ok(layout)) = (kernel, run, layout) else {
            return code::NOT_FOUND;
        };
        let mut function = Box::new(Function {
            kernel: *kernel,
            run: *run,
            layout: *layout,
            file: Arc::clone(&module.file),
        });
        *to = (&raw mut *function).cast();
        let mut functions = module.functions.lock().unwrap_or_else(|e| e.into_inner());
        functions.push(function);
    }
    0
}

unsafe extern "C" fn module_global(
    to: *mut u64,
    bytes: *mut usize,
    module: Handle,
    name: *const c_char,
) -> i32 {
    // SAFETY: `module` came from `load_module`; the others are the caller's.
    unsafe {
        let module = &*module.cast::<Module>();
        let name = CStr::from_ptr(name).to_bytes_with_nul();
        let Ok(symbol) = module.library.get::<*const u32>(name) else {
            return code::NOT_FOUND;
        };
        *to = symbol.try_as_raw_ptr().map_or(0, |ptr| ptr as u64);
        *bytes = size_of::<u32>();
    }
    0
}
