use std::io;

/// Whether the calling thread, when it is woken, may take its core at once from whoever has it (`SCHED_OTHER`), or waits
/// until that one blocks or its time slice is over (`SCHED_BATCH`). Its share of the core is the same. See sched(7).
///
/// # Errors
/// As sched_setscheduler(2).
pub fn preempt_others(yes: bool) -> io::Result<()> {
    let policy = if yes { libc::SCHED_OTHER } else { libc::SCHED_BATCH };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads `parameters`; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_that_of_the_thread() {
        // SAFETY: takes a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        preempt_others(false).unwrap();
        assert_eq!(policy(), libc::SCHED_BATCH);
        preempt_others(true).unwrap();
        assert_eq!(policy(), libc::SCHED_OTHER);
    }
}
