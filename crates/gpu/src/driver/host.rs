//! The CPU as a GPU: images are shared objects whose threads are fibres (`kernels/host.h`). Memory is full of NaN until
//! it is written.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use libloading::Library;

use super::api::{Api, Handle};

const FAILED: i32 = 1;
const NOT_FOUND: i32 = 2;
const NO_MEMORY: i32 = 3;

/// Bytes before each allocation, which hold its size.
const HEADER: usize = 256;

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
    /// The seed of the next launch's order.
    static SEED: Cell<u64> = Cell::new(first_seed());
}

/// What a thread begins with: the number in `ROCMFORGE_HOST_SEED`, or 1.
fn first_seed() -> u64 {
    let text = std::env::var("ROCMFORGE_HOST_SEED").unwrap_or_default();
    text.parse().unwrap_or(1)
}

/// Chooses the order in which the host driver runs blocks, waves and lanes in the next launches of this thread, each
/// another one. Results that depend on it come from a race. Other drivers know nothing of it.
pub fn set_host_seed(seed: u64) {
    SEED.set(seed);
}

struct Module {
    library: Library,
    /// Kept open: the loader knows libraries by path, and the next file would get this one's number.
    _file: std::fs::File,
    #[expect(clippy::vec_box, reason = "their addresses are handles")]
    functions: RefCell<Vec<Box<Function>>>,
}

type Kernel = unsafe extern "C" fn(*const c_void);
type Launch = unsafe extern "C" fn(
    Kernel,
    *const u32,
    u32,
    u32,
    *const c_void,
    u64,
    *mut c_char,
    usize,
) -> i32;

struct Function {
    kernel: Kernel,
    launch: Launch,
}

pub(crate) static API: Api = Api {
    alloc,
    free,
    copy_to_device,
    copy_to_host,
    module_load,
    module_unload,
    module_function,
    module_global,
    launch,
    stream_synchronize,
    error_text: |code| match code {
        NOT_FOUND => "no such symbol".into(),
        NO_MEMORY => "out of memory".into(),
        _ => LAST_ERROR.with(|text| text.borrow().clone()),
    },
};

fn layout(bytes: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes.checked_add(HEADER)?, HEADER).ok()
}

unsafe extern "C" fn alloc(to: *mut u64, bytes: usize) -> i32 {
    let Some(layout) = layout(bytes) else {
        return NO_MEMORY;
    };
    // SAFETY: the layout is not empty: it has a header.
    let start = unsafe { std::alloc::alloc(layout) };
    if start.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: `start` has HEADER + bytes bytes; `to` is the caller's.
    unsafe {
        start.cast::<usize>().write(bytes);
        start.add(HEADER).write_bytes(0xff, bytes);
        *to = start.add(HEADER) as u64;
    }
    0
}

unsafe extern "C" fn free(ptr: u64) -> i32 {
    // SAFETY: `ptr` came from `alloc`, which put the size HEADER bytes before it.
    unsafe {
        let start = (ptr as *mut u8).sub(HEADER);
        let bytes = start.cast::<usize>().read();
        std::alloc::dealloc(start, layout(bytes).expect("it was allocated with it"));
    }
    0
}

unsafe extern "C" fn copy_to_device(to: u64, from: *const c_void, bytes: usize) -> i32 {
    // SAFETY: the caller gives ranges of that many bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to as *mut u8, bytes) };
    0
}

unsafe extern "C" fn copy_to_host(to: *mut c_void, from: u64, bytes: usize) -> i32 {
    // SAFETY: the caller gives ranges of that many bytes.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.cast::<u8>(), bytes) };
    0
}

fn fail(text: String) -> i32 {
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
    FAILED
}

/// Loads an ELF file whose size is in its first eight bytes (see `image_bytes`).
unsafe extern "C" fn module_load(to: *mut Handle, image: *const c_void) -> i32 {
    // SAFETY: the caller gives what `image_bytes` made.
    let bytes = unsafe {
        let len = image.cast::<u64>().read_unaligned() as usize;
        std::slice::from_raw_parts(image.cast::<u8>().add(8), len)
    };
    match open(bytes) {
        Ok(module) => {
            // SAFETY: `to` is the caller's.
            unsafe { *to = Box::into_raw(Box::new(module)).cast() };
            0
        }
        Err(error) => fail(error),
    }
}

/// An image with its length before it, which the other drivers read off the image itself.
pub(crate) fn image_bytes(image: &[u8]) -> Vec<u8> {
    let mut bytes = (image.len() as u64).to_ne_bytes().to_vec();
    bytes.extend_from_slice(image);
    bytes
}

fn open(image: &[u8]) -> Result<Module, String> {
    let file = rustix::fs::memfd_create("rocmforge-kernels", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| error.to_string())?;
    let mut file = std::fs::File::from(file);
    file.write_all(image).map_err(|error| error.to_string())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the image is one of this program's own, and has no initializers.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    Ok(Module {
        library,
        _file: file,
        functions: RefCell::new(Vec::new()),
    })
}

unsafe extern "C" fn module_unload(module: Handle) -> i32 {
    // SAFETY: `module` came from `module_load`.
    drop(unsafe { Box::from_raw(module.cast::<Module>()) });
    0
}

unsafe extern "C" fn module_function(to: *mut Handle, module: Handle, name: *const c_char) -> i32 {
    // SAFETY: `module` came from `module_load`; the symbols have these types in every host image.
    unsafe {
        let module = &*module.cast::<Module>();
        let name = CStr::from_ptr(name).to_bytes_with_nul();
        let kernel = module.library.get::<Kernel>(name);
        let launch = module.library.get::<Launch>(b"host_launch\0");
        let (Ok(kernel), Ok(launch)) = (kernel, launch) else {
            return NOT_FOUND;
        };
        let mut function = Box::new(Function {
            kernel: *kernel,
            launch: *launch,
        });
        *to = (&raw mut *function).cast();
        module.functions.borrow_mut().push(function);
    }
    0
}

unsafe extern "C" fn module_global(
    to: *mut u64,
    bytes: *mut usize,
    module: Handle,
    name: *const c_char,
) -> i32 {
    // SAFETY: `module` came from `module_load`; the others are the caller's.
    unsafe {
        let module = &*module.cast::<Module>();
        let name = CStr::from_ptr(name).to_bytes_with_nul();
        let Ok(symbol) = module.library.get::<*const u32>(name) else {
            return NOT_FOUND;
        };
        *to = symbol.try_as_raw_ptr().map_or(0, |ptr| ptr as u64);
        *bytes = size_of::<u32>();
    }
    0
}

unsafe extern "C" fn launch(
    function: Handle,
    x: u32,
    y: u32,
    z: u32,
    threads: u32,
    _: u32,
    _: u32,
    shared: u32,
    _stream: Handle,
    params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> i32 {
    let mut text = [0u8; 256];
    let seed = SEED.replace(SEED.get().wrapping_add(0x9e37_79b9));
    // SAFETY: `function` came from `module_function`; there is one parameter, the struct of the kernel.
    let code = unsafe {
        let function = &*function.cast::<Function>();
        (function.launch)(
            function.kernel,
            [x, y, z].as_ptr(),
            threads,
            shared,
            *params,
            seed,
            text.as_mut_ptr().cast(),
            text.len(),
        )
    };
    if code == 0 {
        return 0;
    }
    let text = CStr::from_bytes_until_nul(&text).map_or("", |text| text.to_str().unwrap_or(""));
    fail(text.to_string())
}

unsafe extern "C" fn stream_synchronize(_: Handle) -> i32 {
    0
}
