//! Names of what a program computes, for profilers: ranges that begin and end on the host around the launches of an
//! operation. A profiler shows the kernels that were launched within.
//!
//! For NVIDIA's tools these are ranges of NVTX 3. The program itself has NVTX's side of it: the tool says in
//! `NVTX_INJECTION64_PATH` which library to load, and that library writes its functions into tables here (NVTX's
//! `nvtxTypes.h`). For AMD's they are ranges of ROCTx, a library of ROCm.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

use crate::device::{OpenOptions, RangeTool};
use crate::driver::api::Vendor;
use crate::driver::libraries::hip_libraries;

/// Names of ROCTx's library: of rocprofiler-sdk, and of roctracer before it.
const ROCTX: [&str; 4] = [
    "librocprofiler-sdk-roctx.so.1",
    "librocprofiler-sdk-roctx.so",
    "libroctx64.so.4",
    "libroctx64.so",
];

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// Begins and ends ranges.
pub(crate) struct Ranges {
    push: Push,
    pop: Pop,
}

/// A range, which ends when this is dropped. Ranges of a thread end in the reverse order.
///
/// It stays on its thread.
pub struct NamedRange<'a>(&'a Ranges, PhantomData<*const ()>);

impl Drop for NamedRange<'_> {
    fn drop(&mut self) {
        // SAFETY: the library stays loaded, and takes calls of any thread.
        unsafe { (self.0.pop)() };
    }
}

impl Ranges {
    /// Begins a range.
    pub(crate) fn begin(&self, name: &CStr) -> NamedRange<'_> {
        // SAFETY: as in `drop`; the name ends with a zero, and the library copies it.
        unsafe { (self.push)(name.as_ptr()) };
        NamedRange(self, PhantomData)
    }

    /// The ranges of the profiler that runs this program.
    ///
    /// # Errors
    /// A sentence, if there is none, or its library is missing or refuses.
    pub(crate) fn of(
        vendor: Vendor,
        tool: &RangeTool,
        options: &OpenOptions,
    ) -> Result<Ranges, String> {
        match (vendor, &tool.nvtx_injection) {
            (Vendor::Hip, _) => roctx(options),
            // Emulated GPUs have NVIDIA's, for tests.
            (Vendor::Cuda | Vendor::Host, Some(library)) => nvtx(library),
            (Vendor::Cuda | Vendor::Host, None) => {
                Err("NVTX_INJECTION64_PATH is not set; nsys and ncu set it".into())
            }
        }
    }
}

/// Loads a library that stays loaded.
fn load(path: &Path) -> Result<&'static Library, String> {
    // SAFETY: the user's profiler, or ROCm, vouches for the library's initialization.
    let library = unsafe { Library::new(path) }.map_err(|error| {
        // What the linker says is the source of "dlopen failed".
        let reason = error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string);
        format!("{} cannot be loaded: {reason}", path.display())
    })?;
    Ok(Box::leak(Box::new(library)))
}

fn roctx(options: &OpenOptions) -> Result<Ranges, String> {
    let beside_hip = hip_libraries(Path::new("/"), options);
    let folders = beside_hip.iter().filter_map(|(file, _)| file.parent());
    let mut files: Vec<PathBuf> = folders
        .filter(|folder| folder.is_absolute())
        .flat_map(|folder| ROCTX.map(|name| folder.join(name)))
        .filter(|file| file.exists())
        .collect();
    files.extend(ROCTX.map(PathBuf::from));
    let found = files.iter().find_map(|file| load(file).ok());
    let library = found.ok_or_else(|| format!("{} was not found", ROCTX[0]))?;
    let missing = |_| "the library of ROCTx has no ranges".to_string();
    // SAFETY: these are ROCTx's functions, which have had these types since roctracer 1.
    unsafe {
        Ok(Ranges {
            push: *library.get(b"roctxRangePushA").map_err(missing)?,
            pop: *library.get(b"roctxRangePop").map_err(missing)?,
        })
    }
}

/// `NVTX_ETID_CALLBACKS` and `NVTX_ETID_VERSIONINFO`.
const CALLBACKS: u32 = 1;
const VERSION_INFO: u32 = 3;

/// `NVTX_VERSION`.
const NVTX_3: u32 = 3;

/// Sizes of NVTX's tables, by module: the core, CUDA, OpenCL, CUDA's runtime, the core with domains, and synchronization.
/// Modules are numbered from 1, and so are functions: a size is one more than the last number.
const N_FUNCTIONS: [usize; 6] = [16, 9, 15, 7, 16, 7];
/// A null follows the last entry.
const MOST_FUNCTIONS: usize = 17;

/// Numbers of the core's functions `RangePushA` and `RangePop`.
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

type Slot = AtomicPtr<c_void>;
type GetTable = unsafe extern "C" fn(c_uint, *mut *const *const Slot, *mut c_uint) -> c_int;
type GetExport = unsafe extern "C" fn(u32) -> *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_table: GetTable,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: unsafe extern "C" fn(u32),
}

/// What the tool writes its functions to.
static SLOTS: [[Slot; MOST_FUNCTIONS]; N_FUNCTIONS.len()] =
    [const { [const { Slot::new(null_mut()) }; MOST_FUNCTIONS] }; N_FUNCTIONS.len()];

/// The addresses of the slots of each module.
struct Tables([[*const Slot; MOST_FUNCTIONS]; N_FUNCTIONS.len()]);

// SAFETY: the pointers are to `SLOTS`, whose values are atomic.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

extern "C" fn get_export(id: u32) -> *const c_void {
    static TABLES: Callbacks = Callbacks {
        struct_size: size_of::<Callbacks>(),
        get_table,
    };
    static VERSION: VersionInfo = VersionInfo {
        struct_size: size_of::<VersionInfo>(),
        version: NVTX_3,
        reserved: 0,
        set_injection_version,
    };
    match id {
        CALLBACKS => (&raw const TABLES).cast(),
        VERSION_INFO => (&raw const VERSION).cast(),
        _ => null(),
    }
}

extern "C" fn set_injection_version(_version: u32) {}

/// Gives the tool the table of a module and the number of its entries.
unsafe extern "C" fn get_table(
    module: c_uint,
    table: *mut *const *const Slot,
    n_entries: *mut c_uint,
) -> c_int {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    let Some(module) = (module as usize).checked_sub(1) else {
        return 0;
    };
    let Some(n) = N_FUNCTIONS.get(module) else {
        return 0;
    };
    let tables = TABLES.get_or_init(|| {
        Tables(std::array::from_fn(|module| {
            std::array::from_fn(
                |function| match (1..N_FUNCTIONS[module]).contains(&function) {
                    true => &raw const SLOTS[module][function],
                    false => null(),
                },
            )
        }))
    });
    // SAFETY: both are null or pointers to variables of the tool.
    unsafe {
        if !table.is_null() {
            table.write(tables.0[module].as_ptr());
        }
        if !n_entries.is_null() {
            n_entries.write(*n as c_uint);
        }
    }
    1
}

/// Lets the tool's library write its functions, once for all devices.
fn nvtx(path: &Path) -> Result<Ranges, String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let library = load(path)?;
        type Initialize = unsafe extern "C" fn(GetExport) -> c_int;
        // SAFETY: NVTX defines the function with this type; it calls `get_export` and what that returns.
        let code = unsafe {
            let initialize = library.get::<Initialize>(b"InitializeInjectionNvtx2");
            initialize.map_err(|_| format!("{} is no tool for NVTX 3", path.display()))?(get_export)
        };
        match code {
            0 => Err(format!("{} does not accept NVTX 3", path.display())),
            _ => Ok(()),
        }
    });
    loaded.clone()?;
    let [push, pop] = [RANGE_PUSH, RANGE_POP].map(|n| SLOTS[0][n].load(Ordering::Acquire));
    if push.is_null() || pop.is_null() {
        return Err(format!("{} takes no ranges", path.display()));
    }
    // SAFETY: the tool wrote functions of these types, as NVTX defines them.
    unsafe {
        Ok(Ranges {
            push: std::mem::transmute::<*mut c_void, Push>(push),
            pop: std::mem::transmute::<*mut c_void, Pop>(pop),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::process::Command;

    use super::*;

    /// ROCTx beside the HIP library that is named, which counts ranges.
    #[test]
    fn roctx_beside_hip_gets_ranges() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("roctx.c");
        let code = "int depth; const char* last;
            int roctxRangePushA(const char* name) { return last = name, depth++; }
            int roctxRangePop(void) { return --depth; }";
        std::fs::write(&source, code).unwrap();
        let file = folder.path().join(ROCTX[2]);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&source);
        let Ok(status) = cc.status() else {
            println!("skipped: no C compiler");
            return;
        };
        assert!(status.success());
        let options = OpenOptions {
            hip_library: Some(folder.path().join("libamdhip64.so")),
            ..OpenOptions::default()
        };
        let ranges = roctx(&options).unwrap();
        // The same library again, for what it counts.
        let library = load(&file).unwrap();
        let depth = || {
            // SAFETY: the source above has these variables.
            unsafe { **library.get::<*const c_int>(b"depth").unwrap() }
        };
        let op = ranges.begin(c"attention 32/8 heads");
        let inner = ranges.begin(c"inner");
        assert_eq!(depth(), 2);
        // SAFETY: as above; the name is that of the range.
        let last = unsafe { CStr::from_ptr(**library.get::<*const *const _>(b"last").unwrap()) };
        assert_eq!(last, c"inner");
        drop(inner);
        drop(op);
        assert_eq!(depth(), 0);
    }
}
