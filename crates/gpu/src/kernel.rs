//! Typed handles of kernels. A [`Kernel`] binds the name of a kernel to the struct of its parameters;
//! `ops/kernels.rs` has one handle for each kernel of an open device. A module is loaded and its kernels are found at
//! their first use; a launch after that takes no lock and looks up no name.
//!
//! [`Layout`] describes the parameters as kernels must declare them. The CPU emulator's images say how they do
//! (`FIELDS` in `kernels/gpu.h`), and a test compares both for every kernel.

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use zerocopy::{Immutable, IntoBytes};

use crate::driver::api::{Field, Handle};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::memory::{Address, Slice};

/// A kernel with parameters of type `P`.
pub(crate) struct Kernel<P> {
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    pub(crate) function: OnceLock<Function>,
    params: PhantomData<fn(P)>,
}

/// A kernel found in a loaded module.
pub(crate) struct Function {
    pub(crate) handle: Handle,
    /// Dynamic shared memory that its launches may use.
    pub(crate) shared_bytes: AtomicU32,
    /// Threads and bytes of dynamic shared memory per block, and how many such blocks run at once.
    pub(crate) concurrency: OnceLock<((u32, u32), usize)>,
}

// SAFETY: a driver's handle of a function may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl<P: Layout> Kernel<P> {
    pub(crate) const fn new(module: &'static str, name: &'static str) -> Kernel<P> {
        Kernel {
            module,
            name,
            function: OnceLock::new(),
            params: PhantomData,
        }
    }
}

/// A type in the parameters of a kernel: a number, an address, an array or a struct of such.
///
/// # Safety
/// `fields` adds every part of the type that is not a number or an address itself, in order, and no other bytes of it
/// matter. An address in it comes from a [`Slice`](crate::Slice).
pub(crate) unsafe trait Layout: Copy {
    /// Adds what a value at the offset `at` consists of: fields or elements, each followed by its own. Adds nothing for a
    /// number or an address.
    fn fields(at: usize, to: &mut Vec<Field>);
}

/// Adds a field at the offset `at`, and what it consists of.
fn add<T: Layout>(name: &str, at: usize, to: &mut Vec<Field>) {
    to.push(Field {
        name: name.into(),
        at: at as u32,
        size: size_of::<T>() as u32,
    });
    T::fields(at, to);
}

macro_rules! leaf {
    ($($ty:ty),*) => {$(
        // SAFETY: the type is a number or an address.
        unsafe impl Layout for $ty {
            fn fields(_: usize, _: &mut Vec<Field>) {}
        }
    )*};
}
// Not u64: addresses are `Address`, other numbers of 64 bits `Count`.
leaf!(u32, f32, f64, Address, Count);

/// A number of 64 bits.
#[repr(transparent)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct Count(pub(crate) u64);

// SAFETY: the elements follow one another.
unsafe impl<T: Layout, const N: usize> Layout for [T; N] {
    fn fields(at: usize, to: &mut Vec<Field>) {
        (0..N).for_each(|i| add::<T>("", at + i * size_of::<T>(), to));
    }
}

/// `layout!(Params { field, ... })` implements [`Layout`] for a `#[repr(C)]` struct, given all of its fields. They have
/// the names that the kernel's source gives them.
macro_rules! layout {
    ($params:ty { $($field:ident),* $(,)? }) => {
        // SAFETY: these are all fields, or the pattern below would not compile.
        unsafe impl $crate::kernel::Layout for $params {
            fn fields(at: usize, to: &mut Vec<$crate::driver::api::Field>) {
                use $crate::kernel::add_field;
                const _: fn($params) = |Self_ { $($field: _),* }| {};
                type Self_ = $params;
                $(
                    let offset = std::mem::offset_of!($params, $field);
                    add_field(|p: $params| p.$field, stringify!($field), at + offset, to);
                )*
            }
        }
    };
}
pub(crate) use layout;

/// Adds a field at the offset `at`, and what it consists of. The function that returns the field gives its type.
pub(crate) fn add_field<P, T: Layout>(_: fn(P) -> T, name: &str, at: usize, to: &mut Vec<Field>) {
    add::<T>(name, at, to);
}

/// The address of a table whose entries kernels read as `T`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, IntoBytes, Immutable)]
pub(crate) struct Table<T>(Address, PhantomData<T>);

impl<T> Table<T> {
    /// The address of a table that is missing.
    pub(crate) const NULL: Table<T> = Table(Address::NULL, PhantomData);

    pub(crate) fn address(&self) -> Address {
        self.0
    }
}

impl<T> Slice<'_, T> {
    /// The device address, for the parameters of a kernel that reads entries of type `T`.
    pub(crate) fn table(&self) -> Table<T> {
        Table(self.address(), PhantomData)
    }
}

// SAFETY: the type is an address; an entry, which is at 0 again, follows it.
unsafe impl<T: Layout> Layout for Table<T> {
    fn fields(_: usize, to: &mut Vec<Field>) {
        add::<T>("", 0, to);
    }
}

/// The kernels of one module.
pub(crate) trait KernelTable {
    fn of_module(module: &'static str) -> Self;
    fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel));
}

/// `kernels!(struct Name { kernel: Params, ... })` declares a [`KernelTable`] by their names.
macro_rules! kernels {
    ($(#[$doc:meta])* struct $table:ident { $($name:ident: $params:ty),* $(,)? }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $($name: $crate::kernel::Kernel<$params>,)*
        }

        impl $crate::kernel::KernelTable for $table {
            fn of_module(module: &'static str) -> $table {
                $table {
                    $($name: $crate::kernel::Kernel::new(module, stringify!($name)),)*
                }
            }

            fn each(&self, visit: &mut dyn FnMut(&dyn $crate::kernel::AnyKernel)) {
                $(visit(&self.$name);)*
            }
        }
    };
}
pub(crate) use kernels;

/// A kernel with parameters of any type.
pub(crate) trait AnyKernel {
    fn module(&self) -> &'static str;
    fn name(&self) -> &'static str;
    fn layout(&self, gpu: &Gpu) -> Result<KernelLayout, GpuError>;
}

/// The parameters of a kernel as the host passes them and as the kernel declares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    pub module: &'static str,
    pub kernel: &'static str,
    /// The whole, without a name at offset 0, then its fields, each followed by its own.
    pub passed: Vec<Field>,
    /// The same as declared in the kernel's source. `None` on devices other than the CPU emulator.
    pub declared: Option<Vec<Field>>,
}

impl<P: Layout> AnyKernel for Kernel<P> {
    fn module(&self) -> &'static str {
        self.module
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn layout(&self, gpu: &Gpu) -> Result<KernelLayout, GpuError> {
        let declared = gpu.declared_layout(self)?;
        let mut passed = Vec::new();
        add::<P>("", 0, &mut passed);
        Ok(KernelLayout {
            module: self.module,
            kernel: self.name,
            passed,
            declared,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Entry {
        at: Address,
        n: u32,
    }

    layout!(Entry { at, n });

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Params {
        n: u32,
        entries: [Entry; 2],
        table: Table<Entry>,
        scale: f32,
    }

    layout!(Params {
        n,
        entries,
        table,
        scale
    });

    #[test]
    fn layouts_have_every_field_and_the_entries_of_tables() {
        let mut fields = Vec::new();
        add::<Params>("", 0, &mut fields);
        let expected = [
            ("", 0, 56),
            ("n", 0, 4),
            ("entries", 8, 32),
            ("", 8, 16),
            ("at", 8, 8),
            ("n", 16, 4),
            ("", 24, 16),
            ("at", 24, 8),
            ("n", 32, 4),
            ("table", 40, 8),
            ("", 0, 16),
            ("at", 0, 8),
            ("n", 8, 4),
            ("scale", 48, 4),
        ];
        let fields: Vec<(&str, u32, u32)> = fields
            .iter()
            .map(|field| (field.name.as_str(), field.at, field.size))
            .collect();
        assert_eq!(fields, expected);
    }
}
