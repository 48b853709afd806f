//! Libraries that the program loads later on.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

use super::next;

/// Without RTLD_DEEPBIND, with which a library and all that it needs find libc's functions before those of this one: PHP loads its
/// extensions so, and what curl's and pgsql's connected was the kernel's.
///
/// It jumps, as libc's dlopen() looks for libraries where the caller's file says (DT_RUNPATH), whom it knows by the return address.
///
/// # Safety
/// As for dlopen(3).
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, {kept}",
        "jmp rax",
        next = sym next::dlopen_itself,
        kept = const !libc::RTLD_DEEPBIND,
    )
}

/// # Safety
/// As for dlopen(3).
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "stp x0, x1, [sp, #-32]!",
        "str x30, [sp, #16]",
        "bl {next}",
        "mov x16, x0",
        "ldr x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "and w1, w1, #{kept}",
        "br x16",
        next = sym next::dlopen_itself,
        kept = const !libc::RTLD_DEEPBIND as u32,
    )
}
