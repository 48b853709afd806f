//! dprintf() and its kin, which write inside libc, where no hook stands.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

use super::{fail, next, send};
use crate::table::is_ours;

unsafe extern "C" {
    /// vasprintf(3).
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
    /// Its fortified form.
    fn __vasprintf_chk(
        text: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        list: *mut c_void,
    ) -> c_int;
}

/// Writes `length` bytes of `text`, which malloc() made, and frees it.
///
/// # Safety
/// As for write(2) and free(3).
unsafe fn write_out(descriptor: c_int, text: *mut c_char, length: c_int) -> c_int {
    let Ok(wanted) = usize::try_from(length) else { return length };
    let mut done = 0;
    let mut result = length;
    while done < wanted {
        // SAFETY: `done` is less than the text's length.
        match usize::try_from(unsafe { send::write(descriptor, text.add(done).cast(), wanted - done) }) {
            Ok(written) => done += written,
            Err(_) => {
                result = -1;
                break;
            }
        }
    }
    // SAFETY: errno is this thread's own, and the text the caller's to give; free() may change errno.
    unsafe {
        let error = *libc::__errno_location();
        libc::free(text.cast());
        if result < 0 {
            fail(rustix::io::Errno::from_raw_os_error(error));
        }
    }
    result
}

/// `list` is a va_list, which both architectures pass by its address.
///
/// # Safety
/// As for vdprintf(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vdprintf(descriptor: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    if !is_ours(descriptor) {
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::vdprintf(descriptor, format, list) };
    }
    let mut text = core::ptr::null_mut();
    // SAFETY: the program's format and arguments; the text is ours, and freed once.
    unsafe {
        let length = vasprintf(&raw mut text, format, list);
        write_out(descriptor, text, length)
    }
}

/// # Safety
/// As for vdprintf(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __vdprintf_chk(
    descriptor: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    if !is_ours(descriptor) {
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::__vdprintf_chk(descriptor, flag, format, list) };
    }
    let mut text = core::ptr::null_mut();
    // SAFETY: the program's format and arguments; the text is ours, and freed once.
    unsafe {
        let length = __vasprintf_chk(&raw mut text, flag, format, list);
        write_out(descriptor, text, length)
    }
}

/// Stands for a variadic function: makes a va_list of what comes after its named arguments and hands its address to `$with`,
/// behind these. For x86-64 the named ones' bytes in the registers' area and the register behind them; for AArch64 the bytes
/// that are left of that area, and the register.
macro_rules! variadic {
    ($($name:ident: $with:ident, $offset:literal, $place:literal, $left:literal, $behind:literal;)*) => {$(
        /// # Safety
        /// As for dprintf(3).
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(descriptor: c_int, format: *const c_char) -> c_int {
            naked_asm!(
                // System V ABI, AMD64 supplement, section 3.5.7: va_list at rsp, the registers' area 32 bytes above.
                "sub rsp, 216",
                "mov [rsp + 40], rsi", "mov [rsp + 48], rdx", "mov [rsp + 56], rcx", "mov [rsp + 64], r8", "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0", "movaps [rsp + 96], xmm1", "movaps [rsp + 112], xmm2", "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4", "movaps [rsp + 160], xmm5", "movaps [rsp + 176], xmm6", "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $offset),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $place, ", rsp"),
                "call {with}",
                "add rsp, 216",
                "ret",
                with = sym $with,
            )
        }

        /// # Safety
        /// As for dprintf(3).
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(descriptor: c_int, format: *const c_char) -> c_int {
            naked_asm!(
                // Procedure Call Standard for AArch64, appendix B: va_list at sp, then general and vector registers.
                "sub sp, sp, #240",
                "stp x0, x1, [sp, #32]", "stp x2, x3, [sp, #48]", "stp x4, x5, [sp, #64]", "stp x6, x7, [sp, #80]",
                "stp q0, q1, [sp, #96]", "stp q2, q3, [sp, #128]", "stp q4, q5, [sp, #160]", "stp q6, q7, [sp, #192]",
                "str x30, [sp, #224]",
                "add x9, sp, #240",
                "str x9, [sp]",
                "add x9, sp, #96",
                "str x9, [sp, #8]",
                "add x9, sp, #224",
                "str x9, [sp, #16]",
                concat!("mov w9, #-", $left),
                "str w9, [sp, #24]",
                "mov w9, #-128",
                "str w9, [sp, #28]",
                concat!("mov ", $behind, ", sp"),
                "bl {with}",
                "ldr x30, [sp, #224]",
                "add sp, sp, #240",
                "ret",
                with = sym $with,
            )
        }
    )*};
}

variadic! {
    dprintf: vdprintf, "16", "rdx", "48", "x2";
    __dprintf_chk: __vdprintf_chk, "24", "rcx", "40", "x3";
}
