//! Programs that are started: by exec in this process, or beside it with descriptors of this one.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use super::{fail, next};
use crate::calls::life;
use crate::process::{before_exec, is_active};
use crate::{environment, kernel};

type Strings = *const *const c_char;

fn prepare() {
    if is_active() {
        before_exec();
    }
}

/// What is to be added to the environment of a program that starts itself.
///
/// # Safety
/// As for execve(2).
unsafe fn completed(path: *const c_char, environment: Strings) -> Option<Vec<*const c_char>> {
    if !is_active() || path.is_null() || environment.is_null() {
        return None;
    }
    // SAFETY: the list ends with a null pointer, and none is read beyond it.
    let count = (0..).take_while(|&index| unsafe { !(*environment.add(index)).is_null() }).count();
    // SAFETY: so many strings were found, and the path is a string.
    let (path, given) = unsafe { (CStr::from_ptr(path), core::slice::from_raw_parts(environment, count)) };
    let completed = environment::completed(path, given);
    if completed.is_none()
        && let Some(loss) = environment::loss(path, given)
    {
        kernel::complain(&loss);
    }
    completed
}

/// As [`completed`], where the program does not say which environment: it is the process's own, and has what it had.
///
/// # Safety
/// As for execv(3).
unsafe fn look_at_own_environment(path: *const c_char) {
    unsafe extern "C" {
        static environ: Strings;
    }
    // SAFETY: the process's own environment; nobody may change it while a program is started.
    unsafe { completed(path, environ) };
}

/// # Safety
/// As for execve(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    prepare();
    // SAFETY: the program's path and environment, which stay until it is another.
    let completed = unsafe { completed(path, environment) };
    let environment = completed.as_ref().map_or(environment, Vec::as_ptr);
    // SAFETY: the program's arguments, handed on; the list ends with a null pointer and lives as long as the call.
    unsafe { next::execve(path, arguments, environment) }
}

/// # Safety
/// As for execv(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    prepare();
    // SAFETY: the program's path.
    unsafe { look_at_own_environment(path) };
    // SAFETY: the program's arguments, handed on.
    unsafe { next::execv(path, arguments) }
}

/// # Safety
/// As for execvp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    prepare();
    // SAFETY: the program's name.
    unsafe { look_at_own_environment(file) };
    // SAFETY: the program's arguments, handed on.
    unsafe { next::execvp(file, arguments) }
}

/// # Safety
/// As for execvpe(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    prepare();
    // SAFETY: the program's name and environment, which stay until it is another.
    let completed = unsafe { completed(file, environment) };
    let environment = completed.as_ref().map_or(environment, Vec::as_ptr);
    // SAFETY: the program's arguments, handed on.
    unsafe { next::execvpe(file, arguments, environment) }
}

/// # Safety
/// As for fexecve(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fexecve(descriptor: c_int, arguments: Strings, environment: Strings) -> c_int {
    prepare();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::fexecve(descriptor, arguments, environment) }
}

/// # Safety
/// As for execveat(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    prepare();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::execveat(folder, path, arguments, environment, flags) }
}

/// Stands for a variadic function of execl(3): hands the address of its arguments, from the second on, to `$with`. In
/// registers and on the stack they are where those of any function are; they are put side by side here.
macro_rules! variadic {
    ($($name:ident: $with:ident;)*) => {$(
        /// # Safety
        /// As for execl(3).
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            naked_asm!(
                "push r9", "push r8", "push rcx", "push rdx", "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {with}",
                "add rsp, 40",
                "ret",
                with = sym $with,
            )
        }

        /// # Safety
        /// As for execl(3).
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            naked_asm!(
                "sub sp, sp, #80",
                "stp x1, x2, [sp]", "stp x3, x4, [sp, #16]", "stp x5, x6, [sp, #32]", "str x7, [sp, #48]",
                "str x30, [sp, #64]",
                "mov x1, sp",
                "add x2, sp, #80",
                "bl {with}",
                "ldr x30, [sp, #64]",
                "add sp, sp, #80",
                "ret",
                with = sym $with,
            )
        }
    )*};
}

variadic! {
    execl: execl_with;
    execlp: execlp_with;
    execle: execle_with;
}

/// Arguments of a variadic function after the first that are passed in registers.
const IN_REGISTERS: usize = if cfg!(target_arch = "x86_64") { 5 } else { 7 };

/// The arguments up to the null pointer, which is the last, and what stands after it.
///
/// # Safety
/// `registers` and `stack` must be where a function of execl(3)'s family found its arguments.
unsafe fn collect(registers: Strings, stack: Strings) -> (Vec<*const c_char>, *const c_char) {
    let at = |index: usize| {
        // SAFETY: the caller passed a null pointer (and for execle one argument more), and nobody looks beyond it.
        unsafe { if index < IN_REGISTERS { *registers.add(index) } else { *stack.add(index - IN_REGISTERS) } }
    };
    let mut arguments = Vec::new();
    loop {
        let argument = at(arguments.len());
        arguments.push(argument);
        if argument.is_null() {
            let after = arguments.len();
            return (arguments, at(after));
        }
    }
}

unsafe extern "C" fn execl_with(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: what the trampoline found.
    let (arguments, _) = unsafe { collect(registers, stack) };
    // SAFETY: the program's arguments, as a vector.
    unsafe { execv(path, arguments.as_ptr()) }
}

unsafe extern "C" fn execlp_with(file: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: what the trampoline found.
    let (arguments, _) = unsafe { collect(registers, stack) };
    // SAFETY: the program's arguments, as a vector.
    unsafe { execvp(file, arguments.as_ptr()) }
}

unsafe extern "C" fn execle_with(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: what the trampoline found.
    let (arguments, environment) = unsafe { collect(registers, stack) };
    // SAFETY: the program's arguments, as a vector.
    unsafe { execve(path, arguments.as_ptr(), environment.cast()) }
}

/// What a program that is started beside this one has without being given it.
fn share_standard() {
    for descriptor in 0..3 {
        let _ = life::share(descriptor);
    }
}

/// # Safety
/// As for posix_spawn(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawn(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    share_standard();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::posix_spawn(process, path, actions, attributes, arguments, environment) }
}

/// # Safety
/// As for posix_spawnp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawnp(
    process: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    share_standard();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::posix_spawnp(process, file, actions, attributes, arguments, environment) }
}

/// A descriptor that is named here is for the program that will be started.
///
/// # Safety
/// As for posix_spawn_file_actions_adddup2(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    old: c_int,
    new: c_int,
) -> c_int {
    if let Err(error) = life::share(old) {
        return error.raw_os_error();
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { next::posix_spawn_file_actions_adddup2(actions, old, new) }
}

/// # Safety
/// As for system(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    share_standard();
    // SAFETY: the program's argument, handed on.
    unsafe { next::system(command) }
}

/// # Safety
/// As for popen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    share_standard();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::popen(command, mode) as *mut FILE }
}

/// The parent ends inside libc, where no hook stands: what the child inherits is handed over first.
///
/// # Safety
/// As for daemon(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    life::share_all();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::daemon(no_chdir, no_close) }
}

/// The streams of stdio read and write inside libc, where no hook stands: the kernel carries their connections.
///
/// # Safety
/// As for fdopen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fdopen(descriptor: c_int, mode: *const c_char) -> *mut FILE {
    if let Err(error) = life::share(descriptor) {
        fail(error);
        return core::ptr::null_mut();
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { next::fdopen(descriptor, mode) as *mut FILE }
}
